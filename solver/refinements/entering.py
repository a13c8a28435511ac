"""Plans on their way into a contest: what they need, whether they are wanted, and their bounds."""

from dataclasses import replace

import numpy as np

from solver.contest import Entrants, play
from solver.estimate import Estimate, estimate_memory, stage_times
from solver.layers import layer_table
from solver.plans.constraints import constraint_rules
from solver.plans.drafted import drafted
from solver.plans.plan_table import PlanTable
from solver.plans.rules import RULES, Rule
from solver.question import Question
from solver.question_cost import cost_under
from solver.times.layer_times import LayerTimes
from spec.arrays import BoolArray, IntArray, bools
from spec.settings.constraints import Constraints


def laid_out(question: Question, plans: PlanTable, like: Estimate | None = None) -> Estimate:
    """The plans with their layers, stages and memory; what they share with ``like`` them is taken from there."""
    return estimate_memory(question.model, question.job, plans, question.cluster, like=like)


def chosen(question: Question, table: Estimate, rows: IntArray) -> Estimate:
    """These plans of the table, with no layer rows but theirs: what is priced next is priced for each."""
    taken = table.take(rows)
    return replace(taken, layers=layer_table(question.model, question.job, taken.plans))


def entered(question: Question, table: Estimate, pieces: list[LayerTimes] | None = None) -> Entrants:
    """The plans with a bound below each step, or under a calibration with the step itself; ``pieces`` as in
    solver.estimate.stage_seconds."""
    if question.calibration is not None:
        return Entrants.priced(table, cost_under(question, table))
    timed = stage_times(question.model, question.job, table, question.pricer, pieces)
    return Entrants.of(table, timed)


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


def wanted(question: Question, constraints: Constraints, table: Estimate) -> Estimate | None:
    """The plans that keep all rules, and all constraints but those on memory; None where none does."""
    kept = keeps(question, table.plans, (*constraint_rules(constraints), *RULES))
    if kept.all():
        return table
    return table.take(np.flatnonzero(kept).astype(np.int64)) if kept.any() else None
