"""The picture of a sweep: throughput by number of GPUs, or one bar a question."""

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

from solver.analysis.sweep import SweepOutcome, tokens_per_s
from solver.report.pictures import stacked
from solver.report.sections import Picture
from solver.report.themed_svg import colour, is_narrow, legend, patches, picture

MOST_SERIES = 8
MOST_BARS = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """GPUs, tokens per second of all of them, tokens per second of each."""

    gpus: int
    tokens_per_s: float
    tgs: float


def scaling_picture(rows: Sequence[SweepOutcome]) -> Picture | None:
    """Returns curves if the world size varies, bars if something else does; None where
    nothing fits."""
    curves = {name: points for name, points in series_of(rows).items() if len(points) > 1}
    if curves:
        return _curves(dict(list(curves.items())[:MOST_SERIES]))
    bars = [(row_words(one), one.row.answer.tgs) for one in rows if one.row.answer is not None]
    return _bars(bars[:MOST_BARS]) if bars else None


def series_of(rows: Sequence[SweepOutcome]) -> dict[str, list[Point]]:
    """Returns questions that differ in their number of GPUs alone, by what they share in words."""
    series: dict[str, list[Point]] = {}
    for outcomes in sorted(rows, key=lambda outcomes: outcomes.row.inputs.problem.job.world_size):
        if outcomes.row.answer is None:
            continue
        name = row_words(outcomes, rows_apart=("world_size",)) or "best plan"
        point = Point(
            gpus=outcomes.row.inputs.problem.job.world_size,
            tokens_per_s=tokens_per_s(outcomes.row),
            tgs=outcomes.row.answer.tgs,
        )
        series.setdefault(name, []).append(point)
    return series


def row_words(one: SweepOutcome, rows_apart: Sequence[str] = ()) -> str:
    """Returns the values that a question has of what is varied."""
    return ", ".join(
        f"{value:,}" if isinstance(value, int) else str(value)
        for key, value in one.row.values.items()
        if key not in rows_apart
    )


def _curves(curves: dict[str, list[Point]]) -> Picture:
    roles = {name: f"c{at}" for at, name in enumerate(curves, start=1)}
    worlds = sorted({point.gpus for points in curves.values() for point in points})

    def draw(figure: Figure) -> None:
        shape = (2, 1) if is_narrow(figure) else (1, 2)
        whole, each = figure.subplots(*shape)
        for name, points in curves.items():
            gpus = [point.gpus for point in points]
            whole.plot(gpus, [point.tokens_per_s for point in points], "-o", color=colour(roles[name]))
            ideal = [points[0].tgs * point.gpus for point in points]
            whole.plot(gpus, ideal, "--", color=colour("muted"), linewidth=1.0)
            each.plot(gpus, [point.tgs for point in points], "-o", color=colour(roles[name]))
        whole.set_yscale("log")
        whole.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        whole.yaxis.set_minor_locator(NullLocator())
        whole.set_ylabel("tokens/s (dashed: as the fewest GPUs)")
        each.set_ylim(0, 1.08 * max(point.tgs for points in curves.values() for point in points))
        each.set_ylabel("tokens/s of a GPU")
        for axes in (whole, each):
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
            _gpus_axis(axes, worlds, most=5 if is_narrow(figure) else 8)
        legend(figure, patches(roles))

    first, last = worlds[0], worlds[-1]
    words = (
        f"Throughput from {first:,} to {last:,} GPUs, of all GPUs and of each, for {len(curves)} series. The table has the figures.",
        "The best plan for each number of GPUs; dashed: the throughput of the fewest GPUs times their number.",
    )
    return picture("scaling", draw, heights=(380, 640), words=words)


def _gpus_axis(axes: Axes, worlds: Sequence[int], most: int) -> None:
    axes.set_xscale("log", base=2)
    axes.tick_params(length=0)
    every = -(-len(worlds) // most)
    axes.xaxis.set_major_locator(FixedLocator([float(world) for world in worlds[::every]]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("GPUs")


def _bars(bars: Sequence[tuple[str, float]]) -> Picture:
    best = max(bars, key=lambda one: one[1])
    words = (
        f"Bars of tokens per GPU and second for {len(bars)} questions; {best[0]} has most, {best[1]:,.0f}. The table has the figures.",
        "Tokens per second of a GPU, by what was varied.",
    )
    label = "tokens/s of a GPU"
    return stacked("scaling", [(name, {label: tgs}) for name, tgs in bars], label, words)
