"""Every plan that fits with what it takes, by column: the table that a ranking is cut from."""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import numpy as np

from solver.answer.mfu import mfu, tokens_per_gpu_per_s
from solver.contest import Entrants, costs
from solver.estimate import StepTime
from solver.memory.memory_cost import TERMS
from solver.plans.space import full_space
from solver.question import Question
from solver.search import contested, interval_s
from spec.settings.constraints import Constraints

TOTALS = ("allocated_bytes", "reserved_bytes", "device_bytes", "needed_bytes")


def every_plan(
    question: Question, constraints: Constraints, tick: Callable[[], object] = lambda: None
) -> dict[str, list[Any]]:
    """Column -> values, fastest plan first: the plan's keys as written and dp, seconds of the step and its
    parts, bytes by term, tokens per GPU and second, MFU; as solver.answer.columns has them of one answer.
    ``tick`` as in solver.search.

    Raises NoFeasiblePlanError where no plan is left.
    """
    space = full_space(question.model, question.job, constraints)
    contest, _ = contested(question, space, tick=tick, everything=True)
    all_costs = costs([(one, np.arange(len(one.played))) for one in contest.entrants])
    blocks = [_columns(question, one, cost) for one, cost in zip(contest.entrants, all_costs, strict=True)]
    joined = {name: [value for block in blocks for value in block[name]] for name in blocks[0]}
    order = np.argsort(joined["step_s"], kind="stable")
    return {name: [values[row] for row in order] for name, values in joined.items()}


def _columns(question: Question, entrants: Entrants, cost: StepTime) -> dict[str, list[Any]]:
    """Of the plans of a block, all played."""
    plans = [entrants.table.plans.plan(row) for row in range(len(entrants.played))]
    written = [asdict(plan.written) for plan in plans]
    memory = entrants.table.memory
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
