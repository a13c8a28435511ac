"""Pictures of plans: where their steps go, step against memory, what every stage holds."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from solver.analysis.explanation import StageMemory, memory_terms
from solver.report.plans import PART_WORDS
from solver.report.sections import Picture
from solver.report.themed_svg import colour, is_narrow, legend, patches, picture, plain_axes, shortened
from solver.result import ROOMY_SHARE, Answer
from spec.units import bytes_to_gib, seconds_to_ms

PART_ROLES = {part: f"c{at}" for at, part in enumerate(PART_WORDS, start=1)}
TERM_ROLES = {
    "parameters": "c1",
    "narrow_weights": "c2",
    "gradients": "c4",
    "optimizer": "c13",
    "activations": "c3",
    "logits": "c5",
    "working": "c6",
    "weight_pool": "c7",
    "bucket": "c8",
    "step": "c9",
    "slack": "c11",
    "nccl": "c12",
    "context": "c14",
}
MOST_BARS = 10
LEAST_SHARE = 0.002
"""Of a bar; thinner ones are in the tables."""


def breakdown_picture(answers: Sequence[Answer]) -> Picture:
    """One bar a plan, the parts of its step one after another, in ms."""
    shown = answers[:MOST_BARS]
    names = [f"{place}  {one.plan.label()}" for place, one in enumerate(shown, start=1)]
    best = shown[0]
    largest = max(PART_WORDS, key=lambda part: best.parts_s[part])
    share = 100 * best.parts_s[largest] / best.step_s
    told = (
        f"Stacked bars of the step's parts of {len(shown)} plans; of the best one's {seconds_to_ms(best.step_s):.1f} ms "
        f"{share:.0f} % are {PART_WORDS[largest]}. The table below has the figures.",
        "Parts of the step of the slowest pipeline stage, by plan.",
    )
    return _parts_picture(
        "breakdown", [(name, one, 1.0) for name, one in zip(names, shown, strict=True)], told
    )


def shares_picture(named: Sequence[tuple[str, Answer]]) -> Picture:
    """One bar a question, the shares of its best plan's step one after another, in per cent."""
    shown = named[:MOST_BARS]
    told = (
        f"Stacked bars of the shares of the step's parts for {len(shown)} questions. The table below has the figures.",
        "Shares of the step of the slowest pipeline stage, by question.",
    )
    bars = [(f"{name}:  {one.plan.label()}", one, 0.1 / one.step_s) for name, one in shown]
    return _parts_picture("shares", bars, told)


def _parts_picture(name: str, bars: Sequence[tuple[str, Answer, float]], told: tuple[str, str]) -> Picture:
    """Bars of a name, an answer, and what its milliseconds are multiplied by."""
    parts = [
        part
        for part in PART_WORDS
        if any(one.parts_s[part] >= LEAST_SHARE * one.step_s for _, one, _ in bars)
    ]
    whole = all(scale == 1.0 for _, _, scale in bars)

    def draw(figure: Figure) -> None:
        axes = plain_axes(figure, grid="x")
        for row, (words, one, scale) in enumerate(bars):
            _bar(axes, row, [(scale * seconds_to_ms(one.parts_s[part]), PART_ROLES[part]) for part in parts])
            axes.text(0, row - 0.34, shortened(figure, words), va="bottom", fontsize=11)
        axes.set(xlabel="step, ms" if whole else "% of the step", ylim=(len(bars) - 0.5, -0.75), yticks=[])
        axes.spines["left"].set_visible(False)
        legend(figure, patches({PART_WORDS[part]: PART_ROLES[part] for part in parts}))

    rows = 46 * len(bars)
    return picture(name, draw, heights=(rows + 150, rows + 110 + 20 * len(parts)), told=told)


def memory_picture(stages: Sequence[StageMemory], *, usable_bytes: float, limit_bytes: float) -> Picture:
    """One bar a class of equal stages, its terms one after another, against what the device has."""
    terms = [
        term
        for term in TERM_ROLES
        if any(memory_terms(one)[term] >= LEAST_SHARE * usable_bytes for one in stages)
    ]

    def draw(figure: Figure) -> None:
        axes = plain_axes(figure, grid="x")
        for row, one in enumerate(stages):
            held = memory_terms(one)
            _bar(axes, row, [(bytes_to_gib(held[term]), TERM_ROLES[term]) for term in terms])
            axes.text(0, row - 0.34, one.words(), va="bottom", fontsize=11)
        axes.axvline(bytes_to_gib(limit_bytes), color=colour("ink"), linewidth=1.5)
        axes.text(
            bytes_to_gib(limit_bytes),
            -0.72,
            f"{bytes_to_gib(limit_bytes):.1f} GiB to use  ",
            ha="right",
            va="center",
            fontsize=11,
        )
        end = bytes_to_gib(max(limit_bytes, *(one.needed_bytes for one in stages)))
        axes.set(xlabel="GiB of a device", ylim=(len(stages) - 0.5, -1.0), yticks=[], xlim=(0, 1.02 * end))
        axes.spines["left"].set_visible(False)
        legend(figure, patches({term.replace("_", " "): TERM_ROLES[term] for term in terms}))

    worst = max(stages, key=lambda one: one.needed_bytes)
    told = (
        f"Stacked bars of memory by pipeline stage: {worst.words()} needs most, "
        f"{bytes_to_gib(worst.needed_bytes):.1f} GiB of {bytes_to_gib(limit_bytes):.1f}. The table below has the figures.",
        "What a device of each stage holds at its peak; equal stages share a bar.",
    )
    rows = 46 * len(stages)
    return picture("memory", draw, heights=(rows + 140, rows + 110 + 12 * len(terms)), told=told)


def pareto_picture(front: Sequence[Answer], others: Sequence[Answer], usable_bytes: float) -> Picture:
    """The plans that no other beats in both step and memory, numbered as in their table, before those that are shown
    beside them."""

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
        axes.plot(
            across,
            up,
            "-o",
            color=colour("c1"),
            markersize=7,
            linewidth=1.5,
            label="no plan is better in both",
        )
        every = max(1, len(front) // (6 if is_narrow(figure) else 14))
        for at in range(0, len(front), every):
            axes.annotate(
                f"{at + 1}", (across[at], up[at]), xytext=(5, 5), textcoords="offset points", fontsize=11
            )
        usable = bytes_to_gib(usable_bytes)
        for share, style in ((1.0, "-"), (ROOMY_SHARE, "--")):
            axes.axvline(share * usable, color=colour("c2"), linewidth=1.2, linestyle=style)
            if share < 1.0:
                words = f" {100 * share:g} %"
                axes.text(
                    share * usable, 0.99, words, transform=axes.get_xaxis_transform(), va="top", fontsize=11
                )
        axes.set(xlabel="memory needed, GiB of a device", ylabel="step, ms")
        legend(figure, axes.get_legend_handles_labels()[0])

    last = front[-1] if front[-1].needed_bytes < front[0].needed_bytes else front[0]
    told = (
        f"Step time against memory of {len(front)} plans that no other beats in both, from "
        f"{seconds_to_ms(min(one.step_s for one in front)):.1f} ms to {bytes_to_gib(last.needed_bytes):.1f} GiB. The table below has "
        "the figures.",
        f"Lower is faster, left needs less memory. Lines: the usable memory and {100 * ROOMY_SHARE:g} % of it.",
    )
    return picture("pareto", draw, heights=(400, 340), told=told)


def _bar(axes: Axes, row: int, pieces: Sequence[tuple[float, str]]) -> None:
    left = 0.0
    for width, role in pieces:
        axes.barh(
            row, width, left=left, height=0.55, color=colour(role), edgecolor=colour("surface"), linewidth=0.6
        )
        left += width
