"""What travels from a pipeline stage to the next, and how long that takes."""

import numpy as np

from ops.op import Axis, Comm, Phase
from ops.roles import Module, Role
from ops.strategies.sharding import full_tokens_bytes, layer_context
from solver.plans.plan_table import PlanTable
from solver.times.op_times import Pricer
from spec.arrays import FloatArray, IntArray
from spec.collectives import Collective
from spec.job import JobSpec
from spec.model import ModelSpec


def hop_bytes(model: ModelSpec, job: JobSpec, plans: PlanTable) -> IntArray:
    """Bytes one rank sends to the next stage: a token shard where the strategy keeps shards or the
    framework cuts what it sends."""
    layout = plans.layout
    sharding = plans.sharding
    context = layer_context(sharding, model, job, layout)
    shards = layout.tp if job.preset.pipeline.scattered_hops else sharding.norm_shards(layout)
    return full_tokens_bytes(context) // shards


def hop_seconds(model: ModelSpec, job: JobSpec, plans: PlanTable, pricer: Pricer) -> FloatArray:
    """An activation to the next stage; slices of a whole activation are gathered on arrival."""
    layout = plans.layout
    seconds = pricer.hop(layout, hop_bytes(model, job, plans)).seconds
    if not job.preset.pipeline.scattered_hops:
        return seconds
    sharding = plans.sharding
    whole = sharding.norm_shards(layout) == 1
    size = full_tokens_bytes(layer_context(sharding, model, job, layout))
    gather = Comm(
        module=Module.OTHER,
        role=Role.GATHER,
        name="hop.gather",
        phase=Phase.FORWARD,
        collective=Collective.ALL_GATHER,
        axis=Axis.TP,
        size_bytes=np.where(whole & (layout.pp > 1), size, 0),
    )
    return seconds + pricer.time(gather, layout).seconds
