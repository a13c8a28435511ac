"""An open question: every plan of it can be searched, priced and explained. The command line uses the same object.

What a question does not need is not imported: pricing a plan loads no search.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from solver.analysis.named_plans import obstacles, price_written
from solver.opening import LoadedProblem
from solver.result import Answer, check_believable
from spec.settings.plan import WrittenPlan, typed_plan_settings
from spec.settings.setting import typed, typed_values

if TYPE_CHECKING:
    from solver.analysis.explanation import Explanation
    from solver.search import SearchResult

PlanText = str | Mapping[str, Any] | WrittenPlan | Answer
"""A plan: ``"tp=8,pp=4"``, ``{"tp": 8, "pp": 4}``, one that a config writes, or that of an answer."""


@dataclass(frozen=True, kw_only=True)
class Session:
    """The question, with the times that answer it; they remember the shapes that they priced."""

    opened: LoadedProblem

    @cached_property
    def best(self) -> Answer:
        """Returns the fastest plan that fits; NoFeasiblePlanError as ``search``."""
        return self.search().best[0]

    def search(self, *, top_k: int = 10, tick: Callable[[], object] = lambda: None) -> "SearchResult":
        """Returns every plan that keeps the constraints, the ``top_k`` fastest shown; ``tick`` is called now and then.

        Raises NoFeasiblePlanError with the reasons, the nearest miss and the cheapest change; ProfileError
        for times that no machine could take.
        """
        from solver.analysis.best_plans import best_plans

        result = best_plans(self.opened.problem, self.opened.constraints, top_k=top_k, tick=tick)
        self._check(*result.best, *result.best_of_mode.values(), *result.pareto)
        return result

    def price(self, plan: PlanText, *, where: str = "plan") -> Answer:
        """Returns what a plan takes, whatever it breaks (``obstacles`` says what). Raises ConfigError for what is no
        plan of this world, naming ``where`` it is written."""
        if isinstance(plan, Answer):
            return plan
        answer = price_written(written_plan(plan, where), self.opened.problem, where)
        self._check(answer)
        return answer

    def obstacles(self, plan: PlanText) -> tuple[str, ...]:
        """Returns why a plan cannot run: rules and constraints that it breaks, and memory; () for one that can."""
        return obstacles(self.opened.problem, self.price(plan), self.opened.constraints)

    def explain(self, plan: PlanText) -> "Explanation":
        """Returns a plan taken apart: operations, how the step is put together, memory by stage; before any calibration."""
        from solver.analysis.explanation import explain_plan

        return explain_plan(self.opened.problem, self.price(plan).plan)

    def every_plan(self, *, tick: Callable[[], object] = lambda: None) -> dict[str, list[Any]]:
        """Returns every plan that fits and keeps the constraints, by column, fastest first (solver.analysis.best_plans)."""
        from solver.analysis.best_plans import every_plan

        return every_plan(self.opened.problem, self.opened.constraints, tick)

    def _check(self, *answers: Answer) -> None:
        check_believable(answers, self.opened.source)


def written_plan(plan: str | Mapping[str, Any] | WrittenPlan, where: str) -> WrittenPlan:
    """Returns the plan as written; ConfigError for unknown keys and values that they do not take."""
    return plan if isinstance(plan, WrittenPlan) else WrittenPlan(**plan_keys(plan, where))


def plan_keys(plan: str | Mapping[str, Any] | WrittenPlan, where: str) -> dict[str, Any]:
    """Returns the keys that a plan specifies, with their values, of a WrittenPlan those that are not as where nothing is
    written; ConfigError as written_plan.
    """
    known = typed_plan_settings()
    if isinstance(plan, WrittenPlan):
        nothing = WrittenPlan()
        return {key: getattr(plan, key) for key in known if getattr(plan, key) != getattr(nothing, key)}
    if isinstance(plan, str):
        return typed_values(plan, known, where)
    words = [f"{key}={typed(value) if key in known else value}" for key, value in plan.items()]
    return typed_values(",".join(words), known, where)
