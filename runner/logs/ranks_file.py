"""Every rank's times by epoch, NAME_ranks.csv beside a log, and which ranks are slow in them."""

import csv
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path

import numpy as np

from spec.program.numbers import plain_number
from spec.replaced_file import replaced_file
from spec.text_file import UnreadableFileError, read_file_text
from workload.findings import WorkloadError

MAX_FILE_BYTES = 2**28
SLOWER = 0.1
"""Above the others of its stage by this share a rank is named."""


@dataclass(frozen=True, slots=True)
class RankTimes:
    """One rank in one epoch (0: initialisation). Communication holds the waiting for other ranks."""

    rank: int
    stage: int
    epoch: int
    iteration_ms: float
    communication_ms: float
    computation_ms: float

    @property
    def own_ms(self) -> float:
        """What the rank spends outside of communication."""
        return self.iteration_ms - self.communication_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowRank:
    """A rank whose ``own_ms``, the median over iterations, lies above that of the others of its stage."""

    rank: int
    stage: int
    own_ms: float
    others_ms: float

    def line(self) -> str:
        """For a reader."""
        more = 100 * (self.own_ms / self.others_ms - 1) if self.others_ms > 0 else float("inf")
        return (
            f"slow: rank {self.rank} of stage {self.stage} spends {self.own_ms:.3f} ms an iteration outside of "
            f"communication, {more:.0f} % more than the others ({self.others_ms:.3f} ms)"
        )


def write_ranks(path: Path, everyone: Iterable[RankTimes]) -> None:
    """A line a rank and epoch."""
    with replaced_file(path) as handle:
        writer = csv.writer(handle, lineterminator="\n")
        writer.writerow([one.name for one in fields(RankTimes)])
        for one in everyone:
            writer.writerow([one.rank, one.stage, one.epoch, *(f"{value:.6f}" for value in astuple(one)[3:])])


def read_ranks(path: Path) -> list[RankTimes]:
    """The lines of a file. Raises WorkloadError naming the line that is none."""
    try:
        rows = list(csv.reader(read_file_text(path, MAX_FILE_BYTES).splitlines()))
    except (UnreadableFileError, csv.Error) as error:
        raise WorkloadError(f"{path}: {error}") from error
    names = [one.name for one in fields(RankTimes)]
    if not rows or rows[0] != names:
        raise WorkloadError(f"{path}: line 1: the columns are not {', '.join(names)}")
    found = []
    for number, cells in enumerate(rows[1:], start=2):
        values = [plain_number(cell) for cell in cells]
        if len(values) != len(names) or not all(value >= 0 for value in values):
            raise WorkloadError(f"{path}: line {number}: is no rank's times")
        found.append(RankTimes(*map(int, values[:3]), *values[3:]))
    return found


def slow_ranks(everyone: Sequence[RankTimes]) -> list[SlowRank]:
    """The ranks that others of their stage wait for, the slowest first."""
    own: dict[int, dict[int, list[float]]] = {}
    for one in everyone:
        if one.epoch:
            own.setdefault(one.stage, {}).setdefault(one.rank, []).append(one.own_ms)
    found = []
    for stage, ranks in own.items():
        middle = {rank: float(np.median(times)) for rank, times in ranks.items()}
        for rank, own_ms in middle.items():
            others = [value for other, value in middle.items() if other != rank]
            if others and own_ms > (1 + SLOWER) * float(np.median(others)):
                found.append(
                    SlowRank(rank=rank, stage=stage, own_ms=own_ms, others_ms=float(np.median(others)))
                )
    return sorted(found, key=lambda one: one.others_ms - one.own_ms)
