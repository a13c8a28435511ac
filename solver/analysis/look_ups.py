"""The look-ups that the seconds of plans hang on: the cases to measure, so that an answer is measured.

A plan is priced again by the same lines as ever, with a cost model that notes what it is asked.
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
    """Prices as any, and adds to ``seconds`` of each case what the operation that asks for it takes on its device,
    hidden or not."""

    recorder: CaseRecorder
    seconds: dict[Case, float]

    def time(self, op: Op, layout: Layout) -> TimedOp:
        """Prices one operation (OpTimer.time) and weigh what it asked for."""
        self._begin()
        timed = OpTimer.time(self, op, layout)
        self._weigh(float(timed.seconds.max(initial=0.0)))
        return timed

    def p2p(self, layout: Layout, size_bytes: IntArray) -> TimeEstimate:
        """Prices a message between stages (OpTimer.p2p) and weigh it."""
        self._begin()
        priced = OpTimer.p2p(self, layout, size_bytes)
        self._weigh(float(priced.seconds.max(initial=0.0)))
        return priced

    def _begin(self) -> None:
        """Returns what was asked outside of an operation (the host's costs) weighs its own seconds."""
        for case, one_s in self.recorder.cases.items():
            self.seconds.setdefault(case, one_s)
        self.recorder.cases.clear()

    def _weigh(self, seconds: float) -> None:
        for case in self.recorder.cases:
            self.seconds[case] = self.seconds.get(case, 0.0) + seconds
        self.recorder.cases.clear()


def look_ups(problem: Problem, plans: Sequence[Plan]) -> list[WeighedCase]:
    """Returns every case that the plans ask for, heaviest first by the plan that takes longest for it."""
    heaviest: dict[Case, float] = {}
    for plan in plans:
        for case, seconds in _seconds_by_case(problem, plan).items():
            heaviest[case] = max(seconds, heaviest.get(case, 0.0))
    ordered = sorted(heaviest.items(), key=lambda one: -one[1])
    return [WeighedCase(case=case, seconds=seconds) for case, seconds in ordered]


def _seconds_by_case(problem: Problem, plan: Plan) -> dict[Case, float]:
    """Seconds of a step that the stage which runs it most spends in what asks for each case."""
    table = estimate_memory(problem.model, problem.job, PlanTable.of(plan), problem.cluster)
    total: dict[Case, float] = {}
    for piece, count in zip(table.layers.pieces, _most_runs(table), strict=True):
        op_timer = _noting(problem.op_timer)
        split = table.plans.schedule.splits_backward
        layer_times(op_timer, problem.job, piece, table.layers.layout, split=split)
        for case, seconds in op_timer.seconds.items():
            total[case] = total.get(case, 0.0) + seconds * count
    once = _noting(problem.op_timer)
    step_time(problem.model, problem.job, table, once)
    # what comes up only here is of the step's end and of messages between stages
    return once.seconds | total


def _most_runs(table: Estimate) -> list[int]:
    """Returns how often a step runs each piece on the stage that has most of it."""
    stages, micro = table.stages, int(table.plans.num_micro.max())
    counts = (*stages.layers, stages.embedding.astype(np.int64), stages.head.astype(np.int64))
    return [int(np.max(count)) * micro for count in counts]


def _noting(op_timer: OpTimer) -> RecordingOpTimer:
    recorder = CaseRecorder(cost_model=op_timer.cost_model)
    values = {item.name: getattr(op_timer, item.name) for item in fields(OpTimer)} | {"cost_model": recorder}
    return RecordingOpTimer(**values, recorder=recorder, seconds={})
