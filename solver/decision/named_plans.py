"""Plans that a question names: by their place in a ranking, or written out."""

from collections.abc import Sequence
from dataclasses import dataclass

from solver.answer.answer import Answer
from solver.plans.plan_table import PlanTable
from solver.question import Question
from solver.search import price_plan
from solver.typed_plan import check_order, parse_plan, plan_of
from spec.errors import ConfigError
from spec.program.numbers import whole_number
from spec.settings.plan import WrittenPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedPlan:
    """``rank`` of the plans shown, from 1, or what is ``written``; ``option`` asked for it."""

    option: str
    rank: int = 0
    written: WrittenPlan | None = None


def named_plan(text: str, option: str, *, shown: int) -> NamedPlan:
    """``rank=2`` or ``tp=8,pp=4,...``; raises ConfigError for neither, and for a rank beyond the plans ``shown``."""
    key, _, value = text.partition("=")
    if key.strip() != "rank":
        return NamedPlan(option=option, written=parse_plan(text, option))
    allowed = f"1 to {shown}, the plans shown at most" if shown else "a plan, or a rank with --run_all_solu"
    try:
        rank = whole_number(value.strip(), minimum=1, maximum=shown)
    except ValueError:
        raise ConfigError(where=option, key="rank", value=value, allowed=allowed) from None
    return NamedPlan(option=option, rank=rank)


def answer_named(named: NamedPlan, question: Question, shown: Sequence[Answer]) -> Answer:
    """The answer of a named plan, of those ``shown`` or priced now.

    Raises ConfigError for a rank beyond them, and for a plan that there is no order of work or no world for.
    """
    if named.written is None:
        if named.rank > len(shown):
            raise ConfigError(
                where=named.option,
                key="rank",
                value=named.rank,
                allowed=f"1 to {len(shown)}, the plans shown",
            )
        return shown[named.rank - 1]
    plan = plan_of(named.written, question, named.option)
    check_order(plan, question, named.option)
    return price_plan(question, PlanTable.of(plan))[0]
