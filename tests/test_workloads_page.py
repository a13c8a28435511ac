"""Every command of docs/workloads.md prints what the page shows, but for times, which move with the physics."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import run_workload
import simulation_train_formulaic as script
from tests.pages import ROOT, commands
from tests.workload.simai_lines import GOOD, LONG, cell

# Files of others.
ELSEWHERE = ("workload_analytical.txt",)


def shown_commands() -> list[tuple[str, list[str]]]:
    """Those that need no file of others."""
    return [one for one in commands("workloads.md") if not any(name in one[0] for name in ELSEWHERE)]


def without_times(lines: list[str]) -> list[str]:
    """Milliseconds and shares blanked, in any order: stderr and stdout are shown as a terminal mixes them."""
    return sorted(re.sub(r" +\d+\.\d+( ms|%)?", " #", line) for line in lines if line.strip())


def printed(command: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """What a command prints, run here where no shell is needed."""
    words = shlex.split(command)
    mains = {"run_workload.py": run_workload.main, "simulation_train_formulaic.py": script.main}
    if words[0] == "python" and words[1] in mains and "|" not in words:
        mains[words[1]](words[2:])
        shown = capsys.readouterr()
        return (shown.out + shown.err).splitlines()
    line = re.sub(r"^python ", f"{shlex.quote(sys.executable)} ", command)
    ran = subprocess.run(line, shell=True, capture_output=True, text=True, check=False)
    return (ran.stdout + ran.stderr).splitlines()


@pytest.mark.nightly
def test_every_command_prints_what_the_page_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("configs", "prof_data", "run_workload.py", "simulation_train_formulaic.py"):
        (tmp_path / name).symlink_to(ROOT / name)
    bad = [cell(3, "allreduce"), cell(2, "1.5"), GOOD + "\t7", cell(5, "2147483648"), GOOD]
    (tmp_path / "bad.txt").write_text("\n".join([LONG.replace("ga: 4 ", ""), "9", *bad]) + "\n")
    monkeypatch.chdir(tmp_path)
    assert len(shown_commands()) >= 20
    for command, shown in shown_commands():
        assert without_times(printed(command, capsys)) == without_times(shown), command
