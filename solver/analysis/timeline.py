"""The step of one plan as a timeline: every pass of every pipeline stage, and the exposed work at the end of the step.

The passes are those of the simulation that the estimate uses (solver.pipeline.simulation).
"""

from dataclasses import dataclass

import numpy as np

from solver.estimate import StageTimes, estimate_memory, stage_times
from solver.pipeline.simulation import TaskGraph, starts_and_ends, task_graph
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
    """A step from its first task on: the passes of ``graph`` with their ``starts_s`` and ``ends_s``, the seconds
    ``p2p_s`` of a message between stages, and the work ``afterwards``, by stage."""

    graph: TaskGraph
    starts_s: FloatArray
    ends_s: FloatArray
    p2p_s: float
    afterwards: tuple[StepEndWork, ...]


def num_passes(plan: Plan) -> int:
    """Returns the most passes that a timeline of the plan has."""
    return plan.pp * plan.vpp * plan.num_micro * (3 if plan.schedule.traits.splits_backward else 2)


def timeline_of(problem: Problem, plan: Plan) -> Timeline:
    """Returns the simulated step of ``plan``, before any calibration."""
    table = estimate_memory(problem.model, problem.job, PlanTable.of(plan))
    stage_seconds = stage_times(problem.model, problem.job, table, problem.op_timer)
    # The stage row of every stage, and the chunk rows of a stage, which follow each other.
    per_stage = ints(np.repeat(np.arange(len(table.stages.plan)), table.stages.count))
    chunks = np.arange(plan.schedule.placement.directions * plan.vpp)
    rows = table.stages.chunk_starts[per_stage][:, None, None] + chunks[None, :, None]
    times = chunk_times(plan.schedule, stage_seconds.chunk_passes.take(rows), stage_seconds.p2p)
    graph = task_graph(plan.schedule, (plan.pp, plan.vpp, plan.num_micro), blocking=times.blocking)
    starts, ends = (one[:, 0] for one in starts_and_ends(graph, times))
    # By stage: its first start and its last end. Without post-validation every stage's step starts at 0.
    first_s, last_s = np.full(plan.pp, np.inf), np.zeros(plan.pp)
    np.minimum.at(first_s, graph.stage, starts)
    np.maximum.at(last_s, graph.stage, ends)
    if not times.post_validation:
        first_s[:] = 0.0
    return Timeline(
        graph=graph,
        starts_s=starts,
        ends_s=ends,
        p2p_s=float(times.p2p_s[0]),
        afterwards=_afterwards(stage_seconds, per_stage, (first_s, last_s)),
    )


def _afterwards(
    stage_seconds: StageTimes, per_stage: IntArray, bounds: tuple[FloatArray, FloatArray]
) -> tuple[StepEndWork, ...]:
    """Returns the exposed work after the passes of every stage. No stage updates before the last one is ready, as the
    gradient norm is global."""
    first_s, last_s = bounds
    step = stage_seconds.step
    ready_s = float((last_s + step.reduction.seconds[per_stage] - first_s).max())
    work = []
    for stage, row in enumerate(per_stage):
        at = float(first_s[stage]) + ready_s
        update_s = float(step.update.seconds[row])
        starts = (float(last_s[stage]), at, at + update_s)
        seconds = (float(step.reduction.seconds[row]), update_s, float(step.gather.seconds[row]))
        work += [
            StepEndWork(what=what, stage=stage, start_s=start, end_s=start + lasts_s)
            for what, start, lasts_s in zip(AFTER_PASSES, starts, seconds, strict=True)
            if lasts_s > 0
        ]
    return tuple(work)
