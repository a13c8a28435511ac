"""The deal of layers over virtual stages whose busiest stage works least: a small integer program, solved exactly.

Variables: layers of every run of equal blocks on every virtual stage, and for every stage and run whether the run has ended
there, without which no layer of the next run may stand there. First the largest work of a stage (all of its chunks) is made
as small as can be, then the longest row of layers in a chunk, so that stages are even but
for the ends, and of what is left the early stages get as little as may be: they hold most micro-batches in flight.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from spec.arrays import FloatArray, IntArray

if TYPE_CHECKING:
    from scipy.optimize import LinearConstraint

# Of what is smallest so far, relatively: what the solver may take for equal.
SAME = 1e-6
# Beside the work of the longest row of layers, which is at least that of one.
LAST_WORD = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class Dealing:
    """Layers to deal: ``counts`` of each run in order, each of ``work_s`` seconds; ``ends_s`` is what every virtual stage has
    to do besides; ``pp`` stages of ``vpp`` chunks. ``without`` virtual stages have no layers, ``most`` bounds layers by
    stage."""

    counts: tuple[int, ...]
    work_s: tuple[float, ...]
    ends_s: FloatArray
    pp: int
    vpp: int
    without: tuple[int, ...] = ()
    most: Mapping[int, int] = field(default_factory=dict)

    @property
    def stages(self) -> int:
        """Virtual ones."""
        return self.pp * self.vpp

    def stage_work_s(self, layers: IntArray) -> FloatArray:
        """Work of every stage where its virtual stages have ``layers``, of shape (virtual stages, runs)."""
        chunks = layers @ np.asarray(self.work_s) + self.ends_s
        return np.asarray(chunks.reshape(self.vpp, self.pp).sum(axis=0), dtype=np.float64)

    def may_work_less(self, than_s: float) -> bool:
        """Whether whole layers, were all of them the shortest, could leave every stage with less work ``than_s``."""
        ends_s = self.ends_s.reshape(self.vpp, self.pp).sum(axis=0)
        room = np.floor((than_s * (1.0 - SAME) - ends_s) / min(self.work_s))
        return bool(room.min() >= 0 and room.sum() >= sum(self.counts))


class _Rows:
    """Rows of a linear program as they are written: coefficients by variable, between two bounds."""

    def __init__(self, variables: int) -> None:
        self.variables = variables
        self.rows: list[dict[int, float]] = []
        self.low: list[float] = []
        self.high: list[float] = []

    def add(self, row: dict[int, float], low: float, high: float) -> None:
        """``low <= row <= high``."""
        self.rows.append(row)
        self.low.append(low)
        self.high.append(high)

    def constraint(self) -> "LinearConstraint":
        """All of them."""
        from scipy.optimize import LinearConstraint
        from scipy.sparse import coo_array

        at = [index for index, row in enumerate(self.rows) for _ in row]
        of = [variable for row in self.rows for variable in row]
        values = [value for row in self.rows for value in row.values()]
        matrix = coo_array((values, (at, of)), shape=(len(self.rows), self.variables)).tocsr()
        return LinearConstraint(matrix, self.low, self.high)


def least_deal(dealing: Dealing) -> IntArray | None:
    """Layers of every virtual stage and run, of shape (virtual stages, runs); None where no deal keeps the bounds."""
    stages, runs = dealing.stages, len(dealing.counts)
    # Seconds are told in those of the longest layer.
    unit_s = max(dealing.work_s)
    scaled = replace(
        dealing, work_s=tuple(one / unit_s for one in dealing.work_s), ends_s=dealing.ends_s / unit_s
    )
    program = _written(scaled)
    stage_s, chunk_s = program.variables - 2, program.variables - 1
    first = _solved(scaled, program, {stage_s: 1.0}, np.inf)
    if first is None:
        return None
    layers_of_all = stages * sum(dealing.counts)
    late = {
        stage * runs + run: -LAST_WORD * stage / layers_of_all
        for stage in range(stages)
        for run in range(runs)
    }
    second = _solved(scaled, program, {chunk_s: 1.0, **late}, first[stage_s] + SAME)
    found = first if second is None else second
    layers: IntArray = np.round(found[: stages * runs]).astype(np.int64).reshape(stages, runs)
    return layers


def _written(dealing: Dealing) -> _Rows:
    """What every deal keeps. Variables: layers by virtual stage and run, ends of all runs but the last by virtual stage, the
    largest work of a stage and of a chunk's layers."""
    stages, runs, pp = dealing.stages, len(dealing.counts), dealing.pp
    ended = stages * runs
    rows = _Rows(ended + stages * (runs - 1) + 2)
    stage_s, chunk_s = rows.variables - 2, rows.variables - 1
    for run, count in enumerate(dealing.counts):
        rows.add({stage * runs + run: 1.0 for stage in range(stages)}, count, count)
    work = [{stage * runs + run: dealing.work_s[run] for run in range(runs)} for stage in range(stages)]
    for stage, chunk in enumerate(work):
        rows.add({**chunk, chunk_s: -1.0}, -np.inf, 0.0)
        least = 0.0 if stage in dealing.without or stage in (0, stages - 1) else 1.0
        held = dict.fromkeys(chunk, 1.0)
        rows.add(held, least, 0.0 if stage in dealing.without else np.inf)
    for place in range(pp):
        chunks = range(place, stages, pp)
        whole = {variable: value for chunk in chunks for variable, value in work[chunk].items()}
        rows.add({**whole, stage_s: -1.0}, -np.inf, -sum(dealing.ends_s[chunk] for chunk in chunks))
        if place in dealing.most:
            rows.add(dict.fromkeys(whole, 1.0), 0.0, dealing.most[place])
    for run, stage in product(range(runs - 1), range(stages)):
        flag = ended + stage * (runs - 1) + run
        this = {before * runs + run: 1.0 for before in range(stage + 1)}
        rows.add({**this, flag: -float(dealing.counts[run])}, 0.0, np.inf)
        later = {before * runs + run + 1: 1.0 for before in range(stage + 1)}
        rows.add({**later, flag: -float(dealing.counts[run + 1])}, -np.inf, 0.0)
    return rows


def _solved(dealing: Dealing, rows: _Rows, least: dict[int, float], stage_work: float) -> FloatArray | None:
    """The variables of the deal with the ``least`` of these, no stage working longer than ``stage_work``."""
    from scipy.optimize import Bounds, milp

    wanted = np.zeros(rows.variables)
    for variable, weight in least.items():
        wanted[variable] = weight
    counts = np.tile(np.asarray(dealing.counts, dtype=np.float64), dealing.stages)
    flags = np.ones(rows.variables - len(counts) - 2)
    whole = np.append(np.ones(rows.variables - 2), [0.0, 0.0])
    found = milp(
        wanted,
        constraints=rows.constraint(),
        bounds=Bounds(0.0, np.concatenate([counts, flags, [stage_work, np.inf]])),
        integrality=whole,
        options={"mip_rel_gap": 0.0},
    )
    return None if found.x is None else np.asarray(found.x, dtype=np.float64)
