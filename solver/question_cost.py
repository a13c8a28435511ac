"""The cost of a table of plans under a question: priced, and calibrated where factors are asked for."""

from solver.calibration import calibrated_cost
from solver.price import Sized, StepCost, price
from solver.question import Question


def cost_under(question: Question, table: Sized) -> StepCost:
    """The step of every plan of the table, all of its parts included."""
    cost = price(question.model, question.job, table, question.pricer)
    if question.calibration is None:
        return cost
    return calibrated_cost(question.model, question.job, table, question.pricer, cost, question.calibration)
