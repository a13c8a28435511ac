"""The look-ups that the seconds of plans depend on: the cases to measure, so that an answer rests on measurements.

A plan is estimated again by the same code, with a cost model that records its queries.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from ops.layout import Layout
from ops.op import Op
from profdb.case_recorder import CaseRecorder
from profdb.cases import Case
from profdb.queries import TimeEstimate
from profdb.store.case_file import WeighedCase
from solver.estimate import Estimate, estimate_memory, step_time
from solver.plans.plan_table import Plan, PlanTable
from solver.problem.problem import Problem
from solver.times.layer_times import layer_times
from solver.times.op_times import OpTimer, TimedOp
from spec.arrays import IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingOpTimer(OpTimer):
    """An OpTimer that adds to ``seconds`` of each case the seconds of the operations that look it up, exposed or
    not."""

    recorder: CaseRecorder
    seconds: dict[Case, float]

    def time(self, op: Op, layout: Layout) -> TimedOp:
        """Returns OpTimer.time, and records the seconds of the operation."""
        self._begin()
        timed = OpTimer.time(self, op, layout)
        self._record(float(timed.seconds.max(initial=0.0)))
        return timed

    def p2p(self, layout: Layout, size_bytes: IntArray) -> TimeEstimate:
        """Returns OpTimer.p2p, and records the seconds of the message."""
        self._begin()
        estimate = OpTimer.p2p(self, layout, size_bytes)
        self._record(float(estimate.seconds.max(initial=0.0)))
        return estimate

    def _begin(self) -> None:
        """Records cases that were looked up outside of an operation (CPU overhead) with their own seconds."""
        for case, one_s in self.recorder.cases.items():
            self.seconds.setdefault(case, one_s)
        self.recorder.cases.clear()

    def _record(self, seconds: float) -> None:
        for case in self.recorder.cases:
            self.seconds[case] = self.seconds.get(case, 0.0) + seconds
        self.recorder.cases.clear()


def look_ups(problem: Problem, plans: Sequence[Plan]) -> list[WeighedCase]:
    """Returns every case that the plans look up, by the seconds of the plan that spends most on it, longest first."""
    heaviest: dict[Case, float] = {}
    for plan in plans:
        for case, seconds in _seconds_by_case(problem, plan).items():
            heaviest[case] = max(seconds, heaviest.get(case, 0.0))
    by_weight = sorted(heaviest.items(), key=lambda one: -one[1])
    return [WeighedCase(case=case, seconds=seconds) for case, seconds in by_weight]


def _seconds_by_case(problem: Problem, plan: Plan) -> dict[Case, float]:
    """Returns for each case the seconds of a step that its operations take, on the stage that runs them most."""
    table = estimate_memory(problem.model, problem.job, PlanTable.of(plan), problem.cluster)
    total: dict[Case, float] = {}
    # Each piece by itself, as stages run it a different number of times.
    for piece, count in zip(table.layers.pieces, _most_runs(table), strict=True):
        op_timer = _recording(problem.op_timer)
        split = table.plans.schedule.traits.splits_backward
        layer_times(op_timer, problem.job, piece, table.layers.layout, split=split)
        for case, seconds in op_timer.seconds.items():
            total[case] = total.get(case, 0.0) + seconds * count
    whole_step = _recording(problem.op_timer)
    step_time(problem.model, problem.job, table, whole_step)
    # Cases that only the whole step looks up are of its end and of messages between stages.
    return whole_step.seconds | total


def _most_runs(table: Estimate) -> list[int]:
    """Returns how often a step runs each piece on the stage that has most of it."""
    stages, micro = table.stages, int(table.plans.num_micro.max())
    counts = (*stages.layers, stages.embedding.astype(np.int64), stages.head.astype(np.int64))
    return [int(np.max(count)) * micro for count in counts]


def _recording(op_timer: OpTimer) -> RecordingOpTimer:
    recorder = CaseRecorder(cost_model=op_timer.cost_model)
    values = {item.name: getattr(op_timer, item.name) for item in fields(OpTimer)} | {"cost_model": recorder}
    return RecordingOpTimer(**values, recorder=recorder, seconds={})
