"""The reasons that a command line asks for: which plans it names, and what is printed and written of them."""

import argparse
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from solver.analysis.explanation import Explanation, explain_plan
from solver.analysis.named_plans import (
    NamedPlan,
    answer_named,
    are_searched,
    best_with,
    named_plan,
    obstacles,
    with_best_price,
    with_price,
)
from solver.analysis.sensitivity import WhatIf, sensitivities
from solver.opening import Opened
from solver.report.beside import sensitivity_lines
from solver.report.reasons import ALONE, Beside, compared_lines, explained_lines, why_not_lines
from solver.report.result_files import answer_record
from solver.request import Asked, Request
from solver.result import Answer, check_believable
from spec.errors import ConfigError
from spec.program.progress import progress
from spec.settings.plan import WrittenPlan
from spec.units import seconds_to_ms

MOST_COMPARED = 26
"""Plans side by side have a letter each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reasons:
    """Plans to take apart, to hold against the winner, and to set side by side."""

    explain: tuple[NamedPlan, ...] = ()
    why_not: tuple[NamedPlan, ...] = ()
    compare: tuple[NamedPlan, ...] = ()

    @property
    def first_written(self) -> WrittenPlan | None:
        """The first plan that is written out."""
        written = (named.written for named in (*self.explain, *self.compare))
        return next((one for one in written if one is not None), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A plan held against others, and the rules, constraints and memory that keep it from running."""

    answer: Answer
    broken: tuple[str, ...]
    beside: Beside = ALONE


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """Reasons, answered: plans taken apart, held against the winner, and side by side."""

    explain: tuple[tuple[Answer, Explanation], ...] = ()
    why_not: tuple[Held, ...] = ()
    compare: tuple[Held, ...] = ()


NOTHING_ASKED = Answered()


def reasons_asked(options: argparse.Namespace) -> Reasons:
    """What --explain, --why_not and --compare name; raises ConfigError for what is no plan, and for what needs a
    search where none is asked for."""
    shown = options.top_k if options.run_all_solu else 0
    if options.why_not and not options.run_all_solu:
        raise ConfigError(
            where="--why_not",
            key="why_not",
            value=options.why_not,
            allowed="with --run_all_solu, whose best plan wins",
        )
    if options.sensitivity and not options.run_all_solu:
        raise ConfigError(
            where="--sensitivity",
            key="sensitivity",
            value=True,
            allowed="with --run_all_solu, whose best plan it changes",
        )
    if options.compare and not 2 <= len(options.compare) <= MOST_COMPARED:
        allowed = f"2 to {MOST_COMPARED} plans"
        raise ConfigError(where="--compare", key="compare", value=options.compare, allowed=allowed)
    return Reasons(
        explain=tuple(named_plan(text, "--explain", shown=shown) for text in options.explain or ()),
        why_not=tuple(named_plan(text, "--why_not", shown=shown) for text in options.why_not or ()),
        compare=tuple(named_plan(text, "--compare", shown=shown) for text in options.compare or ()),
    )


def priced_reasons(reasons: Reasons, opened: Opened) -> Reasons:
    """The plans that are written out priced, before any search; why one of --why_not cannot run is printed.

    Raises ConfigError for a plan that there is no order of work or no world for.
    """
    question = opened.question

    def priced(named: tuple[NamedPlan, ...]) -> tuple[NamedPlan, ...]:
        return tuple(with_price(one, question) for one in named)

    found = replace(
        reasons,
        explain=priced(reasons.explain),
        why_not=tuple(with_best_price(one, question, opened.constraints) for one in reasons.why_not),
        compare=priced(reasons.compare),
    )
    lines = [
        f"{answer.plan.label()} cannot run: {reason}"
        for answer in (one.answer for one in found.why_not if one.answer is not None)
        for reason in obstacles(question, answer, opened.constraints)
    ]
    if lines:
        print(*lines, sep="\n", end="\n\n", flush=True)
    return found


def print_reasons(reasons: Reasons, opened: Opened, shown: Sequence[Answer]) -> Answered:
    """Answer every reason asked for, and print them."""
    answered = _answered(reasons, opened, shown)
    for answer, found in answered.explain:
        print("", *explained_lines(found), sep="\n")
        if opened.question.calibration is not None:
            print(f"before the calibration, which makes {seconds_to_ms(answer.step_s):.1f} ms of it")
    for one in answered.why_not:
        print("", *why_not_lines(shown[0], one.answer, one.broken, one.beside), sep="\n")
    if answered.compare:
        answers = [one.answer for one in answered.compare]
        print("", *compared_lines(answers, [one.broken for one in answered.compare]), sep="\n")
    return answered


def _answered(reasons: Reasons, opened: Opened, shown: Sequence[Answer]) -> Answered:
    """Every reason asked for, of plans that were priced (priced_reasons) or are ``shown``."""
    question = opened.question

    def held(one: NamedPlan) -> Held:
        answer = answer_named(one, shown)
        check_believable((answer,), opened.source)
        broken = obstacles(question, answer, opened.constraints)
        return Held(answer=answer, broken=broken)

    def against(one: NamedPlan) -> Held:
        return held_with_others(held(one), one, opened)

    apart = [held(one).answer for one in reasons.explain]
    return Answered(
        explain=tuple((answer, explain_plan(question, answer.plan)) for answer in apart),
        why_not=tuple(against(one) for one in reasons.why_not),
        compare=tuple(held(one) for one in reasons.compare),
    )


def held_with_others(held: Held, named: NamedPlan, opened: Opened) -> Held:
    """With what is told beside a plan that a few keys name."""
    if not are_searched(named.said):
        return replace(held, beside=Beside(modes=named.modes))
    found = best_with(named.said, opened.question, opened.constraints)
    if found is not None:
        check_believable((found,), opened.source)
    none_runs = found is None and bool(held.broken)
    return replace(held, beside=Beside(modes=named.modes, others_searched=found, none_runs=none_runs))


def _why_not_record(held: Held) -> dict[str, object]:
    found = held.beside.others_searched
    return {
        "broken": held.broken,
        "modes": held.beside.modes,
        "this": answer_record(held.answer),
        "others_searched": None if found is None else answer_record(found),
    }


def reasons_record(answered: Answered) -> dict[str, object]:
    """The same as plain values; a key for each that was asked for."""
    found: dict[str, list[dict[str, object]]] = {
        "explain": [
            asdict(apart) | {"plan": answer_record(answer)["plan"]} for answer, apart in answered.explain
        ],
        "why_not": [_why_not_record(one) for one in answered.why_not],
        "compare": [answer_record(one.answer) | {"broken": one.broken} for one in answered.compare],
    }
    return {key: records for key, records in found.items() if records}


def print_sensitivity(request: Request, asked: Asked, opened: Opened, best: Answer) -> tuple[WhatIf, ...]:
    """Print what three changes would bring."""
    with progress(3, "what if", "question") as bar:
        found = sensitivities(request, asked, opened, tick=bar.update)
    check_believable([one.answer for one in found if one.answer is not None], opened.source)
    print("", *sensitivity_lines(best, found), sep="\n")
    return found
