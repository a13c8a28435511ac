"""Plans on their way into a contest: what they need, whether they are wanted, and their bounds."""

import numpy as np

from solver.contest import Entrants, play
from solver.plans.constraints import constraint_rules
from solver.plans.drafted import drafted
from solver.plans.plan_table import PlanTable
from solver.plans.rules import Rule
from solver.price import sized, stage_seconds
from solver.question import Question
from solver.question_cost import cost_under
from spec.arrays import BoolArray, FloatArray, bools
from spec.settings.constraints import Constraints


def needed_bytes(question: Question, plans: PlanTable) -> FloatArray:
    """Bytes that each plan's worst stage needs of a device."""
    return sized(question.model, question.job, plans, question.cluster).needed_bytes


def entered(question: Question, plans: PlanTable) -> Entrants:
    """The plans with a bound below each step, or under a calibration with the step itself."""
    table = sized(question.model, question.job, plans, question.cluster)
    if question.calibration is not None:
        return Entrants.priced(table, cost_under(question, table))
    return Entrants.of(table, stage_seconds(question.model, question.job, table, question.pricer))


def fastest_s(one: Entrants) -> float:
    """The step of the plan whose bound is least, replayed."""
    row = np.argmin(one.step_s)
    if not one.played[row]:
        play([(one, bools(np.arange(len(one.step_s)) == row))])
    return float(one.step_s[row])


def keeps(question: Question, plans: PlanTable, rules: tuple[Rule, ...]) -> BoolArray:
    """Which plans keep all of the rules."""
    kept = np.ones(len(plans), dtype=np.bool_)
    draft = drafted(question.model, question.job, question.cluster, plans)
    for rule in rules:
        kept &= rule.keep(draft)
    return kept


def wanted(question: Question, constraints: Constraints, plans: PlanTable) -> PlanTable | None:
    """The plans that keep all constraints but those on memory; None where none does."""
    rows = np.flatnonzero(keeps(question, plans, constraint_rules(constraints))).astype(np.int64)
    return plans.take(rows) if rows.size else None
