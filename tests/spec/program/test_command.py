"""How a command line is read and how every command ends."""

import argparse
import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from spec.errors import CommandLineError, ExportError, UserError
from spec.program.command import OneLineParser, decimal, exit_status, whole

ROOT = Path(__file__).resolve().parents[3]


def raising(error: BaseException) -> int:
    raise error


def test_the_status_is_the_works_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_status(lambda: 3) == 3
    assert exit_status(lambda: raising(SystemExit(0))) == 0
    assert capsys.readouterr().err == ""


def test_an_error_of_the_user_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_status(lambda: raising(ExportError("two\nlines"))) == 2
    assert capsys.readouterr().err == "error: two lines\n"


def test_a_long_name_is_shortened(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_status(lambda: raising(ExportError("a" * 100_000 + ": cannot be written"))) == 2
    said = capsys.readouterr().err
    assert len(said) < 2000
    assert said.endswith("aaa: cannot be written\n")


def test_only_a_rank_that_speaks_complains(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_status(lambda: raising(UserError("x")), speaks=lambda _: False) == 2
    assert capsys.readouterr().err == ""


def test_an_interrupt_is_one_line_and_130(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_status(lambda: raising(KeyboardInterrupt())) == 130
    assert capsys.readouterr().err == "interrupted\n"
    assert exit_status(lambda: raising(KeyboardInterrupt()), interrupted=lambda: "go on with x") == 130
    assert capsys.readouterr().err == "go on with x\n"


def test_too_little_memory_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_status(lambda: raising(MemoryError())) == 2
    assert capsys.readouterr().err.startswith("error: this machine has too little memory")
    early = ended("from spec.program.command import quiet_interrupts\nquiet_interrupts()\nraise MemoryError")
    assert (early.returncode, early.stderr.count("\n")) == (2, 1)


@pytest.mark.parametrize("error", [ValueError("ours"), OSError(errno.ENOENT, "missing", "file")])
def test_a_bug_keeps_its_traceback(error: Exception) -> None:
    with pytest.raises(type(error)):
        exit_status(lambda: raising(error))


def ended(code: str, **streams: object) -> subprocess.CompletedProcess[str]:
    program = f"import sys\nfrom spec.program.command import exit_status\n{code}"
    return subprocess.run(  # type: ignore[call-overload,no-any-return]
        [sys.executable, "-c", program], cwd=ROOT, stderr=subprocess.PIPE, text=True, check=False, **streams
    )


PRINTING = "sys.exit(exit_status(lambda: print('x' * {size}) or 0))"


@pytest.mark.parametrize("size", [3, 100_000])
def test_a_full_disk_is_one_line(size: int) -> None:
    with open("/dev/full", "w", encoding="utf-8") as full:
        result = ended(PRINTING.format(size=size), stdout=full)
    assert (result.returncode, result.stderr) == (2, "error: stdout: cannot be written: No space left on device\n")


def test_a_limit_of_file_sizes_is_one_line(tmp_path: Path) -> None:
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (1024, 1024))\n"
    with (tmp_path / "f").open("w", encoding="utf-8") as file:
        result = ended(limit + PRINTING.format(size=100_000), stdout=file)
    assert (result.returncode, result.stderr) == (2, "error: stdout: cannot be written: File too large\n")


@pytest.mark.parametrize("size", [3, 100_000])
def test_a_reader_that_left_is_one_line(size: int) -> None:
    read, write = os.pipe()
    os.close(read)
    result = ended(PRINTING.format(size=size), stdout=write)
    os.close(write)
    assert (result.returncode, result.stderr) == (2, "error: stdout: cannot be written: Broken pipe\n")


def test_a_closed_stdout_is_one_line() -> None:
    result = ended(PRINTING.format(size=3), preexec_fn=lambda: os.close(1))
    assert result.returncode == 2
    assert result.stderr == "error: stdout is closed: there is nowhere to print the answer\n"


def test_letters_that_the_terminal_lacks_are_escaped() -> None:
    result = ended(
        "sys.exit(exit_status(lambda: print('\\u00e9\\udcff') or 0))",
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )
    assert (result.returncode, result.stdout) == (0, "\\xe9\\udcff\n")


def test_an_interrupt_waits_for_the_end_of_a_block() -> None:
    """In a process of its own: the threads of a test runner would take the signal."""
    code = """
import os, signal, sys
from spec.program.command import without_interrupts
try:
    with without_interrupts():
        os.kill(os.getpid(), signal.SIGINT)
        print("its end")
    print("what follows")
except KeyboardInterrupt:
    print("interrupted")
"""
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert run.stdout.split("\n")[:2] == ["its end", "interrupted"]


def parser() -> argparse.ArgumentParser:
    made = OneLineParser(prog="program")
    made.add_argument("--size", type=whole(1, 64))
    made.add_argument("--share", type=decimal(0.0, 1.0))
    made.add_argument("--name")
    made.add_argument_group("files").add_argument("--file", type=Path)
    made.add_argument("-g", "--gpus")
    made.add_argument("files", nargs="*")
    return made


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--size", "65"], "argument --size: '65' is not a whole number from 1 to 64"),
        (["--size=--"], "argument --size: expected one argument"),
        (["--name=--"], "argument --name: expected one argument"),
        (["-g--"], "argument -g/--gpus: expected one argument"),
        (["--share", "1.1"], "argument --share: '1.1' is not a number from 0 to 1"),
        (["--file", ""], "argument --file: '' is no path"),
        (["--file", "a/" * 2048], f"argument --file: '{'a/' * 18}a...' is no path"),
        (["--file", "b" * 256], f"argument --file: '{'b' * 37}...' has a part longer than 255 bytes"),
        (["--siz=3"], "unrecognized arguments: --siz=3"),
        (["--nothing"], "unrecognized arguments: --nothing"),
    ],
)
def test_complaints_are_errors_of_one_line(words: list[str], said: str) -> None:
    with pytest.raises(CommandLineError) as caught:
        parser().parse_args(words)
    assert str(caught.value) == f"program: {said} (see --help)"
    assert "\n" not in str(caught.value)


def test_the_longest_name_is_a_path() -> None:
    assert parser().parse_args(["--file", "c" * 255]).file == Path("c" * 255)


def test_two_dashes_still_end_the_options() -> None:
    assert parser().parse_args(["--size", "3", "--", "--name"]).files == ["--name"]


def test_however_long_the_words_the_line_is_short() -> None:
    with pytest.raises(CommandLineError) as caught:
        parser().parse_args(["--" + "x" * 5000])
    assert len(str(caught.value)) < 500
