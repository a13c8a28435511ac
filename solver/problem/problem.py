"""The problem that a search or a price solves: which model, under which job, on which cluster, by which times."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from solver.estimate import Estimate, StepTime, step_time
from solver.problem.interval import Evidence
from solver.times.op_times import OpTimer
from spec.cluster.cluster import ClusterSpec
from spec.job import JobSpec
from spec.model import ModelSpec

if TYPE_CHECKING:
    from solver.problem.calibration import Calibration


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Which model, under which job, on which cluster, priced by which cost model; ``evidence`` is what the times rest
    on, and ``calibration`` holds the factors of the user's cluster where they are requested."""

    model: ModelSpec
    job: JobSpec
    cluster: ClusterSpec
    op_timer: OpTimer
    evidence: Evidence = Evidence.SPEC
    calibration: "Calibration | None" = None


def cost_under(problem: Problem, table: Estimate) -> StepTime:
    """Returns the step of every plan of the table, all of its parts included."""
    cost = step_time(problem.model, problem.job, table, problem.op_timer)
    if problem.calibration is None:
        return cost
    from solver.problem.calibration import calibrated_cost

    return calibrated_cost(problem.model, problem.job, table, problem.op_timer, cost, problem.calibration)
