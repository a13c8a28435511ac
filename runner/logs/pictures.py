"""Pictures of measured steps, for a page: their times, where these go, one step on a time line, bandwidth over size."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch
from matplotlib.path import Path
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from runner.logs.log import size_text
from solver.report.pictures import stacked
from solver.report.sections import Picture
from solver.report.themed_svg import colour, is_narrow, legend, patches, picture, plain_axes

COLOURS = 14
MOST_PIECES = 6000
"""Operations of a time line; a longer step is shown up to here."""
MARKERS = "os^Dv<>ph*"


@dataclass(frozen=True, slots=True)
class Piece:
    """An operation of a step: its row of the time line, its kind, and from when it took how long (ms)."""

    row: str
    kind: str
    start_ms: float
    ms: float


Measured = Mapping[str, Sequence[tuple[int, float, float, float]]]
Predicted = Mapping[str, Sequence[tuple[int, float]]]
"""Bytes and bandwidths of collectives by kind and group; measured ones as (bytes, low, middle, high)."""


def colours_of(kinds: Iterable[str]) -> dict[str, str]:
    """Returns a role of the page's style sheet for each kind, the same in every picture of these kinds."""
    return {kind: f"c{at % COLOURS + 1}" for at, kind in enumerate(sorted(set(kinds)))}


def steps_picture(times_ms: Sequence[float], what: str, predicted_ms: tuple[float, float, float] | None) -> Picture:
    """Returns the times of steps or iterations in their order, with their median, and with a prediction and its interval
    where there is one (low, predicted, high)."""
    median_ms = float(np.median(times_ms))

    def draw(figure: Figure) -> None:
        axes = plain_axes(figure, grid="y")
        if predicted_ms is not None:
            low, middle, high = predicted_ms
            axes.axhspan(low, high, color=colour("c3"), alpha=0.2, linewidth=0, label="80 % interval")
            axes.axhline(middle, color=colour("c3"), linewidth=1.5, label="predicted")
        axes.axhline(median_ms, color=colour("muted"), linewidth=1.2, linestyle="--", label="median")
        size = 4 if len(times_ms) <= 100 else 0
        places = range(1, len(times_ms) + 1)
        axes.plot(places, times_ms, "-o", color=colour("c1"), markersize=size, linewidth=1.4, label=what)
        axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
        axes.set(xlabel=what, ylabel="ms")
        axes.set_ylim(0.0, 1.08 * max(*times_ms, predicted_ms[2] if predicted_ms else 0.0))
        legend(figure, axes.get_legend_handles_labels()[0])

    against = f", predicted {predicted_ms[1]:,.4g} ms" if predicted_ms else ""
    words = (
        f"Times of {len(times_ms)} {what}s: median {median_ms:,.4g} ms, from {min(times_ms):,.4g} to {max(times_ms):,.4g} ms{against}.",
        f"Milliseconds of each {what}.",
    )
    return picture("steps", draw, heights=(300, 280), words=words)


def shares_picture(name: str, bars: Sequence[tuple[str, Mapping[str, float]]], label: str) -> Picture:
    """Returns one bar a step, or a side of a comparison, its kinds of operations one after another."""
    first, pieces = bars[0]
    largest = max(pieces, key=lambda kind: pieces[kind])
    words = (
        f"Stacked bars of {len(bars)} rows; {largest} takes {100 * pieces[largest] / sum(pieces.values()):.0f} % of the first, "
        f"{first}.",
        "Milliseconds by kind of operation.",
    )
    roles = colours_of(kind for _, kinds in bars for kind in kinds)
    return stacked(name, bars, label, words, roles=roles)


def timeline_picture(pieces: Sequence[Piece], of: str) -> Picture:
    """Returns what runs when in one step: a row for computation and each group."""
    shown = pieces[:MOST_PIECES]
    begin_ms = shown[0].start_ms
    end_ms = max(one.start_ms + one.ms for one in shown)
    rows = list(dict.fromkeys(one.row for one in shown))
    roles = colours_of(one.kind for one in shown)

    def draw(figure: Figure) -> None:
        axes = plain_axes(figure, grid="x")
        for kind, role in roles.items():
            boxes = [_box(one.start_ms - begin_ms, one.ms, rows.index(one.row)) for one in shown if one.kind == kind]
            axes.add_patch(PathPatch(Path.make_compound_path(*boxes), facecolor=colour(role), linewidth=0))
        axes.set(xlim=(0.0, end_ms - begin_ms), ylim=(len(rows) - 0.4, -0.6), xlabel="ms", yticks=range(len(rows)))
        axes.set_yticklabels([""] * len(rows) if is_narrow(figure) else rows)
        for at, row in enumerate(rows if is_narrow(figure) else ()):
            axes.text(0, at - 0.36, row, va="bottom", fontsize=10)
        axes.spines["left"].set_visible(False)
        legend(figure, patches({kind.replace("_", " "): role for kind, role in roles.items()}))

    more = f" The first {len(shown):,} of {len(pieces):,} operations." if len(shown) < len(pieces) else ""
    busy = sum(one.ms for one in shown) / (end_ms - begin_ms) if end_ms > begin_ms else 0.0
    words = (
        f"Time line of {of}: {len(shown):,} operations on {len(rows)} rows in {end_ms - begin_ms:,.4g} ms, {100 * busy:.0f} % of it busy.",
        f"What runs when in {of}; a row for computation and for each group.{more}",
    )
    height = 40 * len(rows) + 110
    return picture("timeline", draw, heights=(height, height + 20 * len(roles)), words=words)


def _box(start: float, width: float, row: int) -> Path:
    low, high, end = row - 0.3, row + 0.3, start + width
    return Path(np.array([(start, low), (start, high), (end, high), (end, low), (start, low)]), closed=True)


def bandwidth_picture(measured: Measured, predicted: Predicted, unit: str) -> Picture:
    """Returns bus bandwidth over size for each collective and group, and as predicted."""
    fastest = max(one[-1] for points in measured.values() for one in points)
    words = (
        f"Bus bandwidth over size of {len({**measured, **predicted})} collectives; the fastest reaches {fastest:.3g} {unit}.",
        "Bus bandwidth over the size of a message; a line behind a mark is where measurements lie"
        + (", open marks are predicted." if predicted else "."),
    )
    return over_size("bandwidth", measured, predicted, f"busbw, {unit}", words)


def counts_picture(counts: Mapping[str, Mapping[int, int]]) -> Picture:
    """Returns how many operations there are of each size, for each collective and group."""
    points = {
        name: [(size, float(count), float(count), float(count)) for size, count in sizes.items()]
        for name, sizes in counts.items()
    }
    number = sum(count for sizes in counts.values() for count in sizes.values())
    words = (
        f"Number of operations over size: {number:,} of {len(counts)} kinds.",
        "Number of operations of each size.",
    )
    return over_size("counts", points, {}, "operations", words)


def over_size(name: str, measured: Measured, predicted: Predicted, label: str, words: tuple[str, str]) -> Picture:
    """Returns values over sizes for each collective and group; ``words`` are what it shows, and its caption."""
    names = dict.fromkeys([*measured, *predicted])
    roles = colours_of(names)

    def draw(figure: Figure) -> None:
        axes = plain_axes(figure)
        for at, one in enumerate(names):
            marker = MARKERS[at % len(MARKERS)]
            if spreads := sorted(measured.get(one, ())):
                sizes, lows, middles, highs = zip(*spreads, strict=True)
                axes.vlines(sizes, lows, highs, color=colour(roles[one]), linewidth=3, alpha=0.35)
                axes.plot(sizes, middles, marker, color=colour(roles[one]), markersize=6, label=one)
            if points := sorted(predicted.get(one, ())):
                (line,) = axes.plot(*zip(*points, strict=True), f"{marker}--", markersize=8, linewidth=1.2)
                line.set(color=colour(roles[one]), markerfacecolor="none", label=f"{one}, predicted")
        log_sizes(axes, most=4 if is_narrow(figure) else 8)
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.set(xlabel="size", ylabel=label)
        legend(figure, axes.get_legend_handles_labels()[0])

    return picture(name, draw, heights=(380, 340 + 20 * len(names)), words=words)


def log_sizes(axes: Axes, most: int) -> None:
    """Sets sizes in powers of two below a panel, about ``most`` of them."""
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(LogLocator(base=2, numticks=most))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: size_text(int(value))))
    axes.xaxis.set_minor_locator(NullLocator())
