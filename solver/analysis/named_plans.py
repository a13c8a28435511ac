"""Plans that a user names (--explain, --compare, --why_not), by rank or by their keys, and what keeps each from
running."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from solver.memory.device import limit_bytes, needs_words
from solver.plans.constraints import constraint_rules
from solver.plans.plan_table import PlanTable
from solver.problem.loading import LoadedProblem
from solver.problem.price import price_plan
from solver.problem.problem import Problem
from solver.problem.requested_plan import broken_rules, check_order, plan_of
from solver.problem.result import Answer, check_believable
from spec.errors import ConfigError, MissingCurveError, UserError
from spec.program.kinds import whole_number
from spec.settings.constraints import NO_CONSTRAINTS, Constraints, bounded_settings, constraints_of
from spec.settings.plan import PlanSettings, plan_option_settings
from spec.settings.setting import parse_settings


def obstacles(problem: Problem, answer: Answer, constraints: Constraints = NO_CONSTRAINTS) -> tuple[str, ...]:
    """Returns the rules and constraints that a plan breaks, and the memory that it lacks; () if it can run, be it with
    less headroom than a search leaves."""
    limit = limit_bytes(problem.cluster, replace(constraints, headroom=0.0))
    also = constraint_rules(constraints) if constraints.bounds or constraints.keep_tp_in_node else ()
    broken = broken_rules(problem, answer.plan, also)
    return broken if answer.needed_bytes <= limit else (*broken, needs_words(answer.needed_bytes, limit))


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedPlan:
    """A plan that ``option`` names: by its ``rank`` among the displayed plans, from 1, or by its ``settings``, of which
    ``keys`` were specified. ``answer`` is there once a plan of settings is priced: the best of ``modes`` where no
    strategy was specified."""

    option: str
    rank: int = 0
    settings: PlanSettings | None = None
    keys: Mapping[str, Any] = field(default_factory=dict)
    answer: Answer | None = None
    modes: tuple[str, ...] = ()


def named_plan(text: str, option: str, *, num_displayed: int) -> NamedPlan:
    """Returns the plan of ``rank=2`` or ``tp=8,pp=4,...``; raises ConfigError for neither, and for a rank beyond the
    number of plans ``displayed``."""
    name, _, value = text.partition("=")
    if name.strip() != "rank":
        keys = parse_settings(text, plan_option_settings(), option)
        return NamedPlan(option=option, settings=PlanSettings(**keys), keys=keys)
    allowed = (
        f"1 to {num_displayed}, the plans shown at most" if num_displayed else "a plan, or a rank with --run_all_solu"
    )
    try:
        rank = whole_number(value.strip(), minimum=1, maximum=num_displayed)
    except ValueError:
        raise ConfigError(where=option, key="rank", value=value, allowed=allowed) from None
    return NamedPlan(option=option, rank=rank)


def with_price(named: NamedPlan, problem: Problem) -> NamedPlan:
    """Returns a plan of settings with its answer, which needs no search; a plan of a rank unchanged.

    Raises ConfigError for a plan without a schedule or a world.
    """
    if named.settings is None:
        return named
    return replace(named, answer=price_requested(named.settings, problem, named.option))


def with_best_price(named: NamedPlan, problem: Problem, constraints: Constraints) -> NamedPlan:
    """Returns the same, but a plan without a strategy under the framework's best one: that with the fewest obstacles,
    of these the fastest.

    Raises the error of the first strategy where none can price it.
    """
    settings = named.settings
    if settings is None or settings.strategy is not None:
        return with_price(named, problem)
    first_error: UserError | None = None
    answers: dict[str, Answer] = {}
    for mode in problem.job.preset.tensor_parallel.strategies:
        try:
            answers[mode] = price_requested(replace(settings, strategy=mode), problem, named.option)
        except (ConfigError, MissingCurveError) as error:
            first_error = first_error or error
    if first_error is not None and not answers:
        raise first_error
    best = min(answers.values(), key=lambda one: (len(obstacles(problem, one, constraints)), one.step_s))
    return replace(named, answer=best, modes=tuple(answers))


def price_requested(settings: PlanSettings, problem: Problem, where: str) -> Answer:
    """Returns the answer for a plan, although it may break rules. Raises ConfigError for a plan without a schedule or a
    world; ``where`` names the source of the plan in the message."""
    plan = plan_of(settings, problem, where)
    check_order(plan, problem, where)
    return price_plan(problem, PlanTable.of(plan))[0]


def answer_named(named: NamedPlan, displayed: Sequence[Answer]) -> Answer:
    """Returns the answer of a named plan, its own or that of its rank; ConfigError for a rank beyond those
    ``displayed``."""
    if named.answer is not None:
        return named.answer
    if named.rank > len(displayed):
        allowed = f"1 to {len(displayed)}, the plans shown"
        raise ConfigError(where=named.option, key="rank", value=named.rank, allowed=allowed)
    return displayed[named.rank - 1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A plan that is compared with the best one, and the ``obstacles`` that keep it from running.

    ``lacks_headroom`` says what it needs of the memory that a search uses, where that is more. Where keys name it: the ``modes`` of which it is the best if they name no strategy, and ``best_of_keys``, the best
    plan with these keys if a search chooses all others; None where no search does, or where ``none_runs``."""

    answer: Answer
    obstacles: tuple[str, ...]
    modes: tuple[str, ...] = ()
    best_of_keys: Answer | None = None
    none_runs: bool = False
    lacks_headroom: str = ""


def candidate(named: NamedPlan, inputs: LoadedProblem, displayed: Sequence[Answer]) -> Candidate:
    """Returns a named plan that was priced (with_price), or is one of those ``displayed``, and its obstacles.

    Raises ProfileError for times that no machine could take.
    """
    answer = answer_named(named, displayed)
    check_believable((answer,), inputs.source)
    limit = limit_bytes(inputs.problem.cluster, inputs.constraints)
    tight = answer.needed_bytes > limit and inputs.constraints.headroom > 0
    return Candidate(
        answer=answer,
        obstacles=obstacles(inputs.problem, answer, inputs.constraints),
        lacks_headroom=needs_words(answer.needed_bytes, limit) if tight else "",
    )


def are_searched(keys: Mapping[str, Any]) -> bool:
    """Returns whether a search can choose each of these keys; it chooses no layout and no number of recomputed
    layers."""
    return bool(keys) and keys.keys() <= bounded_settings().keys()


def challenger(named: NamedPlan, inputs: LoadedProblem, displayed: Sequence[Answer]) -> Candidate:
    """Returns the same with the best plan of its keys, where a search can choose them."""
    one = replace(candidate(named, inputs, displayed), modes=named.modes)
    if not are_searched(named.keys):
        return one
    best = best_with(named.keys, inputs.problem, inputs.constraints)
    if best is not None:
        check_believable((best,), inputs.source)
    return replace(one, best_of_keys=best, none_runs=best is None and bool(one.obstacles))


def best_with(keys: Mapping[str, Any], problem: Problem, constraints: Constraints) -> Answer | None:
    """Returns the fastest plan that fits, has these ``keys``, and meets the ``constraints`` on all others; None where
    there is none."""
    from solver.analysis.best_plans import best_of

    others = tuple(bound for bound in constraints.bounds if bound.key not in keys)
    return best_of(problem, replace(constraints, bounds=(*others, *constraints_of({"fix": keys}).bounds)))
