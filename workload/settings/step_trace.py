"""The predicted step as a Chrome trace (chrome://tracing, ui.perfetto.dev): one row a pipeline stage.

Format: Trace Event Format (Google, "Trace Event Format", sections "Complete Events", "Async Events" and
"Metadata Events"), times in microseconds. Passes are complete events: on a stage they follow each other.
Messages between stages overlap, and viewers drop complete events that overlap without nesting, so a hop is
an async event, a begin and an end under one id. The pipeline is the solver's replay of the schedule, so the last event ends with the solver's step; with a zero-bubble schedule,
whose stages begin the next step as they become free, the stage that began first does.
"""

import json
from collections.abc import Iterator

import numpy as np

from solver.pipeline.program import program, starts_and_ends
from solver.pipeline.spans import chunk_times
from solver.plans.plan_table import Plan, PlanTable
from solver.price import Sized, StageSeconds, sized, stage_seconds
from solver.question import Question
from solver.schedules.work import Kind
from spec.arrays import FloatArray, IntArray, ints
from spec.errors import ExportError
from workload.settings.launch_text import LaunchText

NAMES = {
    Kind.FORWARD: "forward",
    Kind.BACKWARD: "backward",
    Kind.WEIGHT: "weight gradient",
    Kind.WHOLE_BACKWARD: "whole backward",
    Kind.PAIR: "beside a backward, forward",
}
# A browser shows a few hundred thousand events; more would be no picture.
MOST_EVENTS = 400_000

Event = dict[str, object]


def trace_text(question: Question, plan: Plan) -> LaunchText:
    """The trace of ``plan`` as JSON. Raises ExportError for more than a viewer shows."""
    works = plan.pp * plan.vpp * plan.num_micro * (3 if plan.schedule.splits_backward else 2)  # at most
    if works > MOST_EVENTS:
        raise ExportError(
            f"--export_trace: {works:,} passes are more than the {MOST_EVENTS:,} a trace viewer shows"
        )
    trace = {
        "traceEvents": list(trace_events(question, plan)),
        "displayTimeUnit": "ms",
        "otherData": {"plan": plan.label()},
    }
    return LaunchText(text=json.dumps(trace) + "\n")


def trace_events(question: Question, plan: Plan) -> Iterator[Event]:
    """Names of the model and the rows, the passes and their hops, then reduction, update and gather of each
    stage."""
    table = sized(question.model, question.job, PlanTable.of(plan))
    timed = stage_seconds(question.model, question.job, table, question.pricer)
    per_stage = ints(np.repeat(np.arange(len(table.stages.plan)), table.stages.count))
    yield _named("process_name", 0, f"{question.model.name}: {plan.label()}")
    for stage in range(plan.pp):
        yield _named("thread_name", stage, f"stage {stage}")
    ended = np.zeros(plan.pp)
    began = np.full(plan.pp, np.inf)
    for event, stage, start_s, end_s in _passes(plan, timed, per_stage, table.stages.chunk_starts):
        yield event
        ended[stage] = max(ended[stage], end_s)
        began[stage] = min(began[stage], start_s)
    if not plan.schedule.updates_apart:
        began[:] = 0.0
    yield from _afterwards(table, timed, per_stage, (began, ended))


def _passes(
    plan: Plan, timed: StageSeconds, per_stage: IntArray, chunk_starts: IntArray
) -> Iterator[tuple[Event, int, float, float]]:
    """Every pass with its stage, start and end (seconds), and both ends of the hop that brings what it needs."""
    # The chunks of a stage's row follow each other.
    chunks = np.arange(plan.schedule.route.chunks(plan.vpp))
    rows = chunk_starts[per_stage][:, None, None] + chunks[None, :, None]
    times = chunk_times(plan.schedule, timed.chunk_passes.take(rows), timed.hops)
    instructions = program(plan.schedule, (plan.pp, plan.vpp, plan.num_micro), waited=times.waited)
    starts, ends = starts_and_ends(instructions, times)
    for index, one in enumerate(instructions):
        start_s, end_s = float(starts[index, 0]), float(ends[index, 0])
        name = f"{NAMES[one.kind]} {one.micro}"
        marks = {"micro_batch": one.micro, "chunk": one.chunk}
        yield _event(name, one.kind.value, one.stage, (start_s, end_s), marks), one.stage, start_s, end_s
        hop_s = float(timed.hops.seconds[0])
        for number, (needed, hops) in enumerate(one.needs):
            if hops and hop_s > 0:
                sent_s = float(ends[needed, 0])
                told = {"of": name, **marks}
                for event in _hop(2 * index + number, one.stage, (sent_s, sent_s + hop_s), told):
                    yield event, one.stage, start_s, end_s


def _afterwards(
    table: Sized, timed: StageSeconds, per_stage: IntArray, bounds: tuple[FloatArray, FloatArray]
) -> Iterator[Event]:
    """What no pass hides. No stage updates before the last is ready: the gradient norm is global."""
    began, ended = bounds
    step = timed.step
    reduced = ended + step.reduction.seconds[per_stage]
    ready_s = float((reduced - began).max())
    for stage in range(len(per_stage)):
        row = per_stage[stage]
        at = float(began[stage]) + ready_s
        for name, start, seconds in (
            ("gradient reduction, not hidden", float(ended[stage]), float(step.reduction.seconds[row])),
            ("optimizer update", at, float(step.update.seconds[row])),
            (
                "parameter gather, not hidden",
                at + float(step.update.seconds[row]),
                float(step.gather.seconds[row]),
            ),
        ):
            if seconds > 0:
                yield _event(name, "step", stage, (start, start + seconds), {})


def _named(what: str, row: int, name: str) -> Event:
    return {"name": what, "ph": "M", "pid": 0, "tid": row, "args": {"name": name}}


def _hop(number: int, stage: int, span_s: tuple[float, float], marks: dict[str, object]) -> Iterator[Event]:
    """Begin and end of a message to ``stage``; viewers put events of one name on neighbouring rows."""
    for phase, at_s in zip("be", span_s, strict=True):
        yield {
            "name": f"to stage {stage}",
            "cat": "hop",
            "ph": phase,
            "id": number,
            "ts": at_s * 1e6,
            "pid": 0,
            "tid": stage,
            "args": marks if phase == "b" else {},
        }


def _event(name: str, kind: str, row: int, span_s: tuple[float, float], marks: dict[str, int]) -> Event:
    start_s, end_s = span_s
    return {
        "name": name,
        "cat": kind,
        "ph": "X",
        "ts": start_s * 1e6,
        "dur": (end_s - start_s) * 1e6,
        "pid": 0,
        "tid": row,
        "args": dict(marks),
    }
