"""The predicted step as a Chrome trace (chrome://tracing, ui.perfetto.dev): one row a pipeline stage.

Format: Trace Event Format (Google, "Trace Event Format", sections "Complete Events", "Async Events" and
"Metadata Events"), times in microseconds. Passes are complete events: on a stage they follow each other.
Messages between stages overlap, and viewers drop complete events that overlap without nesting, so a message is an
async event, a begin and an end under one id. The pipeline is the solver's replay of the schedule, so the last
event ends with the solver's step; with a zero-bubble schedule, whose stages begin the next step as they
become free, the stage that began first does.
"""

import json
from collections.abc import Iterator

from solver.analysis.timeline import Timeline, num_passes, timeline_of
from solver.pipeline.simulation import KINDS, NONE
from solver.plans.plan_table import Plan
from solver.plans.schedules import TaskKind
from solver.problem.problem import Problem
from spec.errors import ExportError
from workload.settings.launch_file import LaunchText

NAMES = {
    TaskKind.FORWARD: "forward",
    TaskKind.BACKWARD: "backward",
    TaskKind.WEIGHT: "weight gradient",
    TaskKind.WHOLE_BACKWARD: "whole backward",
    TaskKind.PAIR: "beside a backward, forward",
}
# A browser shows a few hundred thousand events; more would be no picture.
MOST_EVENTS = 400_000

Event = dict[str, object]


def trace_text(problem: Problem, plan: Plan) -> LaunchText:
    """The trace of ``plan`` as JSON. Raises ExportError for more than a viewer shows."""
    works = num_passes(plan)
    if works > MOST_EVENTS:
        raise ExportError(f"--export_trace: {works:,} passes are more than the {MOST_EVENTS:,} a trace viewer shows")
    trace = {
        "traceEvents": list(trace_events(problem, plan)),
        "displayTimeUnit": "ms",
        "otherData": {"plan": plan.label()},
    }
    return LaunchText(text=json.dumps(trace) + "\n")


def trace_events(problem: Problem, plan: Plan) -> Iterator[Event]:
    """Names of the model and the rows, the passes and their messages, then reduction, update and gather of each
    stage."""
    timeline = timeline_of(problem, plan)
    yield _named("process_name", 0, f"{problem.model.name}: {plan.label()}")
    for stage in range(plan.pp):
        yield _named("thread_name", stage, f"stage {stage}")
    yield from _passes(timeline)
    for one in timeline.afterwards:
        yield _event(one.what, "step", one.stage, (one.start_s, one.end_s), {})


def _passes(timeline: Timeline) -> Iterator[Event]:
    """Every pass, and both ends of the message that brings what it needs."""
    graph, starts, ends = timeline.graph, timeline.starts_s.tolist(), timeline.ends_s.tolist()
    rows = zip(*(one.tolist() for one in (graph.stage, graph.kind, graph.micro, graph.chunk)), strict=True)
    for index, (stage, kind, micro, chunk) in enumerate(rows):
        name = f"{NAMES[KINDS[kind]]} {micro}"
        marks = {"micro_batch": micro, "chunk": chunk}
        yield _event(name, KINDS[kind].value, stage, (starts[index], ends[index]), marks)
        needs = [row for row in graph.needs[:, index] if row != NONE]
        for number, sent_s in enumerate(ends[row] for row in needs if timeline.p2p_s > 0):
            yield from _hop(2 * index + number, stage, (sent_s, sent_s + timeline.p2p_s), {"of": name, **marks})


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
