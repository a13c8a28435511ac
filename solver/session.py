"""An open question: every plan of it can be searched, priced and explained. The command line uses the same object."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np

from solver.analysis.best_plans import best_plans
from solver.analysis.explanation import Explanation, explain_plan
from solver.analysis.named_plans import obstacles, price_written
from solver.candidates import Candidates, costs
from solver.estimate import StepTime
from solver.memory.memory_cost import TERMS
from solver.model_flops import mfu, tokens_per_gpu_per_s
from solver.opening import Opened
from solver.plans.space import full_space
from solver.question import Question
from solver.result import Answer, check_believable
from solver.search import SearchResult, candidate_pool, interval_s
from spec.settings.constraints import Constraints
from spec.settings.plan import WrittenPlan, typed_plan_settings
from spec.settings.setting import typed, typed_values

TOTALS = ("allocated_bytes", "reserved_bytes", "device_bytes", "needed_bytes")


def every_plan(
    question: Question, constraints: Constraints, tick: Callable[[], object] = lambda: None
) -> dict[str, list[Any]]:
    """Column -> values, fastest plan first: the plan's keys as written and dp, seconds of the step and its
    parts, bytes by term, tokens per GPU and second, MFU; as solver.result has them of one answer.
    ``tick`` as in solver.search.

    Raises NoFeasiblePlanError where no plan is left.
    """
    space = full_space(question.model, question.job, constraints)
    pool, _ = candidate_pool(question, space, tick=tick, everything=True)
    all_costs = costs([(one, np.arange(len(one.simulated))) for one in pool.candidates])
    blocks = [_columns(question, one, cost) for one, cost in zip(pool.candidates, all_costs, strict=True)]
    joined = {name: [value for block in blocks for value in block[name]] for name in blocks[0]}
    order = np.argsort(joined["step_s"], kind="stable")
    return {name: [values[row] for row in order] for name, values in joined.items()}


def _columns(question: Question, block: Candidates, cost: StepTime) -> dict[str, list[Any]]:
    """Of the plans of a block, all simulated."""
    plans = [block.table.plans.plan(row) for row in range(len(block.simulated))]
    written = [asdict(plan.written) for plan in plans]
    memory = block.table.memory
    low_s, high_s = interval_s(question, cost)
    numbers = {
        "step_s": cost.step_s,
        "standard_error_s": cost.standard_error_s,
        "interval_low_s": low_s,
        "interval_high_s": high_s,
        **{f"{part}_s": value for part, value in cost.parts.items()},
        **{term: getattr(memory, term) for term in TERMS},
        **{total: getattr(memory, total) for total in TOTALS},
        "tgs": tokens_per_gpu_per_s(question.job, cost.step_s),
        "mfu": mfu(question.model, question.job, question.cluster, cost.step_s),
    }
    return {
        **{key: [one[key] for one in written] for key in written[0]},
        "dp": [plan.dp for plan in plans],
        **{name: values.tolist() for name, values in numbers.items()},
    }


Typed = str | Mapping[str, Any] | WrittenPlan | Answer
"""A plan: ``"tp=8,pp=4"``, ``{"tp": 8, "pp": 4}``, one that a config writes, or that of an answer."""


@dataclass(frozen=True, kw_only=True)
class Session:
    """The question, with the times that answer it; they remember the shapes that they priced."""

    opened: Opened

    @cached_property
    def best(self) -> Answer:
        """The fastest plan that fits; NoFeasiblePlanError as ``search``."""
        return self.search().best[0]

    def search(self, *, top_k: int = 10, tick: Callable[[], object] = lambda: None) -> SearchResult:
        """Every plan that keeps the constraints, the ``top_k`` fastest shown; ``tick`` is called now and then.

        Raises NoFeasiblePlanError with the reasons, the nearest miss and the cheapest change; ProfileError
        for times that no machine could take.
        """
        result = best_plans(self.opened.question, self.opened.constraints, top_k=top_k, tick=tick)
        self._check(*result.best, *result.best_of_mode.values(), *result.pareto)
        return result

    def price(self, plan: Typed, *, where: str = "plan") -> Answer:
        """What a plan takes, whatever it breaks (``obstacles`` says what). Raises ConfigError for what is no
        plan of this world, naming ``where`` it is written."""
        if isinstance(plan, Answer):
            return plan
        answer = price_written(written_plan(plan, where), self.opened.question, where)
        self._check(answer)
        return answer

    def obstacles(self, plan: Typed) -> tuple[str, ...]:
        """Why a plan cannot run: rules and constraints that it breaks, and memory; () for one that can."""
        return obstacles(self.opened.question, self.price(plan), self.opened.constraints)

    def explain(self, plan: Typed) -> Explanation:
        """A plan taken apart: operations, how the step is put together, memory by stage; before any calibration."""
        return explain_plan(self.opened.question, self.price(plan).plan)

    def every_plan(self, *, tick: Callable[[], object] = lambda: None) -> dict[str, list[Any]]:
        """Every plan that fits and keeps the constraints, by column, fastest first (solver.session)."""
        return every_plan(self.opened.question, self.opened.constraints, tick)

    def _check(self, *answers: Answer) -> None:
        check_believable(answers, self.opened.source)


def written_plan(plan: str | Mapping[str, Any] | WrittenPlan, where: str) -> WrittenPlan:
    """The plan as written; ConfigError for unknown keys and values that they do not take."""
    return plan if isinstance(plan, WrittenPlan) else WrittenPlan(**plan_keys(plan, where))


def plan_keys(plan: str | Mapping[str, Any] | WrittenPlan, where: str) -> dict[str, Any]:
    """The keys that a plan says, with their values, of a WrittenPlan those that are not as where nothing is
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
