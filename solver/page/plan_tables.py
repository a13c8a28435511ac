"""Tables of a page about plans: ranking, parts of the step, memory, operations, origins."""

from collections.abc import Sequence

from solver.analysis.explanation import Explanation, OpRow, StageMemory
from solver.page.content import PageTable
from solver.page.plan_plots import memory_terms, stage_words
from solver.report.explain import COMPUTE_PARTS, PART_WORDS
from solver.report.tables import origin_words
from solver.result import Answer
from solver.search import SearchResult
from spec.origin import ORIGIN_MEANINGS, ORIGIN_NAMES, Origin
from spec.units import MIB, bytes_to_gib, seconds_to_ms

SMALLEST_MS = 0.05
SMALLEST_GIB = 0.005
WAITING_PARTS = ("tp_comm", "cp_comm", "ep_comm", "wp_comm", "dp_comm", "pp_comm")


def ranking_table(answers: Sequence[Answer], usable_bytes: float) -> PageTable:
    """The plans shown, best first."""
    rows = []
    for place, one in enumerate(answers, start=1):
        parts = (COMPUTE_PARTS, WAITING_PARTS, ("bubble",))
        shares = [100 * sum(one.parts_s[part] for part in group) / one.step_s for group in parts]
        rows.append(
            [
                f"{place}",
                one.label(),
                f"{seconds_to_ms(one.step_s):,.1f}",
                f"{seconds_to_ms(one.interval_low_s):,.0f} to {seconds_to_ms(one.interval_high_s):,.0f}",
                f"{100 * (one.step_s / answers[0].step_s - 1):+.1f} %",
                f"{one.tgs:,.0f}",
                f"{100 * one.mfu:.1f}",
                f"{bytes_to_gib(one.needed_bytes):.1f}",
                f"{100 * one.needed_bytes / usable_bytes:.0f} %",
                *(f"{share:.1f}" for share in shares),
                origin_words(one),
            ]
        )
    header = (
        "place",
        "plan",
        "step ms",
        "80 % interval ms",
        "slower",
        "tokens/GPU/s",
        "MFU %",
        "GiB",
        "of memory",
    )
    more = ("computes %", "waits for messages %", "bubble %", "origin of the seconds")
    return PageTable(
        caption="Ranking; a column's name sorts by it",
        header=(*header, *more),
        rows=rows,
        words=frozenset({1, 12}),
    )


def parts_table(answers: Sequence[Answer], names: Sequence[str] = ()) -> PageTable:
    """Milliseconds of every part of the step, a plan a row; ``names`` stand for the plans where they are given."""
    parts = [
        part for part in PART_WORDS if any(seconds_to_ms(one.parts_s[part]) >= SMALLEST_MS for one in answers)
    ]
    rows = [
        [
            name,
            *(f"{seconds_to_ms(one.parts_s[part]):,.1f}" for part in parts),
            f"{seconds_to_ms(one.step_s):,.1f}",
        ]
        for name, one in zip(names or [one.plan.label() for one in answers], answers, strict=True)
    ]
    header = ("question" if names else "plan", *(PART_WORDS[part] for part in parts), "step")
    return PageTable(caption="Parts of the step, ms", header=header, rows=rows, folded=True)


def front_table(front: Sequence[Answer], usable_bytes: float) -> PageTable:
    """The plans that no other beats in step and memory, numbered as in their picture."""
    fastest = min(one.step_s for one in front)
    rows = [
        [
            f"{at}",
            one.plan.label(),
            f"{seconds_to_ms(one.step_s):,.1f}",
            f"{100 * (one.step_s / fastest - 1):+.1f} %",
            f"{bytes_to_gib(one.needed_bytes):.1f}",
            f"{100 * one.needed_bytes / usable_bytes:.0f} %",
        ]
        for at, one in enumerate(front, start=1)
    ]
    header = ("number", "plan", "step ms", "slower", "GiB", "of memory")
    return PageTable(
        caption="No plan is better in both step and memory", header=header, rows=rows, words=frozenset({1})
    )


def assembly_table(found: Explanation) -> PageTable:
    """How the step of the slowest stage is put together."""
    rows = [
        [
            one.what,
            f"{one.count:,}" if one.count > 1 else "",
            f"{seconds_to_ms(one.forward_s):.3f}" if one.forward_s else "",
            f"{seconds_to_ms(one.backward_s):.3f}" if one.forward_s else "",
            f"{seconds_to_ms(one.seconds):,.1f}",
            f"{100 * one.seconds / found.step_s:.1f}",
        ]
        for one in found.assembly
    ]
    header = ("term", "times", "forward ms", "backward ms", "ms", "% of the step")
    return PageTable(
        caption=f"The {seconds_to_ms(found.step_s):,.1f} ms of the step of {found.plan.label()} as a sum",
        header=header,
        rows=rows,
    )


def stages_table(stages: Sequence[StageMemory]) -> PageTable:
    """GiB by term and class of equal stages."""
    held = [memory_terms(one) for one in stages]
    terms = [name for name in held[0] if any(bytes_to_gib(one[name]) >= SMALLEST_GIB for one in held)]
    rows = [[name.replace("_", " "), *(f"{bytes_to_gib(one[name]):.2f}" for one in held)] for name in terms]
    rows.append(["needed", *(f"{bytes_to_gib(one.needed_bytes):.2f}" for one in stages)])
    header = ("term", *(stage_words(one) for one in stages))
    return PageTable(caption="Memory by term and stage, GiB", header=header, rows=rows)


def operations_table(found: Explanation) -> PageTable:
    """Every operation of the plan's layers, ends and step."""
    header = (
        "where",
        "operation",
        "pass",
        "ms",
        "waits ms",
        "MiB",
        "keeps MiB",
        "origin",
        "error",
        "group",
        "shape",
    )
    return PageTable(
        caption="Operations of one micro-batch on one rank, and of the step",
        header=header,
        rows=[_operation(row) for row in found.operations],
        words=frozenset({0, 1, 2, 7, 9, 10}),
        folded=True,
    )


def _operation(row: OpRow) -> list[str]:
    return [
        row.piece,
        row.name,
        row.phase,
        f"{seconds_to_ms(row.own_s):.3f}",
        "" if row.waited_s is None else f"{seconds_to_ms(row.waited_s):.3f}",
        f"{row.size_bytes / MIB:,.1f}" if row.size_bytes else "",
        f"{row.saved_bytes / MIB:,.1f}" if row.saved_bytes else "",
        row.origin,
        f"{100 * row.relative_std:.0f} %",
        row.group,
        row.shape,
    ]


def origins_table(best: Answer) -> PageTable:
    """The best plan's seconds by where they come from."""
    rows = [
        [
            ORIGIN_NAMES[origin],
            f"{100 * best.origins_s[ORIGIN_NAMES[origin]] / best.step_s:.1f}",
            f"{seconds_to_ms(best.origins_s[ORIGIN_NAMES[origin]]):,.1f}",
            ORIGIN_MEANINGS[origin],
        ]
        for origin in Origin
        if best.origins_s.get(ORIGIN_NAMES[origin], 0.0) > 0
    ]
    return PageTable(
        caption="Seconds of the best plan's step by origin",
        header=("origin", "% of the step", "ms", "means"),
        rows=rows,
        words=frozenset({0, 3}),
    )


def errors_table(best: Answer) -> PageTable:
    """What each family of curves adds to the best plan's error."""
    rows = [
        [family.replace("_", " "), f"{seconds_to_ms(error):,.1f}", f"{100 * error / best.step_s:.1f}"]
        for family, error in sorted(best.errors_s.items(), key=lambda item: -item[1])
        if error > 0
    ]
    return PageTable(
        caption="Standard error of the step by family of curves",
        header=("curves", "ms", "% of the step"),
        rows=rows,
    )


def rejected_table(result: SearchResult) -> PageTable:
    """Plans that were looked at and dropped, by reason."""
    rows = [
        [reason, f"{count:,}"] for reason, count in sorted(result.rejected.items(), key=lambda item: -item[1])
    ]
    return PageTable(caption="Plans dropped, by reason", header=("reason", "plans"), rows=rows)
