"""The best plans under constraints: a search, and where nothing is left the cheapest change that would leave
something.
"""

from collections.abc import Callable

from solver.decision.cheapest_change import cheapest_change
from solver.plans.space import full_space
from solver.question import Question
from solver.search import SearchResult, search
from spec.errors import NoFeasiblePlanError
from spec.settings.constraints import Constraints


def best_plans(
    question: Question,
    constraints: Constraints,
    *,
    top_k: int = 10,
    tick: Callable[[], object] = lambda: None,
) -> SearchResult:
    """Every plan that keeps the constraints, ranked by step time. ``tick`` as in solver.search.

    Raises NoFeasiblePlanError with the reasons, the nearest miss and the cheapest change.
    """
    space = full_space(question.model, question.job, constraints)
    try:
        return search(question, space, top_k=top_k, tick=tick)
    except NoFeasiblePlanError as error:
        raise NoFeasiblePlanError(
            rejected=error.rejected,
            nearest_miss=error.nearest_miss,
            change=cheapest_change(question, constraints),
        ) from None
