"""Readers that no program hands a user's file to, as programs: a general workload, an architecture's sheet."""

from dataclasses import replace
from pathlib import Path

from spec.cluster.reader import read_architecture
from spec.program.command import exit_status
from workload.aicb.csv_workload import Workload


def main(words: list[str]) -> int:
    """Read ``workload FILE`` or ``architecture NAME`` (configs/architectures/NAME.toml here) and print what it says."""
    return exit_status(lambda: {"workload": _workload, "architecture": _architecture}[words[0]](words[1]))


def _workload(name: str) -> int:
    workload, arguments = Workload.load(Path(name))
    print(len(workload.items), sorted(arguments), sum(item.msg_size * item.count for item in workload.items))
    return 0


def _architecture(name: str) -> int:
    print(replace(read_architecture(name, root=Path("own")), sources={}))
    return 0
