"""What a program is command: its words, and the files that they name."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from spec.cluster.reader import read_architecture
from spec.program.command import exit_status
from workload.aicb.csv_workload import Workload

PROGRAMS = {
    "search": "simulation_train_formulaic",
    "workload": "run_workload",
    "profile": "gen_profiler_data",
    "profdb": "profdb.__main__",
    "calibrate": "solver.calibrate.__main__",
    "readers": __name__,
}
"""The module that holds each program's ``main(words) -> exit status``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One command line in a folder that holds ``files``; ``special`` says which of them is no regular file."""

    program: str
    words: tuple[str, ...]
    files: dict[str, bytes] = field(default_factory=dict)
    special: tuple[str, str] | None = None

    def main(self) -> Callable[[list[str]], int]:
        """The program."""
        result: Callable[[list[str]], int] = importlib.import_module(PROGRAMS[self.program]).main
        return result

    def shown(self) -> str:
        """For a person who wants to run it again."""
        files = "".join(
            f"\n--- {name} ({len(content)} bytes)\n{content[:3000]!r}" for name, content in self.files.items()
        )
        return f"{self.program} {list(self.words)!r} {self.special or ''}{files}"


# Readers that no program hands a user's file to, as a program: a general workload, an architecture's sheet.


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
