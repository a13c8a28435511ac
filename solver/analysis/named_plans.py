"""Plans that a question names, by their place in a ranking or written out, and what keeps each from running."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from solver.memory.device_memory import limit_bytes
from solver.memory.shortfall import needs_words
from solver.plans.constraints import constraint_rules
from solver.plans.plan_table import PlanTable
from solver.plans.space import NO_CONSTRAINTS, full_space
from solver.question import Question
from solver.result import Answer
from solver.search import price_plan, search
from solver.typed_plan import broken_rules, check_order, plan_of
from spec.errors import ConfigError, MissingCurveError, NoFeasiblePlanError, UserError
from spec.program.numbers import whole_number
from spec.settings.constraints import Constraints, bounded_settings, constraints_of
from spec.settings.plan import WrittenPlan, typed_plan_settings
from spec.settings.setting import typed_values


def obstacles(
    question: Question, answer: Answer, constraints: Constraints = NO_CONSTRAINTS
) -> tuple[str, ...]:
    """The rules and constraints that a priced plan breaks, and the memory that it lacks; () for one that can run."""
    limit = limit_bytes(question.cluster, constraints)
    short = needs_words(answer.needed_bytes, limit)
    broken = broken_rules(question, answer.plan, constraint_rules(constraints))
    return (*broken, *([short] if answer.needed_bytes > limit else []))


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedPlan:
    """``rank`` of the plans shown, from 1, or what is ``written``, by the keys ``said``; ``option`` asked for
    it. ``answer`` is that of a written plan once it is priced, the best of ``modes`` where no strategy is
    written."""

    option: str
    rank: int = 0
    written: WrittenPlan | None = None
    said: Mapping[str, Any] = field(default_factory=dict)
    answer: Answer | None = None
    modes: tuple[str, ...] = ()


def named_plan(text: str, option: str, *, shown: int) -> NamedPlan:
    """``rank=2`` or ``tp=8,pp=4,...``; raises ConfigError for neither, and for a rank beyond the plans ``shown``."""
    key, _, value = text.partition("=")
    if key.strip() != "rank":
        said = typed_values(text, typed_plan_settings(), option)
        return NamedPlan(option=option, written=WrittenPlan(**said), said=said)
    allowed = f"1 to {shown}, the plans shown at most" if shown else "a plan, or a rank with --run_all_solu"
    try:
        rank = whole_number(value.strip(), minimum=1, maximum=shown)
    except ValueError:
        raise ConfigError(where=option, key="rank", value=value, allowed=allowed) from None
    return NamedPlan(option=option, rank=rank)


def with_price(named: NamedPlan, question: Question) -> NamedPlan:
    """With its answer, which needs no search where the plan is written out.

    Raises ConfigError for a plan that there is no order of work or no world for.
    """
    if named.written is None:
        return named
    return replace(named, answer=price_written(named.written, question, named.option))


def with_best_price(named: NamedPlan, question: Question, constraints: Constraints) -> NamedPlan:
    """As with_price, and a plan written without a strategy as the best of the framework's: the one
    with fewest obstacles, of those the fastest.

    Raises what the first strategy does where none has an order of work, a world and times for it.
    """
    written = named.written
    if written is None or written.strategy is not None:
        return with_price(named, question)
    refused: UserError | None = None
    answers: dict[str, Answer] = {}
    for mode in question.job.preset.tensor_parallel.strategies:
        try:
            answers[mode] = price_written(replace(written, strategy=mode), question, named.option)
        except (ConfigError, MissingCurveError) as error:
            refused = refused or error
    if refused is not None and not answers:
        raise refused
    best = min(answers.values(), key=lambda one: (len(obstacles(question, one, constraints)), one.step_s))
    return replace(named, answer=best, modes=tuple(answers))


def price_written(written: WrittenPlan, question: Question, where: str) -> Answer:
    """The answer of a plan, whatever it breaks; raises ConfigError, naming ``where`` it is written, where
    there is no order of work or no world for it."""
    plan = plan_of(written, question, where)
    check_order(plan, question, where)
    return price_plan(question, PlanTable.of(plan))[0]


def answer_named(named: NamedPlan, shown: Sequence[Answer]) -> Answer:
    """The answer of a named plan, its own or of those ``shown``; ConfigError for a rank beyond them."""
    if named.answer is not None:
        return named.answer
    if named.rank > len(shown):
        allowed = f"1 to {len(shown)}, the plans shown"
        raise ConfigError(where=named.option, key="rank", value=named.rank, allowed=allowed)
    return shown[named.rank - 1]


def are_searched(said: Mapping[str, Any]) -> bool:
    """Whether a search chooses each of these keys; none does a layout, or a number of layers that run again."""
    return bool(said) and said.keys() <= bounded_settings().keys()


def best_with(said: Mapping[str, Any], question: Question, constraints: Constraints) -> Answer | None:
    """The fastest plan that fits, has the keys as ``said``, and keeps the ``constraints`` on others; None
    where there is none. The keys are_searched."""
    others = tuple(bound for bound in constraints.bounds if bound.key not in said)
    both = replace(constraints, bounds=(*others, *constraints_of({"fix": said}).bounds))
    try:
        return search(question, full_space(question.model, question.job, both), top_k=1).best[0]
    except NoFeasiblePlanError:
        return None
