"""What no deal of a plan's layers over its stages ends sooner than, however they are dealt."""

from dataclasses import dataclass

import numpy as np

from solver.contest import Entrants, Pipeline
from solver.estimate import least_ends_s, steps_s
from solver.pipeline.least_spans import least_spans_s
from solver.pipeline.spans import Hops
from solver.plans.plan_table import PlanTable
from solver.question import Question
from solver.refinements.stage_room import StageRooms
from spec.arrays import FloatArray, IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class DealBounds:
    """Of every plan as the rule deals it: a bound below its step, one if all its stages were equally busy, what a
    micro-batch takes at least, and seconds of its pieces, of shape (pieces, N)."""

    least_s: FloatArray
    balanced_s: FloatArray
    span_s: FloatArray
    pieces_s: FloatArray

    @staticmethod
    def of(one: Entrants, pipeline: Pipeline) -> "DealBounds":
        """Bounds, also of plans whose pipelines were played: what was played must not decide what is dealt."""
        plans, stages, timed = one.table.plans, one.table.stages, pipeline.timed
        busy_s = timed.per_micro.seconds
        mean_s = np.add.reduceat(busy_s * stages.count, stages.starts) / plans.layout.pp
        spared_s = (np.maximum.reduceat(busy_s, stages.starts) - mean_s) * plans.num_micro
        free = Hops(seconds=np.zeros_like(timed.hops.seconds))
        total_s = busy_s * plans.num_micro[stages.plan]
        spans_s = least_spans_s(plans, stages, timed.chunk_passes, free, total_s)
        least_s = steps_s(one.table, timed, least_ends_s(one.table, timed))
        return DealBounds(
            least_s=least_s,
            balanced_s=np.where(plans.layout.pp > 1, least_s - spared_s, np.inf),
            span_s=np.maximum.reduceat(spans_s, stages.starts) / plans.num_micro,
            pieces_s=np.stack([each.forward.seconds + each.backward.seconds for each in timed.pieces])[
                :, one.table.layers.row
            ],
        )

    def take(self, rows: IntArray) -> "DealBounds":
        """The plans asked for."""
        return DealBounds(
            least_s=self.least_s[rows],
            balanced_s=self.balanced_s[rows],
            span_s=self.span_s[rows],
            pieces_s=self.pieces_s[:, rows],
        )

    def bound_s(self, question: Question, rooms: StageRooms, plans: PlanTable) -> FloatArray:
        """A bound below the step of every one of ``plans`` however layers of its longest run are dealt within
        ``rooms``.
        """
        runs = question.model.blocks
        dealt = [run.count for run in runs if not run.block.mtp]
        most = int(np.argmax(dealt))
        kind = [at for at, run in enumerate(runs) if not run.block.mtp][most]
        plain = kind + (len(self.pieces_s) - 2) // 2 - len(runs)
        again = plans.num_recompute_layers * plans.vpp
        each_s = self.pieces_s[(len(self.pieces_s) - 2) // 2 - len(runs) :]
        predicted_s = sum(run.count * each_s[at] for at, run in enumerate(runs) if run.block.mtp)
        seconds = np.stack([*self.pieces_s[[kind, plain, -2, -1]], predicted_s + 0.0 * self.least_s])
        span_s = rooms.least_span_s(most, dealt[most], again, seconds)
        with_rooms_s = self.least_s + (span_s - self.span_s) * plans.num_micro
        return np.maximum(self.balanced_s, with_rooms_s)
