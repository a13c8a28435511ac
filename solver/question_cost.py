"""The cost of a table of plans under a question: priced, and calibrated where factors are asked for."""

from solver.calibrate.factors import calibrated_cost
from solver.estimate import Estimate, StepTime, step_time
from solver.question import Question


def cost_under(question: Question, table: Estimate) -> StepTime:
    """The step of every plan of the table, all of its parts included."""
    cost = step_time(question.model, question.job, table, question.pricer)
    if question.calibration is None:
        return cost
    return calibrated_cost(question.model, question.job, table, question.pricer, cost, question.calibration)
