"""Pictures of plans: where their steps go, step against memory, what every stage holds."""

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from solver.analysis.explanation import StageMemory, memory_terms
from solver.problem.result import Answer
from solver.report.plans import PART_WORDS
from solver.report.sections import Picture
from solver.report.themed_svg import colour, is_narrow, legend, patches, picture, plain_axes, shorten
from spec.settings.constraints import HEADROOM
from spec.units import bytes_to_gib, seconds_to_ms

ROLES = {part: f"c{at}" for at, part in enumerate(PART_WORDS, start=1)} | {
    "parameters": "c1",
    "narrow_weights": "c2",
    "gradients": "c4",
    "activations": "c3",
    "logits": "c5",
    "working": "c6",
    "weight_pool": "c7",
    "bucket": "c8",
    "step": "c9",
    "slack": "c11",
    "nccl": "c13",
    "context": "c14",
}
"""The colour of each part of a step and of each term of memory, by solver.report.themed_svg; another term has c10."""
MOST_BARS = 10
LEAST_SHARE = 0.002
"""Of a bar; thinner ones are in the tables."""


def breakdown_picture(answers: Sequence[Answer]) -> Picture:
    """Returns one bar a plan, the parts of its step one after another, in ms."""
    shown = answers[:MOST_BARS]
    best = shown[0]
    largest = max(PART_WORDS, key=lambda part: best.mean_parts_s[part])
    share = 100 * best.mean_parts_s[largest] / best.step_s
    words = (
        f"Stacked bars of the step's parts of {len(shown)} plans; {PART_WORDS[largest]} take {share:.0f} % of the best "
        f"one's {seconds_to_ms(best.step_s):.1f} ms. The table below has the figures.",
        "Parts of the step of all GPUs on average, by plan.",
    )
    bars = [
        (f"{place}  {one.plan.label()}", {part: seconds_to_ms(s) for part, s in one.mean_parts_s.items()})
        for place, one in enumerate(shown, start=1)
    ]
    return stacked("breakdown", bars, "step, ms", words)


def shares_picture(named: Sequence[tuple[str, Answer]]) -> Picture:
    """Returns one bar a question, the shares of its best plan's step one after another, in per cent."""
    words = (
        f"Stacked bars of the shares of the step's parts for {len(named[:MOST_BARS])} questions. The table below has "
        "the figures.",
        "Shares of the step of all GPUs on average, by question.",
    )
    bars = [
        (f"{name}:  {one.plan.label()}", {part: 100 * s / one.step_s for part, s in one.mean_parts_s.items()})
        for name, one in named[:MOST_BARS]
    ]
    return stacked("shares", bars, "% of the step", words)


def memory_picture(stages: Sequence[StageMemory], limit_bytes: float) -> Picture:
    """Returns one bar a class of equal stages, its terms one after another, against what the device has."""
    worst = max(stages, key=lambda one: one.needed_bytes)
    limit = bytes_to_gib(limit_bytes)
    words = (
        f"Stacked bars of memory by pipeline stage: {worst.words()} needs most, "
        f"{bytes_to_gib(worst.needed_bytes):.1f} GiB of {limit:.1f}. The table below has the figures.",
        "Peak memory of a device of each stage; equal stages share a bar.",
    )
    bars = [(one.words(), {term: bytes_to_gib(size) for term, size in memory_terms(one).items()}) for one in stages]
    return stacked("memory", bars, "GiB of a device", words, limit=limit)


Bars = Sequence[tuple[str, Mapping[str, float]]]
"""Bars with what is written above them, and the lengths of their pieces by part of the step or term of memory."""


def stacked(
    name: str,
    bars: Bars,
    label: str,
    words: tuple[str, str],
    limit: float | None = None,
    roles: Mapping[str, str] = ROLES,
) -> Picture:
    """Returns bars in pieces, in the order and colours of ``roles``, one below the other, and a line at a ``limit``;
    ``words`` are what both show and the caption."""
    whole = limit or max(sum(pieces.values()) for _, pieces in bars)
    names = dict.fromkeys([*roles, *bars[0][1]])
    visible = [one for one in names if any(pieces.get(one, 0.0) >= LEAST_SHARE * whole for _, pieces in bars)]
    colours = {one: roles.get(one, "c10") for one in visible}
    titles = PART_WORDS if limit is None else {}

    def draw(figure: Figure) -> None:
        axes = plain_axes(figure, grid="x")
        for row, (above, pieces) in enumerate(bars):
            left = 0.0
            for one in visible:
                width, edge = pieces.get(one, 0.0), colour("surface")
                axes.barh(row, width, 0.55, left, color=colour(colours[one]), edgecolor=edge, linewidth=0.6)
                left += width
            axes.text(0, row - 0.34, shorten(figure, above), va="bottom", fontsize=11)
        if limit is not None:
            axes.axvline(limit, color=colour("ink"), linewidth=1.5)
            axes.text(limit, -0.72, f"{limit:.1f} GiB to use  ", ha="right", va="center", fontsize=11)
            axes.set_xlim(0, 1.02 * max(limit, *(sum(pieces.values()) for _, pieces in bars)))
        axes.set(xlabel=label, ylim=(len(bars) - 0.5, -0.75 if limit is None else -1.0), yticks=[])
        axes.spines["left"].set_visible(False)
        legend(figure, patches({titles.get(one, one.replace("_", " ")): colours[one] for one in visible}))

    rows = 46 * len(bars)
    return picture(name, draw, heights=(rows + 150, rows + 110 + 20 * len(visible)), words=words)


def pareto_picture(front: Sequence[Answer], others: Sequence[Answer], usable_bytes: float) -> Picture:
    """Returns the plans that no other beats in both step and memory, numbered as in their table, before those
    that are shown beside them."""

    def draw(figure: Figure) -> None:
        axes = plain_axes(figure)
        across = [bytes_to_gib(one.needed_bytes) for one in front]
        up = [seconds_to_ms(one.step_s) for one in front]
        rest = [one for one in others if all(one.plan != of_front.plan for of_front in front)]
        axes.plot(
            [bytes_to_gib(one.needed_bytes) for one in rest],
            [seconds_to_ms(one.step_s) for one in rest],
            "o",
            color=colour("muted"),
            markersize=5,
            alpha=0.6,
            label="other plans of the ranking",
        )
        axes.plot(across, up, "-o", color=colour("c1"), markersize=7, linewidth=1.5, label="no plan is better in both")
        every = max(1, len(front) // (6 if is_narrow(figure) else 14))
        for at in range(0, len(front), every):
            axes.annotate(f"{at + 1}", (across[at], up[at]), xytext=(5, 5), textcoords="offset points", fontsize=11)
        usable = bytes_to_gib(usable_bytes)
        for share, style in ((1.0, "-"), (1.0 - HEADROOM, "--")):
            axes.axvline(share * usable, color=colour("c2"), linewidth=1.2, linestyle=style)
            if share < 1.0:
                words = f" {100 * share:g} %"
                axes.text(share * usable, 0.99, words, transform=axes.get_xaxis_transform(), va="top", fontsize=11)
        axes.set(xlabel="memory needed, GiB of a device", ylabel="step, ms")
        legend(figure, axes.get_legend_handles_labels()[0])

    last = front[-1] if front[-1].needed_bytes < front[0].needed_bytes else front[0]
    words = (
        f"Step time against memory of {len(front)} plans that no other beats in both, from "
        f"{seconds_to_ms(min(one.step_s for one in front)):.1f} ms to {bytes_to_gib(last.needed_bytes):.1f} GiB. The table below has "
        "the figures.",
        f"Lower is faster, left needs less memory. Lines: the usable memory and {100 * (1.0 - HEADROOM):g} % of it.",
    )
    return picture("pareto", draw, heights=(400, 340), words=words)
