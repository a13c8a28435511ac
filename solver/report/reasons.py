"""Sections about single plans: one taken apart, why one does not win, several side by side, what changes would bring."""

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial

from solver.analysis.explanation import Explanation, OpRow, StageMemory, adjacent_equal, memory_terms
from solver.analysis.named_plans import Candidate
from solver.analysis.sensitivity import WhatIf
from solver.problem.result import Answer, is_tie
from solver.report.files import answer_record
from solver.report.plans import PART_WORDS, TIE, in_gib, in_ms, slower_by
from solver.report.sections import ReportSection, Table
from spec.units import MIB, bytes_to_gib, seconds_to_ms

SMALLEST_MS = 0.05
SMALLEST_GIB = 0.005


def explanation_sections(
    found: Sequence[tuple[Answer, Explanation]], *, calibrated: bool
) -> list[ReportSection]:
    """Returns a section for each plan that is taken apart; ``calibrated``: whether its answer is after a calibration."""
    return [
        ReportSection(
            anchor=f"apart-{place}",
            title=f"{one.plan.label()}, taken apart",
            paragraphs=[f"before the calibration, which makes {in_ms(answer.step_s)} ms of it"] * calibrated,
            tables=(operations_table(one), assembly_table(one), stages_table(adjacent_equal(one.stages))),
            record=partial(_explanation_record, answer, one),
        )
        for place, (answer, one) in enumerate(found, start=1)
    ]


def _explanation_record(answer: Answer, found: Explanation) -> dict[str, object]:
    return {"explain": [asdict(found) | {"plan": answer_record(answer)["plan"]}]}


def assembly_table(found: Explanation) -> Table:
    """Returns how the step of the slowest stage is put together."""
    rows = [
        [
            one.what,
            f"{one.count:,}" if one.count > 1 else "",
            *([f"{seconds_to_ms(s):.3f}" if one.forward_s else "" for s in (one.forward_s, one.backward_s)]),
            in_ms(one.seconds),
            f"{100 * one.seconds / found.step_s:.1f}",
        ]
        for one in found.assembly
    ]
    rows.append(["step", "", "", "", in_ms(found.step_s), "100.0"])
    return Table(
        caption=f"the step of {found.plan.label()}, of the stage that works longest, as a sum",
        header=("term", "times", "forward ms", "backward ms", "ms", "% of the step"),
        rows=rows,
    )


def stages_table(stages: Sequence[StageMemory]) -> Table:
    """Returns GiB by term and class of equal stages."""
    by_stage = [memory_terms(one) for one in stages]
    terms = [name for name in by_stage[0] if any(bytes_to_gib(one[name]) >= SMALLEST_GIB for one in by_stage)]
    rows = [
        [name.replace("_", " "), *(f"{bytes_to_gib(one[name]):.2f}" for one in by_stage)] for name in terms
    ]
    rows.append(["needed", *(f"{bytes_to_gib(one.needed_bytes):.2f}" for one in stages)])
    header = ("term", *(one.words() for one in stages))
    return Table(caption="memory by term and stage, GiB", header=header, rows=rows)


def operations_table(found: Explanation) -> Table:
    """Returns every operation of the plan's layers, ends and step."""
    header = ("where", "operation", "pass", "ms", "waits ms", "MiB", "keeps MiB")
    return Table(
        caption=f"operations of {found.plan.label()}: of one micro-batch on one rank, and of the step",
        header=(*header, "origin", "error", "group", "shape"),
        rows=[_operation(row) for row in found.operations],
        words=frozenset({0, 1, 2, 7, 9, 10}),
        folded=True,
    )


def _operation(row: OpRow) -> list[str]:
    """Own time, what the rank waits for it, bytes carried or moved, bytes kept until the backward."""
    return [
        row.piece,
        row.name,
        row.phase,
        f"{seconds_to_ms(row.own_s):.3f}",
        "" if row.waited_s is None else f"{seconds_to_ms(row.waited_s):.3f}",
        f"{row.size_bytes / MIB:.1f}" if row.size_bytes else "",
        f"{row.saved_bytes / MIB:.1f}" if row.saved_bytes else "",
        row.origin,
        f"{100 * row.relative_std:.0f} %",
        row.group,
        row.shape,
    ]


def why_not_section(place: int, best: Answer, one: Candidate) -> ReportSection:
    """Returns the rules that a plan breaks, and what it loses to the best plan and gains, term by term."""
    label = one.answer.plan.label()
    losses = Table(
        caption=f"what {label} loses, term by term",
        header=("term (ms)", "best", "this", "loses"),
        rows=_losses(best, one.answer),
    )

    def record() -> dict[str, object]:
        others = one.best_of_keys
        row = {"broken": one.obstacles, "modes": one.modes, "this": answer_record(one.answer)}
        return {"why_not": [row | {"others_searched": None if others is None else answer_record(others)}]}

    return ReportSection(
        anchor=f"why-not-{place}",
        title=f"Why not {label}",
        paragraphs=_why_not(best, one),
        tables=() if one.answer.plan == best.plan else (losses,),
        record=record,
    )


def _why_not(best: Answer, one: Candidate) -> list[str]:
    """Why a plan cannot run, and what it loses to the best plan in all."""
    other = one.answer
    lines = [f"no strategy is named: this is the best of {', '.join(one.modes)}"] * (len(one.modes) > 1)
    lines += [f"it cannot run: {reason}" for reason in one.obstacles]
    if other.plan == best.plan:
        return [*lines, "it is the best plan"]
    lines.append(f"it {_loses(best, other)} against {best.plan.label()}{TIE * is_tie(best, other)}")
    lines += ["no plan with these keys can run, whatever the other keys"] * one.none_runs
    found = one.best_of_keys
    if found is None or found.plan == other.plan:
        return lines
    if found.plan == best.plan:
        verb = "is the best plan"
    else:
        verb = f"{_loses(best, found)}{TIE * is_tie(best, found)}"
    return [
        *lines,
        f"the best plan with these keys, the others searched, is {found.plan.label()}, which {verb}",
    ]


def _loses(best: Answer, other: Answer) -> str:
    slower = other.step_s / best.step_s - 1.0
    return f"loses {100 * slower:.1f} %" if slower >= 0 else f"would gain {-100 * slower:.1f} %"


def _losses(best: Answer, other: Answer) -> list[list[str]]:
    """Every part of the step of both, and what the other loses."""
    terms = [
        (words, best.parts_s[part], other.parts_s[part])
        for part, words in PART_WORDS.items()
        if max(seconds_to_ms(one.parts_s[part]) for one in (best, other)) >= SMALLEST_MS
    ]
    return [
        [words, in_ms(of_best), in_ms(this), f"{seconds_to_ms(this - of_best):+.1f}"]
        for words, of_best, this in (*terms, ("step", best.step_s, other.step_s))
    ]


def compare_section(plans: Sequence[Candidate]) -> ReportSection:
    """Returns plans side by side: step, throughput, parts of the step, memory."""
    letters = [chr(ord("A") + at) for at in range(len(plans))]
    facts = [(name, one.answer.plan.label()) for name, one in zip(letters, plans, strict=True)]
    facts += [
        (name, f"cannot run: {reason}")
        for name, one in zip(letters, plans, strict=True)
        for reason in one.obstacles
    ]
    shown = Table(
        caption="plans side by side; the parts of a step are of its slowest stage",
        header=("", *letters),
        rows=_compared([one.answer for one in plans]),
    )
    return ReportSection(
        anchor="compare",
        title="Side by side",
        facts=facts,
        tables=(shown,),
        record=lambda: {"compare": [answer_record(one.answer) | {"broken": one.obstacles} for one in plans]},
    )


def _compared(answers: Sequence[Answer]) -> list[list[str]]:
    """What is compared, a line each: its name, then the figure of every plan."""
    rows = [
        ["step ms", *(in_ms(one.step_s) for one in answers)],
        ["80 % interval ms"]
        + [f"{seconds_to_ms(o.interval_low_s):.0f}..{seconds_to_ms(o.interval_high_s):.0f}" for o in answers],
        ["against A", *(slower_by(one, answers[0]) for one in answers)],
        ["tokens per GPU per s", *(f"{one.tgs:.0f}" for one in answers)],
        ["MFU %", *(f"{100 * one.mfu:.1f}" for one in answers)],
    ]
    for part, words in PART_WORDS.items():
        if any(seconds_to_ms(one.parts_s[part]) >= SMALLEST_MS for one in answers):
            rows.append([f"{words} ms", *(in_ms(one.parts_s[part]) for one in answers)])
    sizes = {term: [one.memory_bytes[term] for one in answers] for term in answers[0].memory_bytes}
    sizes = {term: of_all for term, of_all in sizes.items() if bytes_to_gib(max(of_all)) >= SMALLEST_GIB}
    rest = [one.needed_bytes - one.allocated_bytes for one in answers]
    sizes |= {"allocator's slack, NCCL and context": rest, "needed": [one.needed_bytes for one in answers]}
    return rows + [
        [f"{term} GiB", *(f"{bytes_to_gib(size):.2f}" for size in of_all)] for term, of_all in sizes.items()
    ]


def sensitivity_section(now: Answer, found: Sequence[WhatIf]) -> ReportSection:
    """Returns the plan as it is, and the best one with each change."""
    rows = [["baseline", in_ms(now.step_s), "", in_gib(now.needed_bytes), now.plan.label()]]
    for one in found:
        if one.answer is None:
            rows.append([one.words, "", "", "", one.why_none or "no plan fits"])
            continue
        change = slower_by(one.answer, one.against or now)
        size = in_gib(one.answer.needed_bytes)
        rows.append([one.words, in_ms(one.answer.step_s), change, size, one.answer.plan.label()])
    shown = Table(
        caption="what if: the best plan after one change, all else equal",
        header=("change", "step ms", "step", "GiB", "best plan"),
        rows=rows,
        words=frozenset({0, 4}),
    )
    return ReportSection(
        anchor="what-if",
        title="What if",
        tables=(shown,),
        record=lambda: {"sensitivity": [_what_if_record(one) for one in found]},
    )


def _what_if_record(one: WhatIf) -> dict[str, object]:
    return {
        "what": one.words,
        "best": None if one.answer is None else answer_record(one.answer),
        "against": None if one.against is None else answer_record(one.against),
        "why_none": one.why_none,
    }
