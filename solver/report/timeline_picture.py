"""The picture of a pipeline: what every stage runs when, as a step fills and drains."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch
from matplotlib.path import Path

from solver.analysis.timeline import AFTER_PASSES, Timeline, num_passes, timeline_of
from solver.pipeline.simulation import KINDS
from solver.plans.plan_table import Plan
from solver.plans.schedules import TaskKind
from solver.problem.problem import Problem
from solver.report.sections import Picture
from solver.report.themed_svg import colour, is_narrow, legend, numbers_across, patches, picture
from spec.units import seconds_to_ms

ROLES: Mapping[str, tuple[str, str]] = {
    TaskKind.FORWARD: ("forward", "c1"),
    TaskKind.BACKWARD: ("backward", "c3"),
    TaskKind.WEIGHT: ("weight gradient", "c4"),
    TaskKind.WHOLE_BACKWARD: ("whole backward", "c7"),
    TaskKind.PAIR: ("forward overlapping a backward", "c13"),
    **dict(
        zip(AFTER_PASSES, ((AFTER_PASSES[0], "c5"), (AFTER_PASSES[1], "c12"), (AFTER_PASSES[2], "c9")), strict=True)
    ),
}
MAX_PASSES = 120_000
"""Passes simulated for a picture; a longer step is shown with fewer micro-batches, as its middle repeats."""

ROW_PIXELS, LEAST_ROW, MOST_ROW = 260, 7, 22
PANEL_PASSES = {False: 130, True: 44}
"""Passes of a stage that a panel has room for, by whether the page is narrow."""

LABEL_PIXELS = 15.0
EVEN, ODD = 1.0, 0.66
"""Opacity of passes of even and of odd chunks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A piece of work: which stage, of which kind, from when to when (ms), for which micro-batch and chunk
    (-1: none).
    """

    stage: int
    kind: str
    start_ms: float
    end_ms: float
    micro: int = -1
    chunk: int = 0


def shortened_plan(plan: Plan) -> Plan:
    """Returns the plan, with fewer micro-batches (whole rounds of the pipeline) if it has more than MAX_PASSES passes."""
    passes = num_passes(plan)
    if passes <= MAX_PASSES:
        return plan
    rounds = max(plan.num_micro * MAX_PASSES // passes // (2 * plan.pp), 2)
    return replace(plan, num_micro=2 * plan.pp * rounds)


def timeline_picture(problem: Problem, plan: Plan) -> Picture:
    """Returns the first and the last part of the step on every stage; the plan has more than one."""
    short_plan = shortened_plan(plan)
    boxes = list(boxes_of(timeline_of(problem, short_plan)))
    end_ms = max(one.end_ms for one in boxes)
    window_ms = _window_ms(boxes, short_plan)

    def draw(figure: Figure) -> None:
        share = min(1.0, PANEL_PASSES[True] / PANEL_PASSES[False] if is_narrow(figure) else 1.0)
        width = share * window_ms
        spans = [(0.0, end_ms)] if width > 0.6 * end_ms else [(0.0, width), (end_ms - width, end_ms)]
        for axes, span in zip(np.ravel(figure.subplots(len(spans), 1)), spans, strict=True):
            _panel(figure, axes, boxes, span, plan.pp)
        kinds = dict.fromkeys(one.kind for one in boxes)
        legend(figure, patches(dict(ROLES[kind] for kind in ROLES if kind in kinds)))

    row = min(max(ROW_PIXELS // plan.pp, LEAST_ROW), MOST_ROW)
    height = 2 * (row * plan.pp + 60) + 60
    busy = sum(one.end_ms - one.start_ms for one in boxes) / (plan.pp * end_ms)
    fewer = (
        f" Drawn with {short_plan.num_micro:,} of its {plan.num_micro:,} micro-batches: the middle repeats."
        if short_plan is not plan
        else ""
    )
    words = (
        f"Timeline of {plan.pp} pipeline stages: the first and the last of {short_plan.num_micro:,} micro-batches; "
        f"the stages work {100 * busy:.0f} % of the time and wait for each other in the rest.",
        "What each stage runs as the step begins and as it ends; numbers are micro-batches, odd chunks have a shade of their own, gaps are the "
        f"bubble.{fewer}",
    )
    return picture("timeline", draw, heights=(height, height + 60), words=words)


def boxes_of(timeline: Timeline) -> Iterator[Box]:
    """Returns every piece of work of a step."""
    graph = timeline.graph
    columns = (graph.stage, graph.kind, graph.micro, graph.chunk, timeline.starts_s, timeline.ends_s)
    for stage, kind, micro, chunk, start_s, end_s in zip(*(one.tolist() for one in columns), strict=True):
        span = (seconds_to_ms(start_s), seconds_to_ms(end_s))
        yield Box(stage=stage, kind=KINDS[kind], start_ms=span[0], end_ms=span[1], micro=micro, chunk=chunk)
    for after in timeline.afterwards:
        span = (seconds_to_ms(after.start_s), seconds_to_ms(after.end_s))
        yield Box(stage=after.stage, kind=after.what, start_ms=span[0], end_ms=span[1])


def _window_ms(boxes: Sequence[Box], plan: Plan) -> float:
    """Milliseconds of a panel: until the first stage's first backward has ended and a little longer, or as
    many passes as there is room for where that is longer or much shorter."""
    passes = [one for one in boxes if one.stage == 0 and one.micro >= 0]
    each_ms = sum(one.end_ms - one.start_ms for one in passes) / len(passes)
    turned_ms = min(one.end_ms for one in passes if one.kind != TaskKind.FORWARD)
    return min(max(1.3 * turned_ms, 40 * each_ms), PANEL_PASSES[False] * each_ms)


def _panel(figure: Figure, axes: Axes, boxes: Sequence[Box], span: tuple[float, float], stages: int) -> None:
    visible = [one for one in boxes if one.end_ms > span[0] and one.start_ms < span[1]]
    by_look: dict[tuple[str, float], list[Box]] = {}
    for one in visible:
        by_look.setdefault((ROLES[one.kind][1], ODD if one.chunk % 2 else EVEN), []).append(one)
    for (role, opacity), alike in by_look.items():
        outline = Path.make_compound_path(*(_rectangle(one, span) for one in alike))
        axes.add_patch(
            PathPatch(outline, facecolor=colour(role), edgecolor=colour("surface"), linewidth=0.5, alpha=opacity)
        )
    axes.set(xlim=span, ylim=(stages + 0.5, 0.5), xlabel="ms", ylabel="stage")
    axes.grid(visible=False)
    axes.tick_params(length=0)
    numbers_across(figure, axes)
    step = max(1, -(-stages // 16))
    axes.set_yticks(range(1, stages + 1, step))
    pixels = 72.0 * figure.get_figwidth() * 0.9 / (span[1] - span[0])
    for one in visible:
        middle = (one.start_ms + one.end_ms) / 2
        if one.micro >= 0 and (one.end_ms - one.start_ms) * pixels > LABEL_PIXELS and span[0] < middle < span[1]:
            axes.text(
                middle,
                one.stage + 1,
                f"{one.micro + 1}",
                ha="center",
                va="center",
                fontsize=9,
                color=colour("surface"),
                clip_on=True,
            )


def _rectangle(one: Box, span: tuple[float, float]) -> Path:
    left, right = max(one.start_ms, span[0]), min(one.end_ms, span[1])
    top, bottom = one.stage + 0.58, one.stage + 1.42
    corners = [(left, top), (right, top), (right, bottom), (left, bottom), (left, top)]
    return Path(np.array(corners), closed=True)
