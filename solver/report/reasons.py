"""Reasons as a person reads them: a plan taken apart, why it does not win, plans side by side."""

from collections.abc import Sequence
from dataclasses import dataclass

from solver.analysis.explanation import Explanation, OpRow, StageMemory
from solver.report.explain import PART_WORDS, TIE, tied
from solver.report.tables import table
from solver.result import Answer
from spec.units import MIB, bytes_to_gib, seconds_to_ms

SMALLEST_MS = 0.05
SMALLEST_GIB = 0.005


def explained_lines(found: Explanation) -> list[str]:
    """Operations of layers, ends and step; the sum that the step is; memory by term and stage."""
    return [
        f"operations of {found.plan.label()}",
        table([_operation(row) for row in found.operations], OPERATION_HEADER),
        "",
        "the step, of the stage that works longest",
        *_assembly(found),
        "",
        "memory by term and stage (GiB)",
        _memory(found.stages),
    ]


OPERATION_HEADER = ("operation", "pass", "ms", "waits", "MiB", "keeps", "origin", "error", "group", "shape")


def _operation(row: OpRow) -> list[str]:
    """Own time, what the rank waits for it, bytes carried or moved, bytes kept until the backward."""
    return [
        row.name if row.piece in ("step", "head", "embedding", "layer") else f"{row.piece}: {row.name}",
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


def _assembly(found: Explanation) -> list[str]:
    rows = [
        [
            one.what,
            f"{one.count:,}" if one.count > 1 else "",
            *(
                [f"{seconds_to_ms(s):.3f}" for s in (one.forward_s, one.backward_s)]
                if one.forward_s
                else ["", ""]
            ),
            f"{seconds_to_ms(one.seconds):.1f}",
            f"{100 * one.seconds / found.step_s:.1f}",
        ]
        for one in found.assembly
    ]
    rows.append(["step", "", "", "", f"{seconds_to_ms(found.step_s):.1f}", "100.0"])
    return [table(rows, ("term", "times", "forward ms", "backward ms", "ms", "%"))]


def _memory(stages: Sequence[StageMemory]) -> str:
    terms = [
        name
        for name in stages[0].terms_bytes
        if any(bytes_to_gib(stage.terms_bytes[name]) >= SMALLEST_GIB for stage in stages)
    ]
    rows = [[name, *(f"{bytes_to_gib(one.terms_bytes[name]):.2f}" for one in stages)] for name in terms]
    rows.append(["needed, with the context", *(f"{bytes_to_gib(one.needed_bytes):.2f}" for one in stages)])
    names = [f"{one.first}" if one.first == one.last else f"{one.first}-{one.last}" for one in stages]
    return table(rows, ("term", *(f"stage {name}" for name in names)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """What is told beside a plan that a few keys name: the ``modes`` that it is the best of where no strategy
    was named, and the best plan of these keys with all ``others_searched``, None where they were not, or
    where ``none_runs``."""

    modes: tuple[str, ...] = ()
    others_searched: Answer | None = None
    none_runs: bool = False


ALONE = Beside()
LOSS_HEADER = ("term (ms)", "best", "this", "loses")


def why_not_lines(
    winner: Answer, other: Answer, obstacles: Sequence[str], beside: Beside = ALONE
) -> list[str]:
    """The rules that a plan breaks, and what it loses to the winner and gains, term by term."""
    said = [f"  {line}" for line in why_not_words(winner, other, obstacles, beside)]
    shown = [] if other.plan == winner.plan else [table(loss_cells(winner, other), LOSS_HEADER)]
    return [f"why not {other.plan.label()}", *said, *shown]


def why_not_words(
    winner: Answer, other: Answer, obstacles: Sequence[str], beside: Beside = ALONE
) -> list[str]:
    """Why a plan cannot run, and what it loses to the winner in all."""
    modes = beside.modes
    lines = [f"no strategy is named: this is the best of {', '.join(modes)}"] * (len(modes) > 1)
    lines += [f"it cannot run: {reason}" for reason in obstacles]
    if other.plan == winner.plan:
        return [*lines, "it is the best plan"]
    lines.append(f"it {_loses(winner, other)} against {winner.plan.label()}{TIE * tied(winner, other)}")
    found = beside.others_searched
    lines += ["no plan with these keys can run, whatever the keys left out"] * beside.none_runs
    if found is None or found.plan == other.plan:
        return lines
    verb = "is the best plan" if found.plan == winner.plan else _loses(winner, found)
    tie = TIE * (found.plan != winner.plan and tied(winner, found))
    return [*lines, f"with the keys left out searched too it is {found.plan.label()}, which {verb}{tie}"]


def _loses(winner: Answer, other: Answer) -> str:
    slower = other.step_s / winner.step_s - 1.0
    return f"loses {100 * slower:.1f} %" if slower >= 0 else f"would gain {-100 * slower:.1f} %"


def loss_cells(winner: Answer, other: Answer) -> list[list[str]]:
    """Every part of the step of both, and what the other loses, under LOSS_HEADER."""
    terms = [
        (words, winner.parts_s[part], other.parts_s[part])
        for part, words in PART_WORDS.items()
        if max(seconds_to_ms(one.parts_s[part]) for one in (winner, other)) >= SMALLEST_MS
    ]
    return [
        [words, *(f"{seconds_to_ms(s):.1f}" for s in (best, this)), f"{seconds_to_ms(this - best):+.1f}"]
        for words, best, this in (*terms, ("step", winner.step_s, other.step_s))
    ]


def letters(count: int) -> list[str]:
    """A letter for each of some plans side by side."""
    return [chr(ord("A") + at) for at in range(count)]


def compared_lines(answers: Sequence[Answer], obstacles: Sequence[Sequence[str]]) -> list[str]:
    """Plans side by side: step, throughput, parts of the step, memory."""
    names = letters(len(answers))
    lines = [f"{name}  {answer.plan.label()}" for name, answer in zip(names, answers, strict=True)]
    for name, reasons in zip(names, obstacles, strict=True):
        lines += [f"{name}  cannot run: {reason}" for reason in reasons]
    return [*lines, table(compared_cells(answers), ("", *names))]


def compared_cells(answers: Sequence[Answer]) -> list[list[str]]:
    """What is compared, a line each: its name, then the figure of every plan."""
    rows = [
        ["step ms", *(f"{seconds_to_ms(one.step_s):.1f}" for one in answers)],
        [
            "80 % interval ms",
            *(
                f"{seconds_to_ms(o.interval_low_s):.0f}..{seconds_to_ms(o.interval_high_s):.0f}"
                for o in answers
            ),
        ],
        ["against A", *(f"{100 * (one.step_s / answers[0].step_s - 1):+.1f} %" for one in answers)],
        ["tokens per GPU per s", *(f"{one.tgs:.0f}" for one in answers)],
        ["MFU %", *(f"{100 * one.mfu:.1f}" for one in answers)],
    ]
    for part, words in PART_WORDS.items():
        if any(seconds_to_ms(one.parts_s[part]) >= SMALLEST_MS for one in answers):
            rows.append([f"{words} ms", *(f"{seconds_to_ms(one.parts_s[part]):.1f}" for one in answers)])
    for term in answers[0].memory_bytes:
        if any(bytes_to_gib(one.memory_bytes[term]) >= SMALLEST_GIB for one in answers):
            rows.append([f"{term} GiB", *(f"{bytes_to_gib(one.memory_bytes[term]):.2f}" for one in answers)])
    rest = (one.needed_bytes - one.allocated_bytes for one in answers)
    rows.append(["allocator's slack, NCCL and context GiB", *(f"{bytes_to_gib(size):.2f}" for size in rest)])
    rows.append(["needed GiB", *(f"{bytes_to_gib(one.needed_bytes):.2f}" for one in answers)])
    return rows
