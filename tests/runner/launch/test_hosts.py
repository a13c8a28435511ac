"""Launches on hosts that are shells of this machine: what is printed, which failures are named, how the others end."""

import os
import re
import time
from pathlib import Path

import pytest

from runner.launch import hosts as host_runs
from runner.launch.command import Launch
from runner.launch.hosts import LaunchResult, run_on_hosts

SSH = """#!/bin/sh
# ssh -o ... -- HOST COMMAND
while [ "$1" != -- ]; do shift; done
export HOST="$2"
[ "$HOST" = gone ] && { echo "ssh: connect to host gone port 22: No route to host" >&2; exit 255; }
exec sh -c "$3"
"""


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("SETTLE_S", 0.3), ("GRACE_S", 0.6), ("STOP_S", 10.0)):
        monkeypatch.setattr(host_runs, name, seconds)
    monkeypatch.setattr("runner.launch.hosts.LAST_WORDS_S", 0.3)


def launched(folder: Path, monkeypatch: pytest.MonkeyPatch, program: str, *hosts: str) -> LaunchResult:
    """A launch whose Python is the shell script ``program``, which finds its host in $HOST."""
    for name, text in (("ssh", SSH), ("python", f"#!/bin/sh\n{program}\n")):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return run_on_hosts(
        Launch(words=("run", "w.csv"), hosts=hosts, python=str(folder / "python"), folder=folder, environment={})
    )


def test_the_first_host_prints_as_it_is_and_the_others_under_their_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    program = 'echo "answer of $HOST"; echo "$HOST: noise of torchrun" >&2; echo "note: $HOST is slow" >&2'
    assert launched(tmp_path, monkeypatch, program, "a", "b") == LaunchResult(status=0)
    out, errors = capfd.readouterr()
    assert sorted(out.splitlines()) == ["answer of a", "b: answer of b"]
    assert sorted(errors.splitlines()) == ["a: noise of torchrun", "b: note: b is slow", "note: a is slow"]


@pytest.mark.usefixtures("quick")
def test_an_error_of_a_rank_is_said_once_whatever_torchrun_adds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    program = '[ "$HOST" = b ] && echo "error: rank 3: out of memory" >&2; echo ===== >&2; exit 1'
    found = launched(tmp_path, monkeypatch, program, "a", "b", "c")
    assert found == LaunchResult(status=1, errors=("error: rank 3: out of memory",))
    errors = [line for line in capfd.readouterr().err.splitlines() if "error" in line]
    assert errors == ["b: error: rank 3: out of memory"]


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("program", "hosts", "said"),
    [
        ("exec sleep 60", ("a", "gone"), "error: gone: ssh ended with status 255: ssh: connect to host gone port 22: No route to host"),
        ('[ "$HOST" = b ] && exec nothing-of-this-name; sleep 60', ("a", "b"), "error: b: status 127: .*not found"),
        (
            '[ "$HOST" = b ] && { echo "python: No module named torch" >&2; exit 1; }; exec sleep 60',
            ("a", "b"),
            "error: b: ended with status 1: python: No module named torch",
        ),
    ],
    ids=["no connection", "no program", "no package"],
)  # fmt: skip
def test_a_host_that_cannot_begin_is_named_at_once_and_the_others_are_ended(
    program: str,
    hosts: tuple[str, ...],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    began = time.monotonic()
    found = launched(tmp_path, monkeypatch, program, *hosts)
    assert time.monotonic() - began < 30.0
    assert found.status != 0
    (line,) = [line for line in capfd.readouterr().err.splitlines() if line.startswith("error: ")]
    assert found.errors == (line,)
    assert re.fullmatch(said, line)


def test_one_machine_needs_no_ssh(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert launched(tmp_path, monkeypatch, 'echo "$@"', "").status == 0
    assert capfd.readouterr().out.startswith("-m torch.distributed.run --standalone")
