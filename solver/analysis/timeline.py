"""The step of one plan as it runs: every pass of every pipeline stage, and what no pass hides.

The passes are those of the replay that prices the plan (solver.pipeline.simulation).
"""

from dataclasses import dataclass

import numpy as np

from solver.estimate import Estimate, StageTimes, estimate_memory, stage_times
from solver.pipeline.simulation import Instruction, starts_and_ends, task_graph
from solver.pipeline.spans import chunk_times
from solver.plans.plan_table import Plan, PlanTable
from solver.problem.problem import Problem
from spec.arrays import FloatArray, IntArray, ints

AFTER_PASSES = ("gradient reduction, not hidden", "optimizer update", "parameter gather, not hidden")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEndWork:
    """Work of one ``stage`` after its passes, one of AFTER_PASSES, from ``start_s`` to ``end_s``."""

    what: str
    stage: int
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """A step from its first work on: ``instructions`` with their ``starts_s`` and ``ends_s`` (one of each for every
    instruction), a message between stages takes ``p2p_s``; then ``afterwards``, of stages in order."""

    stages: int
    instructions: tuple[Instruction, ...]
    starts_s: FloatArray
    ends_s: FloatArray
    p2p_s: float
    afterwards: tuple[StepEndWork, ...]


def num_passes(plan: Plan) -> int:
    """Passes of a plan's step, at most: what a timeline of it holds."""
    return plan.pp * plan.vpp * plan.num_micro * (3 if plan.schedule.splits_backward else 2)


def timeline_of(problem: Problem, plan: Plan) -> Timeline:
    """Simulates the step of ``plan``, before any calibration."""
    table = estimate_memory(problem.model, problem.job, PlanTable.of(plan))
    timed = stage_times(problem.model, problem.job, table, problem.op_timer)
    per_stage = ints(np.repeat(np.arange(len(table.stages.plan)), table.stages.count))
    # The chunks of a stage's row follow each other.
    chunks = np.arange(plan.schedule.placement.chunks(plan.vpp))
    rows = table.stages.chunk_starts[per_stage][:, None, None] + chunks[None, :, None]
    times = chunk_times(plan.schedule, timed.chunk_passes.take(rows), timed.p2p)
    played = task_graph(plan.schedule, (plan.pp, plan.vpp, plan.num_micro), blocking=times.blocking)
    starts, ends = (one[:, 0] for one in starts_and_ends(played, times))
    began, ended = np.full(plan.pp, np.inf), np.zeros(plan.pp)
    np.minimum.at(began, played.stage, starts)
    np.maximum.at(ended, played.stage, ends)
    if not times.post_validation:
        began[:] = 0.0
    return Timeline(
        stages=plan.pp,
        instructions=played.instructions(),
        starts_s=starts,
        ends_s=ends,
        p2p_s=float(times.p2p_s[0]),
        afterwards=_afterwards(table, timed, per_stage, (began, ended)),
    )


def _afterwards(
    table: Estimate, timed: StageTimes, per_stage: IntArray, bounds: tuple[FloatArray, FloatArray]
) -> tuple[StepEndWork, ...]:
    """Returns what no pass hides. No stage updates before the last is ready: the gradient norm is global."""
    began, ended = bounds
    step = timed.step
    reduced = ended + step.reduction.seconds[per_stage]
    ready_s = float((reduced - began).max())
    work = []
    for stage, row in enumerate(per_stage):
        at = float(began[stage]) + ready_s
        update_s = float(step.update.seconds[row])
        starts = (float(ended[stage]), at, at + update_s)
        seconds = (float(step.reduction.seconds[row]), update_s, float(step.gather.seconds[row]))
        work += [
            StepEndWork(what=what, stage=stage, start_s=start, end_s=start + lasts_s)
            for what, start, lasts_s in zip(AFTER_PASSES, starts, seconds, strict=True)
            if lasts_s > 0
        ]
    return tuple(work)
