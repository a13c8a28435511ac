"""What a stage's span is never below, without a replay: its own work, and around it the first micro-batch's way to
the stage and the last one's way back."""

import numpy as np

from solver.pipeline.pass_times import PassTimes
from solver.pipeline.spans import Hops
from solver.pipeline.stages import StageTable
from solver.plans.plan_table import PlanTable
from spec.arrays import FloatArray, IntArray


def least_spans_s(
    plans: PlanTable, stages: StageTable, passes: PassTimes, hops: Hops, busy_s: FloatArray
) -> FloatArray:
    """Seconds that the span of each stage row (solver.pipeline.spans.stage_spans_s) takes at least; ``busy_s`` is the
    row's own work of a step, ``passes`` has a row for every chunk.

    Where stages follow each other round and round and backwards are whole: a stage begins when the first chunks of
    those before it have passed a micro-batch on, its last work is a backward, and the first chunks of those before
    it still have to run theirs. With equal stages and free hops that is (m + (p - 1) / v) (f + b) of the first stage
    (arXiv 2104.04473 sec. 2.2). Other schedules: the stage's own work.
    """
    if plans.schedule.route.turns or plans.schedule.splits_backward:
        return busy_s
    first = passes.take(stages.chunk_starts)
    hop_s = hops.seconds[stages.plan]
    # To the last stage of a row's class: that one waits longest and leaves most to be done.
    fill_s = _before(first.forward_s, stages) + (stages.count - 1) * first.forward_s
    drain_s = _before(first.backward_s, stages) + (stages.count - 1) * first.backward_s
    crossed_s = (stages.position + stages.count - 1) * hop_s
    through_s = np.maximum.reduceat(fill_s + drain_s + 2.0 * crossed_s + busy_s, stages.starts)
    own_s = _before(first.forward_s, stages) + stages.position * hop_s + busy_s
    return np.where(stages.position == 0, through_s[stages.plan], own_s)


def _before(seconds: FloatArray, stages: StageTable) -> FloatArray:
    """Sum over all stages of the plan before those of each row."""
    of_row = seconds * stages.count
    total = np.cumsum(of_row) - of_row
    first: IntArray = stages.starts[stages.plan]
    return np.asarray(total - total[first], dtype=np.float64)
