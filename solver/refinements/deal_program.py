"""The deal of layers over virtual stages that lets a step end soonest, as its bound tells: a small integer
program, solved exactly.

Variables: layers of every kind on every virtual stage, and for every stage and run of equal layers whether
the run has ended there, without which no layer of the next run may stand there. Where layers of each chunk
run again in the backward, first ones first, such layers are kinds of their own. First the largest of what
every stage works and waits for those before it (solver.pipeline.least_spans) is made as small as can be, then
the longest row of layers in a chunk, so that stages are even but for the ends, and of what is left the early
stages get as little as may be: they hold most micro-batches in flight. What every stage has memory for are
rows of the program (solver.refinements.stage_room).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from solver.refinements.stage_room import Room
from spec.arrays import FloatArray, IntArray

if TYPE_CHECKING:
    from scipy.optimize import LinearConstraint

# Of what is smallest so far, relatively: what the solver may take for equal.
SAME = 1e-6
# In work of the longest layer: what the second program may add to the first's least span. Ten times the solver's own
# tolerance: a bound that a solution meets within the tolerance alone is solved again, which HiGHS prints a line about.
ROOM = 1e-5
# Beside the work of the longest row of layers, which is at least that of one.
LAST_WORD = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class Dealing:
    """Layers to deal: ``counts`` of each run in order; ``ends_s`` is what every virtual stage has to do
    besides; ``pp`` stages of ``vpp`` chunks, whose first ``again`` layers run again, pass ``num_micro``
    micro-batches. ``work_s`` are the seconds of a layer by kind: where some run again, each run so and then
    each as it is. ``predicting`` is the virtual stage of prediction blocks, which are not dealt; those
    ``without`` have no layers; ``rooms`` bound stages."""

    counts: tuple[int, ...]
    work_s: tuple[float, ...]
    ends_s: FloatArray
    pp: int
    vpp: int
    num_micro: int
    again: int = 0
    predicting: int = -1
    without: tuple[int, ...] = ()
    rooms: tuple[Room, ...] = ()

    @property
    def stages(self) -> int:
        """Virtual ones."""
        return self.pp * self.vpp

    @property
    def kinds(self) -> int:
        """Runs, twice where layers run again."""
        return len(self.work_s)

    def kinds_of(self, run: int) -> range:
        """The kinds that are layers of that run."""
        return range(run, self.kinds, len(self.counts))

    def span_s(self, layers: IntArray) -> float:
        """Seconds of a step a micro-batch that no schedule is below where its virtual stages have ``layers``,
        of shape (virtual stages, kinds): every stage works, and before and behind that the first chunks of
        those before it pass one micro-batch."""
        chunks = (layers @ np.asarray(self.work_s) + self.ends_s).reshape(self.vpp, self.pp)
        before = np.cumsum(chunks[0]) - chunks[0]
        return float((chunks.sum(axis=0) + before / self.num_micro).max())

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
    """Layers of every virtual stage and kind, of shape (virtual stages, kinds); None where no deal keeps the bounds."""
    stages, kinds = dealing.stages, dealing.kinds
    # Seconds are told in those of the longest layer.
    unit_s = max(dealing.work_s)
    scaled = replace(
        dealing, work_s=tuple(one / unit_s for one in dealing.work_s), ends_s=dealing.ends_s / unit_s
    )
    program = _written(scaled)
    span_s, chunk_s = program.variables - 2, program.variables - 1
    first = _solved(scaled, program, {span_s: 1.0}, np.inf)
    if first is None:
        return None
    layers_of_all = stages * sum(dealing.counts)
    late = {
        stage * kinds + kind: -LAST_WORD * stage / layers_of_all
        for stage in range(stages)
        for kind in range(kinds)
    }
    second = _solved(scaled, program, {chunk_s: 1.0, **late}, first[span_s] + ROOM)
    found = first if second is None else second
    layers: IntArray = np.round(found[: stages * kinds]).astype(np.int64).reshape(stages, kinds)
    return layers


def _written(dealing: Dealing) -> _Rows:
    """What every deal keeps. Variables: layers by virtual stage and kind, ends of all runs but the last by
    virtual stage, whether as many as run again do by virtual stage and run, the span (Dealing.span_s), the
    largest work of a chunk's layers."""
    stages, runs, kinds, pp = dealing.stages, len(dealing.counts), dealing.kinds, dealing.pp
    rows = _Rows(stages * (kinds + (runs - 1) + (runs if dealing.again else 0)) + 2)
    span_s, chunk_s = rows.variables - 2, rows.variables - 1
    for run, count in enumerate(dealing.counts):
        rows.add(_layers(dealing, range(stages), run), count, count)
    for stage in range(stages):
        work = _weighed(dealing, (stage,), dealing.work_s)
        rows.add({**work, chunk_s: -1.0}, -np.inf, 0.0)
        least = 0.0 if stage in dealing.without or stage in (0, stages - 1) else 1.0
        rows.add(dict.fromkeys(work, 1.0), least, 0.0 if stage in dealing.without else np.inf)
    for place in range(pp):
        chunks = range(place, stages, pp)
        whole = _weighed(dealing, chunks, dealing.work_s)
        before = _weighed(dealing, range(place), [one / dealing.num_micro for one in dealing.work_s])
        ends_s = dealing.ends_s[list(chunks)].sum() + dealing.ends_s[:place].sum() / dealing.num_micro
        rows.add({**whole, **before, span_s: -1.0}, -np.inf, -ends_s)
    for room in dealing.rooms:
        held: dict[int, float] = {}
        for chunk, bytes_of in enumerate(room.bytes_of):
            held |= _weighed(dealing, (room.place + chunk * pp,), bytes_of)
        # In layers of the largest kind.
        rows.add(
            {variable: value / room.largest for variable, value in held.items()},
            -np.inf,
            room.room_bytes / room.largest - SAME,
        )
    for run, stage in product(range(runs - 1), range(stages)):
        flag = stages * kinds + stage * (runs - 1) + run
        this, later = (_layers(dealing, range(stage + 1), of) for of in (run, run + 1))
        rows.add({**this, flag: -float(dealing.counts[run])}, 0.0, np.inf)
        rows.add({**later, flag: -float(dealing.counts[run + 1])}, -np.inf, 0.0)
    if dealing.again:
        _first_again(dealing, rows)
    return rows


def _first_again(dealing: Dealing, rows: _Rows) -> None:
    """Of every virtual stage the first layers run again: one that does not has so many before it that do."""
    stages, runs, kinds = dealing.stages, len(dealing.counts), dealing.kinds
    for stage in range(stages):
        again = {stage * kinds + run: 1.0 for run in range(runs)}
        rows.add(again, 0.0, dealing.again)
        for run in range(runs):
            flag = stages * (kinds + runs - 1) + stage * runs + run
            rows.add({stage * kinds + runs + run: 1.0, flag: -float(dealing.counts[run])}, -np.inf, 0.0)
            before = {stage * kinds + earlier: 1.0 for earlier in range(run + 1)}
            rows.add({**before, flag: -float(dealing.again)}, 0.0, np.inf)


def _layers(dealing: Dealing, stages: Iterable[int], run: int) -> dict[int, float]:
    """Layers of a run on these virtual stages."""
    return {stage * dealing.kinds + kind: 1.0 for stage in stages for kind in dealing.kinds_of(run)}


def _weighed(dealing: Dealing, stages: Iterable[int], each: Sequence[float]) -> dict[int, float]:
    """Layers of all kinds on these virtual stages, ``each`` by kind."""
    return {
        stage * dealing.kinds + kind: value
        for stage in stages
        for kind, value in enumerate(each[: dealing.kinds])
    }


def _solved(dealing: Dealing, rows: _Rows, least: dict[int, float], span: float) -> FloatArray | None:
    """The variables of the deal with the ``least`` of these, whose span is no longer than ``span``."""
    from scipy.optimize import Bounds, milp

    wanted = np.zeros(rows.variables)
    for variable, weight in least.items():
        wanted[variable] = weight
    counts = np.tile(
        np.asarray(dealing.counts, dtype=np.float64), dealing.stages * dealing.kinds // len(dealing.counts)
    )
    flags = np.ones(rows.variables - len(counts) - 2)
    whole = np.append(np.ones(rows.variables - 2), [0.0, 0.0])
    found = milp(
        wanted,
        constraints=rows.constraint(),
        bounds=Bounds(0.0, np.concatenate([counts, flags, [span, np.inf]])),
        integrality=whole,
        options={"mip_rel_gap": 0.0},
    )
    return None if found.x is None else np.asarray(found.x, dtype=np.float64)
