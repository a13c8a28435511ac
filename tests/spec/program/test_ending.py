"""How a command ends: status and one line for each way of ending."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from spec.errors import ExportError, UserError
from spec.program.command import exit_status

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
    assert (result.returncode, result.stderr) == (
        2,
        "error: stdout: cannot be written: No space left on device\n",
    )


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
from spec.program.command import uninterrupted
try:
    with uninterrupted():
        os.kill(os.getpid(), signal.SIGINT)
        print("its end")
    print("what follows")
except KeyboardInterrupt:
    print("interrupted")
"""
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert run.stdout.split("\n")[:2] == ["its end", "interrupted"]
