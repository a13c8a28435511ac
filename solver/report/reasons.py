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


def explanation_sections(explained: Sequence[tuple[Answer, Explanation]], *, calibrated: bool) -> list[ReportSection]:
    """Returns a section for each plan that is taken apart; ``calibrated``: whether its answer is after a calibration."""
    return [
        ReportSection(
            anchor=f"apart-{place}",
            title=f"{explanation.plan.label()}, taken apart",
            paragraphs=[f"before the calibration, which makes {in_ms(answer.step_s)} ms of it"] * calibrated,
            tables=(
                operations_table(explanation),
                assembly_table(explanation),
                stages_table(adjacent_equal(explanation.stages)),
            ),
            record=partial(_explanation_record, answer, explanation),
        )
        for place, (answer, explanation) in enumerate(explained, start=1)
    ]


def _explanation_record(answer: Answer, explanation: Explanation) -> dict[str, object]:
    return {"explain": [asdict(explanation) | {"plan": answer_record(answer)["plan"]}]}


def assembly_table(explanation: Explanation) -> Table:
    """Returns how the step of the slowest stage is put together."""
    rows = [
        [
            term.what,
            f"{term.count:,}" if term.count > 1 else "",
            *([f"{seconds_to_ms(s):.3f}" if term.forward_s else "" for s in (term.forward_s, term.backward_s)]),
            in_ms(term.seconds),
            f"{100 * term.seconds / explanation.step_s:.1f}",
        ]
        for term in explanation.assembly
    ]
    rows.append(["step", "", "", "", in_ms(explanation.step_s), "100.0"])
    return Table(
        caption=f"the step of {explanation.plan.label()}, of the stage that works longest, as a sum",
        header=("term", "times", "forward ms", "backward ms", "ms", "% of the step"),
        rows=rows,
    )


def stages_table(stages: Sequence[StageMemory]) -> Table:
    """Returns GiB by term and class of equal stages."""
    by_stage = [memory_terms(stage) for stage in stages]
    terms = [name for name in by_stage[0] if any(bytes_to_gib(stage[name]) >= SMALLEST_GIB for stage in by_stage)]
    rows = [[name.replace("_", " "), *(f"{bytes_to_gib(stage[name]):.2f}" for stage in by_stage)] for name in terms]
    rows.append(["needed", *(f"{bytes_to_gib(stage.needed_bytes):.2f}" for stage in stages)])
    header = ("term", *(stage.words() for stage in stages))
    return Table(caption="memory by term and stage, GiB", header=header, rows=rows)


def operations_table(explanation: Explanation) -> Table:
    """Returns every operation of the plan's layers, ends and step."""
    header = ("where", "operation", "pass", "ms", "waits ms", "MiB", "keeps MiB")
    return Table(
        caption=f"operations of {explanation.plan.label()}: of one micro-batch on one rank, and of the step",
        header=(*header, "origin", "error", "group", "shape"),
        rows=[_operation(row) for row in explanation.operations],
        words=frozenset({0, 1, 2, 7, 9, 10}),
        drops=(10, 9, 8, 6, 7, 5, 4),
        folded=True,
    )


def _operation(row: OpRow) -> list[str]:
    """Returns its own time, exposed time, bytes communicated or moved, bytes saved for the backward."""
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


def why_not_section(place: int, best: Answer, named: Candidate) -> ReportSection:
    """Returns the rules that a plan breaks, and what it loses to the best plan and gains, term by term."""
    label = named.answer.plan.label()
    losses = Table(
        caption=f"what {label} loses, term by term",
        header=("term (ms)", "best", "this", "loses"),
        rows=_losses(best, named.answer),
    )

    def record() -> dict[str, object]:
        others = named.best_of_keys
        row = {"broken": named.obstacles, "modes": named.modes, "this": answer_record(named.answer)}
        return {"why_not": [row | {"others_searched": None if others is None else answer_record(others)}]}

    return ReportSection(
        anchor=f"why-not-{place}",
        title=f"Why not {label}",
        paragraphs=_why_not(best, named),
        tables=() if named.answer.plan == best.plan else (losses,),
        record=record,
    )


def _why_not(best: Answer, named: Candidate) -> list[str]:
    """Returns why a plan cannot run, and how much it loses to the best plan in total."""
    other = named.answer
    lines = [f"no strategy is named: this is the best of {', '.join(named.modes)}"] * (len(named.modes) > 1)
    lines += [f"it cannot run: {reason}" for reason in named.obstacles]
    if named.lacks_headroom and not named.obstacles:
        lines.append(f"it leaves less memory free than --headroom: {named.lacks_headroom}")
    if other.plan == best.plan:
        return [*lines, "it is the best plan"]
    lines.append(f"it {_loses(best, other)} against {best.plan.label()}{TIE * is_tie(best, other)}")
    lines += ["no plan with these keys can run, whatever the other keys"] * named.none_runs
    best_of_keys = named.best_of_keys
    if best_of_keys is None or best_of_keys.plan == other.plan:
        return lines
    if best_of_keys.plan == best.plan:
        verb = "is the best plan"
    else:
        verb = f"{_loses(best, best_of_keys)}{TIE * is_tie(best, best_of_keys)}"
    return [*lines, f"the best plan with these keys, the others searched, is {best_of_keys.plan.label()}, which {verb}"]


def _loses(best: Answer, other: Answer) -> str:
    slower = other.step_s / best.step_s - 1.0
    return f"loses {100 * slower:.1f} %" if slower >= 0 else f"would gain {-100 * slower:.1f} %"


def _losses(best: Answer, other: Answer) -> list[list[str]]:
    """Returns every part of the step of both plans, and the difference."""
    terms = [
        (words, best.mean_parts_s[part], other.mean_parts_s[part])
        for part, words in PART_WORDS.items()
        if max(seconds_to_ms(one.mean_parts_s[part]) for one in (best, other)) >= SMALLEST_MS
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
        (name, f"cannot run: {reason}") for name, one in zip(letters, plans, strict=True) for reason in one.obstacles
    ]
    return ReportSection(
        anchor="compare",
        title="Side by side",
        facts=facts,
        tables=(answers_table([one.answer for one in plans], letters),),
        record=lambda: {"compare": [answer_record(one.answer) | {"broken": one.obstacles} for one in plans]},
    )


def answers_table(answers: Sequence[Answer], names: Sequence[str]) -> Table:
    """Returns the figures of answers side by side, a line each, under their ``names``."""
    rows = [
        ["step ms", *(in_ms(one.step_s) for one in answers)],
        ["80 % interval ms"]
        + [f"{seconds_to_ms(o.interval_low_s):.0f}..{seconds_to_ms(o.interval_high_s):.0f}" for o in answers],
        [f"against {names[0]}", *(slower_by(one, answers[0]) for one in answers)],
        ["tokens per GPU per s", *(f"{one.tgs:.0f}" for one in answers)],
        ["MFU %", *(f"{100 * one.mfu:.1f}" for one in answers)],
    ]
    for part, words in PART_WORDS.items():
        if any(seconds_to_ms(one.mean_parts_s[part]) >= SMALLEST_MS for one in answers):
            rows.append([f"{words} ms", *(in_ms(one.mean_parts_s[part]) for one in answers)])
    sizes = {term: [one.memory_bytes[term] for one in answers] for term in answers[0].memory_bytes}
    sizes = {term: of_all for term, of_all in sizes.items() if bytes_to_gib(max(of_all)) >= SMALLEST_GIB}
    rest = [one.needed_bytes - one.allocated_bytes for one in answers]
    sizes |= {"allocator's slack, NCCL and context": rest, "needed": [one.needed_bytes for one in answers]}
    rows += [[f"{term} GiB", *(f"{bytes_to_gib(size):.2f}" for size in of_all)] for term, of_all in sizes.items()]
    caption = "plans side by side; the parts of a step are of all GPUs on average"
    return Table(caption=caption, header=("", *names), rows=rows)


def sensitivity_section(now: Answer, changes: Sequence[WhatIf], *, tried: bool = False) -> ReportSection:
    """Returns the plan as it is, and the best one with each change; of ``tried`` switches or of cluster and job."""
    rows = [["baseline", in_ms(now.step_s), "", in_gib(now.needed_bytes), now.plan.label()]]
    for row in changes:
        if row.answer is None:
            rows.append([row.words, "", "", "", row.why_none or "no plan fits"])
            continue
        change = slower_by(row.answer, row.against or now)
        size = in_gib(row.answer.needed_bytes)
        rows.append([row.words, in_ms(row.answer.step_s), change, size, row.answer.plan.label()])
    shown = Table(
        caption=f"{'switches tried' if tried else 'what if'}: the best plan after one change, all else equal",
        header=("change", "step ms", "step", "GiB", "best plan"),
        rows=rows,
        words=frozenset({0, 4}),
        drops=(3,),
    )
    return ReportSection(
        anchor="tried" if tried else "what-if",
        title="Switches tried" if tried else "What if",
        tables=(shown,),
        record=lambda: {"tried" if tried else "sensitivity": [_sensitivity_record(row) for row in changes]},
    )


def frameworks_section(now: Answer, others: Sequence[WhatIf]) -> ReportSection:
    """Returns what other frameworks would give."""
    facts = []
    for row in others:
        words = row.why_none or "no plan fits"
        if row.answer is not None:
            words = f"at most {in_ms(row.answer.step_s)} ms ({slower_by(row.answer, now)}): {row.answer.plan.label()}"
        facts.append((row.words, f"{words} (--framework {row.words})"))
    return ReportSection(
        anchor="frameworks",
        details=True,
        title="Under other frameworks",
        facts=facts,
        record=lambda: {"frameworks": [_sensitivity_record(row) for row in others]},
    )


def _sensitivity_record(change: WhatIf) -> dict[str, object]:
    return {
        "what": change.words,
        "best": None if change.answer is None else answer_record(change.answer),
        "against": None if change.against is None else answer_record(change.against),
        "why_none": change.why_none,
    }
