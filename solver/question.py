"""What a search or a price is asked about."""

from dataclasses import dataclass

from solver.calibration import Calibration
from solver.plans.draft import Draft
from solver.plans.plan_table import PlanTable
from solver.times.op_times import Pricer
from spec.cluster.cluster import ClusterSpec
from spec.job import JobSpec
from spec.model import ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Which model, under which job, on which cluster, priced by which book; ``calibration`` holds the
    factors of the user's cluster where they are asked for."""

    model: ModelSpec
    job: JobSpec
    cluster: ClusterSpec
    pricer: Pricer
    calibration: Calibration | None = None


def drafted(question: Question, plans: PlanTable) -> Draft:
    """The plans as rules see them (solver.plans.rules)."""
    return Draft(
        model=question.model,
        job=question.job,
        cluster=question.cluster,
        strategy=plans.strategy,
        columns=plans.columns,
        recompute=plans.recompute,
        recompute_modules=plans.recompute_modules,
        schedule=plans.schedule,
    )
