"""What no deal of layers over a chain of stages is below, without an integer program: deals that cannot win
are known by it.

Where every stage is one chunk, layers are a row that stages cut: what a stage works, what those before it
work and what it needs follow from where it begins and ends. So the least of the largest span is found stage
by stage over those two (a row cut into intervals: Bellman, Dynamic Programming, 1957, ch. I), in the square
of the layers a stage.
"""

import numpy as np

from solver.refinements.deal_program import Dealing
from spec.arrays import BoolArray, FloatArray, IntArray


def least_chain_span_s(dealing: Dealing, *, spare: float = 0.0) -> float:
    """What the span (Dealing.span_s) of no deal is below that keeps the bounds, of stages of one chunk each;
    infinite where there is no deal. Where layers run again those before a stage count as if they did not,
    which makes it a bound; else it is the very least. ``spare``: by how many layers of its largest kind each
    room is taken to be larger than it is told."""
    assert dealing.vpp == 1, "stages of several chunks are no row of layers"
    held = _between(dealing)
    work_s = held @ np.asarray(dealing.work_s)
    # Of a run's two kinds the one that runs again comes first.
    before_s = held[0].reshape(len(held), -1, len(dealing.counts)).sum(axis=1) @ _lightest_s(dealing)
    ends_before_s = np.cumsum(dealing.ends_s) - dealing.ends_s
    least_s: FloatArray = np.where(np.arange(len(held)) == 0, 0.0, np.inf)
    for stage in range(dealing.pp):
        waits_s = (before_s + ends_before_s[stage]) / dealing.num_micro
        span_s = np.where(
            _allowed(dealing, held, stage, spare), work_s + dealing.ends_s[stage] + waits_s[:, None], np.inf
        )
        least_s = np.maximum(least_s[:, None], span_s).min(axis=0)
    return float(least_s[-1])


def _between(dealing: Dealing) -> IntArray:
    """Layers by kind of a stage that begins behind so many and ends behind so many, of shape (L + 1, L + 1, kinds)."""
    runs = len(dealing.counts)
    of_run = np.repeat(np.arange(runs), dealing.counts)
    before = np.concatenate(
        [np.zeros((1, runs), dtype=np.int64), np.cumsum(np.eye(runs, dtype=np.int64)[of_run], axis=0)]
    )
    layers: IntArray = np.maximum(before[None, :] - before[:, None], 0)
    if dealing.kinds == runs:
        return layers
    earlier = np.cumsum(layers, axis=2) - layers
    again = np.clip(dealing.again - earlier, 0, layers)
    return np.concatenate([again, layers - again], axis=2)


def _lightest_s(dealing: Dealing) -> FloatArray:
    """Seconds of a layer of each run, run again or not, whichever is less."""
    each: FloatArray = np.asarray(dealing.work_s).reshape(-1, len(dealing.counts)).min(axis=0)
    return each


def _allowed(dealing: Dealing, held: IntArray, stage: int, spare: float) -> BoolArray:
    """Where the stage may begin and end, of shape (L + 1, L + 1)."""
    begins, ends = np.indices(held.shape[:2])
    if stage in dealing.without:
        return np.asarray(begins == ends)
    allowed = ends >= begins + (0 if stage in (0, dealing.pp - 1) else 1)
    for room in dealing.rooms:
        if room.place == stage:
            allowed &= held @ np.asarray(room.bytes_of[0]) <= room.room_bytes + spare * room.largest
    return np.asarray(allowed)
