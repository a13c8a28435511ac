"""Parameters, gradients and optimizer state of a stage (ZeRO, arXiv 1910.02054 sec. 3 and 5)."""

import numpy as np

from ops.context import LayerContext
from ops.data_parallel.offload import keeps_gradients_on_host, offloaded_elements
from ops.data_parallel.step import RankParameters, owned_elements
from solver.pipeline.stages import StageTable
from solver.plans.plan_table import PlanTable
from spec.arrays import FloatArray
from spec.dtypes import dtype_bytes


def model_state(
    context: LayerContext, on_rank: RankParameters, plans: PlanTable, stages: StageTable
) -> dict[str, FloatArray]:
    """Parameters, gradients (cut by stage 2 and up) and optimizer state (cut by stage 1 and up), without what
    is on the host."""
    precision = context.job.precision
    owned = owned_elements(context, on_rank)
    here = owned - offloaded_elements(context, owned)
    stage = plans.layout.zero_stage[stages.plan]
    state = dtype_bytes(precision.master) + 2 * dtype_bytes(precision.moments)
    kept = np.where(keeps_gradients_on_host(context) > 0, here, owned)
    gradients = np.where(stage >= 2, kept, on_rank.total)
    parameters = np.where(stage >= 3, owned, on_rank.total)
    return {
        "parameters_bytes": parameters * dtype_bytes(precision.parameter),
        "gradients_bytes": gradients * dtype_bytes(precision.gradient),
        "optimizer_bytes": here * state,
    }
