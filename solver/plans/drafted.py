"""Whole plans as rules see them."""

from solver.plans.draft import Draft
from solver.plans.plan_table import PlanTable
from spec.cluster.cluster import ClusterSpec
from spec.job import JobSpec
from spec.model import ModelSpec


def drafted(model: ModelSpec, job: JobSpec, cluster: ClusterSpec, plans: PlanTable) -> Draft:
    """The plans as solver.plans.rules takes them."""
    return Draft(
        model=model,
        job=job,
        cluster=cluster,
        strategy=plans.strategy,
        columns=plans.columns,
        recompute=plans.recompute,
        recompute_modules=plans.recompute_modules,
        offload_modules=plans.offload_modules,
        schedule=plans.schedule,
    )
