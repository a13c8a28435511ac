"""What every program does alike: full disks, readers that leave, Ctrl-C, options that are no numbers."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

PROGRAMS: dict[str, list[str]] = {
    "search": ["simulation_train_formulaic.py"],
    "profile": ["gen_profiler_data.py"],
    "workload": ["run_workload.py"],
    "profdb": ["-m", "profdb", "show"],
    "merge": ["-m", "profdb", "merge"],
    "import": ["-m", "profdb", "import"],
    "calibrate": ["-m", "solver.calibrate"],
}

# Of each way to end: a script, and a module with verbs.
FULL_DAILY = (("workload", ""), ("profdb", ""))

# Runs a program whose import of numpy (torch's, scipy's, ... first) is interrupted.
INTERRUPTED = """
import runpy, sys
class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == "numpy":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupting())
words = sys.argv[1:]
if words[0] == "-m":
    sys.argv = words[1:]
    runpy.run_module(words[1], run_name="__main__", alter_sys=True)
else:
    sys.argv = words
    runpy.run_path(words[0], run_name="__main__")
"""


def ran(*words: str, stdout: object = subprocess.PIPE) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # type: ignore[call-overload,no-any-return]
        [sys.executable, *words],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        timeout=120,
    )


def one_line(result: subprocess.CompletedProcess[str]) -> str:
    lines = result.stderr.splitlines()
    assert len(lines) == 1, result.stderr
    return lines[0]


@pytest.mark.parametrize(
    ("name", "unbuffered"),
    [
        pytest.param(name, unbuffered, marks=[] if (name, unbuffered) in FULL_DAILY else pytest.mark.nightly)
        for name in PROGRAMS
        for unbuffered in ("", "1")
    ],
)
def test_a_full_disk_is_one_line_and_2(name: str, unbuffered: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    with open("/dev/full", "w", encoding="utf-8") as full:
        result = ran(*PROGRAMS[name], "--help", stdout=full)
    assert (one_line(result), result.returncode) == ("error: stdout: cannot be written: No space left on device", 2)


def test_an_answer_cut_short_by_its_reader_is_one_line_and_2() -> None:
    read, write = os.pipe()
    os.close(read)
    result = ran("run_workload.py", "groups", "--tp", "8", "--dp", "1024", stdout=write)
    os.close(write)
    assert (one_line(result), result.returncode) == ("error: stdout: cannot be written: Broken pipe", 2)


@pytest.mark.parametrize("name", PROGRAMS)
def test_ctrl_c_while_importing_is_one_line_and_130(name: str) -> None:
    result = ran("-c", INTERRUPTED, *PROGRAMS[name])
    assert (one_line(result), result.returncode) == ("interrupted", 130)


BAD_NUMBERS = {
    "comma": "64,128",
    "5,000 digits": "9" * 5000,
    "another script's digits": "٦٤",
    "two dashes": "--",
    "none": "",
    "NaN": "nan",
    "beyond 64 bits": str(2**63),
    "negative": "-8",
}

NUMBERS: dict[str, list[str]] = {
    "search world": ["simulation_train_formulaic.py", "--model_size", "7", "--world_size="],
    "search rank": ["simulation_train_formulaic.py", "--world_size", "8", "--rank="],
    "search minutes": ["simulation_train_formulaic.py", "--world_size", "8", "--measure_minutes="],
    "profile size": ["gen_profiler_data.py", "--max_size="],
    "profile minutes": ["gen_profiler_data.py", "--budget_minutes="],
    "workload gpus": ["run_workload.py", "topology", "-topo", "Spectrum-X", "--gpu="],
    "workload traffic": ["run_workload.py", "traffic", "--group", "tp", "--size_bytes="],
    "generate world": ["run_workload.py", "generate", "--world_size="],
    "import domain": ["profdb", "import", "nccl-tests", "x", "--domain_ranks="],
}


def programs() -> dict[str, Callable[[list[str]], int]]:
    import gen_profiler_data
    import run_workload
    import simulation_train_formulaic
    from profdb.__main__ import main as profdb
    from solver.calibrate.__main__ import main as calibrate

    return {
        "simulation_train_formulaic.py": simulation_train_formulaic.main,
        "gen_profiler_data.py": gen_profiler_data.main,
        "run_workload.py": run_workload.main,
        "profdb": profdb,
        "calibrate": calibrate,
    }


@pytest.mark.parametrize("kind", BAD_NUMBERS)
def test_a_number_that_is_none_is_one_line_and_2(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    for program, *words in NUMBERS.values():
        flag = words.pop()
        assert programs()[program]([*words, flag + BAD_NUMBERS[kind]]) == 2, flag
        (line,) = capsys.readouterr().err.splitlines()
        assert flag.rstrip("=") in line
        assert len(line) < 300


SEARCH = ["simulation_train_formulaic.py", "--world_size", "8"]
GENERATE = ["run_workload.py", "generate", "--model_size", "7", "--world_size", "8"]
# {} is the file that cannot be read.
INPUTS: dict[str, list[str]] = {
    "config .py": [*SEARCH, "--config", "{}.py"],
    "config .json": [*SEARCH, "--config", "{}.json"],
    "profile": [*SEARCH, "--model_size", "7", "--pre_profiling_data_path", "{}.pt"],
    "cluster": [*SEARCH, "--model_size", "7", "--cluster", "{}.toml"],
    "calibration": [*SEARCH, "--config", "configs/7B_internlm2.py", "--calibration", "{}.json"],
    "model to profile": ["gen_profiler_data.py", "--device", "cpu", "--model", "{}.py"],
    "shown": ["profdb", "show", "{}.pt"],
    "merged": ["profdb", "merge", "{}.pt", "{}.pt", "--into", "/nowhere/x.pt"],
    "imported CSV": ["profdb", "import", "csv", "{}.csv", "--gpu", "x", "--into", "/nowhere/x.pt"],
    "imported log": ["profdb", "import", "nccl-tests", "{}", "--gpu", "x", "--into", "/nowhere/x.pt"],
    "steps": ["calibrate", "--steps", "{}.csv"],
    "checked": ["run_workload.py", "check", "{}.txt"],
    "simulated": ["run_workload.py", "simulate", "{}.txt"],
    "topology": ["run_workload.py", "topology", "--check", "{}"],
    "AIOB": [*GENERATE, "--comp_filepath", "{}.txt"],
    "generated config": ["run_workload.py", "generate", "--world_size", "8", "--config", "{}.json"],
    "imported AIOB": [
        *["run_workload.py", "import-aiob", "{}", "--config", "configs/7B_internlm2.py", "--gpu", "x"],
        *["--tp", "1", "--micro_batch", "1", "--seq_len", "8", "--into", "/nowhere/x.pt"],
    ],
}


@pytest.mark.parametrize("name", INPUTS)
def test_an_input_that_is_no_file_is_one_line_and_2(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pipes without a writer would wait for ever, devices never end."""
    program, *words = INPUTS[name]
    ending = next(Path(word).suffix for word in words if "{}" in word)
    for kind in ("missing", "pipe", "device", "folder", "binary", "name"):
        stem = odd_input(kind, tmp_path / f"{kind}{ending}")
        assert programs()[program]([word.replace("{}", stem) for word in words]) == 2, kind
        (line,) = capsys.readouterr().err.splitlines()
        assert len(line) < 500


def odd_input(kind: str, path: Path) -> str:
    """The path without its ending."""
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "folder":
        path.mkdir()
    elif kind == "binary":
        path.write_bytes(b"\0\xff" * 2500)
    return "a\0b" if kind == "name" else str(path.with_suffix(""))


def test_digits_may_be_grouped_by_underscores(capsys: pytest.CaptureFixture[str]) -> None:
    import run_workload

    assert run_workload.main(["groups", "--tp", "1_6", "--group", "tp"]) == 0
    assert "groups of 16" in capsys.readouterr().out
