"""The answer in the lines that a terminal prints without --verbose: the winner in words, alternatives, why, memory, what
to watch, what to do next."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import TYPE_CHECKING

from ops.recompute import Recompute
from solver.memory.device import likelihood_words, retries_words, usable_bytes
from solver.plans.plan_table import Plan
from solver.plans.schedules import Schedule
from solver.plans.simplicity import alternatives
from solver.problem.interval import Evidence
from solver.problem.result import Answer
from solver.report.plans import (
    PART_WORDS,
    Plans,
    difference,
    in_gib,
    in_ms,
    mfu_convention,
    obstacle_section,
    published_words,
    simple_words,
    slower_by,
    ties,
)
from solver.report.sections import ReportSection, Table
from spec.units import GIB, seconds_to_ms

if TYPE_CHECKING:
    from solver.analysis.sensitivity import WhatIf
    from solver.search import Result

NUM_ALTERNATIVES = 5
WHOLE_MS = 1000.0
NUM_PARTS = 3
"""Parts of the step, and of the memory, that are named."""
UNSURE = {
    Evidence.SPEC: "nothing was measured on this cluster (pss profile)",
    Evidence.PROFILE: "no step is measured yet (--calibration)",
    Evidence.CALIBRATION: "",
}

SHARDED = ("", "optimizer state", "optimizer state and gradients", "optimizer state, gradients and parameters")
"""By ZeRO stage."""


def _tensor(plan: Plan) -> str:
    traits = plan.sharding.traits
    if plan.tp == 1:
        return ""
    if traits.exchanges_heads:
        return f"sequence parallel {plan.tp} by all-to-all around attention"
    return f"tensor {'and sequence ' * traits.cuts_tokens}parallel {plan.tp}"


def _recomputed(plan: Plan) -> str:
    what = {
        Recompute.SELECTIVE: "part of every layer",
        Recompute.FULL: "every layer",
        Recompute.BLOCK: f"{plan.num_recompute_layers} layers of a stage's chunk",
    }.get(plan.recompute, "")
    parts = ", ".join([what] * bool(what) + [part.replace("_", " ") for part in plan.recompute_modules])
    return f"recomputes {parts}" if parts else ""


def _layers_on_host(plan: Plan) -> str:
    parts = [f"{plan.offloaded_layers} layers"] * (plan.offloaded_layers > 0)
    parts += [part.replace("_", " ") for part in plan.offload_modules]
    return f"saved activations of {', '.join(parts)} on the host" if parts else ""


CODES: tuple[Callable[[Plan], str], ...] = (
    _tensor,
    lambda plan: f"context parallel {plan.cp}" if plan.cp > 1 else "",
    lambda plan: f"pipeline {plan.pp}{f' with {plan.vpp} chunks' * (plan.vpp > 1)}" if plan.pp > 1 else "",
    lambda plan: f"expert parallel {plan.ep}" if plan.ep > 1 else "",
    lambda plan: f"tensor parallel {plan.etp} in experts" if plan.etp > 1 else "",
    lambda plan: f"weights sharded over {plan.wp}" if plan.wp > 1 else "",
    lambda plan: f"data parallel {plan.dp}" if plan.dp > 1 else "",
    lambda plan: f"{SHARDED[plan.zero_stage]} sharded over {plan.zero_size}" if plan.zero_size > 1 else "",
    lambda plan: (
        f"{plan.num_micro} micro-batch{'es' * (plan.num_micro > 1)} of {plan.micro_batch} "
        f"sequence{'s' * (plan.micro_batch > 1)}"
    ),
    lambda plan: f"schedule {plan.schedule.value}" if plan.schedule is not Schedule.ONE_F_ONE_B else "",
    lambda plan: "layers of each stage written out" if plan.stage_layout else "",
    _recomputed,
    lambda plan: f"{100 * plan.optimizer_offload:.0f} % of the optimizer on the host" if plan.optimizer_offload else "",
    _layers_on_host,
)
"""What the codes of a plan's label mean, in the order of the label."""


def plan_words(plan: Plan) -> str:
    """Returns a plan in words: ``tensor parallel 4, pipeline 4 with 5 chunks, data parallel 4, ...``."""
    return ", ".join(filter(None, (code(plan) for code in CODES)))


def summary_sections(
    plans: Plans, num_alternatives: int, others: Sequence["WhatIf"], next_steps: str, obstacles: Sequence[str] = ()
) -> list[ReportSection]:
    """Returns the best plan, or the one given, with ``num_alternatives`` of a search, what other frameworks would give, and
    the reasons. ``obstacles`` keep the plan from running."""
    best, problem, result = plans.best, plans.inputs.problem, plans.result
    usable = usable_bytes(problem.cluster)
    # What using the memory that --headroom leaves free would buy.
    tight = None if result is None else result.with_all_memory
    room = f" ({slower_by(tight, best)} with --headroom 0)" if tight is not None else ""
    terms = _largest(best.memory_bytes, GIB, lambda term, size: f"{term.replace('_', ' ')} {size:.1f}")
    host = f"; {in_gib(best.host_bytes)} in the host's memory" if best.host_bytes else ""
    facts = [
        ("best" if result is not None else "plan", f"{best.plan.label()}: {plan_words(best.plan)}"),
        (
            "step",
            f"{in_ms(best.step_s)} ms (80 %: {_interval(best)}), "
            f"{best.tgs:.0f} tokens/s a GPU, MFU {100 * best.mfu:.1f} % ({mfu_convention(problem)})",
        ),
        (
            "memory",
            f"{in_gib(best.needed_bytes)} GiB of {in_gib(usable)}, {likelihood_words(best.needed_bytes, usable)}{room}"
            f"{': ' * bool(terms)}{terms}{host}",
        ),
        *[("others", f"{'; '.join(_other(one, best) for one in others)}")] * bool(others),
    ]
    reasons = [
        (
            "why",
            _largest(
                best.mean_parts_s,
                0.01 * best.step_s,
                lambda part, share: f"{PART_WORDS[part].removeprefix('waiting for ')} {share:.0f} %",
            ),
        )
    ]
    if result is not None:
        simple = simple_words(result)
        reasons.append(("simple", simple) if simple else ("against", _against(result)))
    watch = [
        retries_words(best.needed_bytes, best.device_bytes, usable),
        *published_words(problem, best),
        _tied(ties(plans.answers)),
        UNSURE[problem.evidence],
    ]
    reasons += [("watch", "; ".join(filter(None, watch))), ("next", next_steps)]
    others_table = [_alternatives(plans.answers, num_alternatives)] * (len(plans.answers) > 1)
    return [
        *([replace(obstacle_section(obstacles), details=False)] if obstacles else []),
        ReportSection(anchor="best", title="The answer", facts=facts, tables=others_table),
        ReportSection(anchor="reasons", title="Why", facts=[one for one in reasons if one[1]]),
    ]


def _interval(answer: Answer) -> str:
    """Returns the 80 % interval in whole ms, but for short steps."""
    low, high = (seconds_to_ms(bound) for bound in (answer.interval_low_s, answer.interval_high_s))
    return f"{low:.0f}..{high:.0f}" if low >= WHOLE_MS else f"{low:.1f}..{high:.1f}"


def _largest(sizes: Mapping[str, float], unit: float, words: Callable[[str, float], str]) -> str:
    """Returns the largest of the named sizes, in that unit of which each has at least a half."""
    top = sorted(sizes.items(), key=itemgetter(1), reverse=True)[:NUM_PARTS]
    return ", ".join(words(name, size / unit) for name, size in top if size >= 0.5 * unit)


def _against(result: "Result") -> str:
    """Returns how the best plan of another strategy, or else the second plan, differs from the best."""
    best = result.best[0]
    others = [one for mode, one in result.best_of_mode.items() if mode != best.plan.strategy] or result.best[1:2]
    return difference(best, others[0], terms=2) if others else ""


def _other(one: "WhatIf", best: Answer) -> str:
    if one.answer is None:
        return f"{one.words}: {one.why_none or 'no plan fits'}"
    return f"{one.words}: step {slower_by(one.answer, best)} or better"


def _tied(places: Sequence[int]) -> str:
    """Returns which of the ranked plans no prediction tells from the best."""
    if not places:
        return ""
    run = len(places) > 2 and places[-1] - places[0] == len(places) - 1
    which = f"{places[0]} to {places[-1]}" if run else ", ".join(map(str, places))
    return f"plans {which} tie with the best" if len(places) > 1 else f"plan {which} ties with the best"


def _alternatives(answers: Sequence[Answer], most: int) -> Table:
    rows = [
        [f"{place + 1}", one.plan.label(), in_ms(one.step_s), slower_by(one, answers[0]), in_gib(one.needed_bytes)]
        for place, one in ((place, answers[place]) for place in alternatives([one.plan for one in answers], most))
    ]
    header = ("rank", "alternative", "step ms", "slower", "GiB")
    return Table(caption="", header=header, rows=rows, words=frozenset({1}), drops=(4, 3, 0))
