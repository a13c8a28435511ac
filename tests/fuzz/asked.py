"""What a program is asked: its words, and the files that they name."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field

PROGRAMS = {
    "search": "simulation_train_formulaic",
    "workload": "run_workload",
    "profile": "gen_profiler_data",
    "profdb": "profdb.__main__",
    "calibrate": "solver.calibrate.__main__",
    "readers": "tests.fuzz.readers",
}
"""The module that holds each program's ``main(words) -> exit status``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One command line in a folder that holds ``files``; ``special`` says which of them is no regular file."""

    program: str
    words: tuple[str, ...]
    files: dict[str, bytes] = field(default_factory=dict)
    special: tuple[str, str] | None = None

    def main(self) -> Callable[[list[str]], int]:
        """The program."""
        found: Callable[[list[str]], int] = importlib.import_module(PROGRAMS[self.program]).main
        return found

    def shown(self) -> str:
        """For a person who wants to run it again."""
        files = "".join(
            f"\n--- {name} ({len(content)} bytes)\n{content[:3000]!r}" for name, content in self.files.items()
        )
        return f"{self.program} {list(self.words)!r} {self.special or ''}{files}"
