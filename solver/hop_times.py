"""What travels from a pipeline stage to the next, and how long that takes."""

from dataclasses import replace

import numpy as np

from ops.memory_bound import memory_pass
from ops.op import Axis, Comm, Op, Phase
from ops.roles import Identity, Module, Role
from ops.strategies.sharding import full_tokens_bytes, layer_context
from solver.plans.plan_table import PlanTable
from solver.times.op_times import Pricer
from spec.arrays import FloatArray, IntArray
from spec.collectives import Collective
from spec.dtypes import dtype_bytes
from spec.job import JobSpec
from spec.model import ModelSpec

# DeepSpeed runtime/pipe/engine.py: _exec_forward_pass gathers what came; _exec_backward_pass the stage's own
# outputs and the gradient that came. A message is as often an activation as a gradient.
PARTITIONED_GATHERS = (1 + 2) / 2


def hop_bytes(model: ModelSpec, job: JobSpec, plans: PlanTable) -> IntArray:
    """Bytes one rank sends to the next stage: a token shard where the strategy keeps shards or the
    framework cuts what it sends."""
    layout = plans.layout
    sharding = plans.sharding
    context = layer_context(sharding, model, job, layout)
    shards = layout.tp if job.preset.pipeline.scattered_hops else sharding.norm_shards(layout)
    return full_tokens_bytes(context) // shards


def hop_seconds(model: ModelSpec, job: JobSpec, plans: PlanTable, pricer: Pricer) -> FloatArray:
    """An activation or its gradient to the next stage; slices of a whole one are gathered on arrival."""
    layout = plans.layout
    seconds = pricer.hop(layout, hop_bytes(model, job, plans)).seconds
    if not job.preset.pipeline.scattered_hops:
        return seconds
    context = layer_context(plans.sharding, model, job, layout)
    whole = (plans.sharding.norm_shards(layout) == 1) & (layout.tp > 1) & (layout.pp > 1)
    gathered = gathered_slices(np.where(whole, full_tokens_bytes(context), 0), job)
    gathers = PARTITIONED_GATHERS if job.preset.pipeline.partitioned_tensors else 1.0
    for op in gathered:
        seconds = seconds + gathers * pricer.time(op, layout).seconds
    return seconds


def gathered_slices(size_bytes: IntArray, job: JobSpec) -> tuple[Op, ...]:
    """What brings slices of ``size_bytes`` in all together: an all-gather into a list, which PyTorch makes in
    a buffer of its own and copies out (ProcessGroupNCCL.cpp, allgather; Megatron-LM v2.5
    megatron/mpu/random.py, gather_split_1d_tensor). DeepSpeed's list are pieces of zeros, which are copied
    once more (runtime/utils.py, PartitionedTensor.full)."""
    gather = Comm(
        module=Module.OTHER,
        role=Role.GATHER,
        name="hop.gather",
        phase=Phase.FORWARD,
        collective=Collective.ALL_GATHER,
        axis=Axis.TP,
        size_bytes=size_bytes,
    )
    elements = (size_bytes // dtype_bytes(job.precision.activation)).astype(np.int64)

    def passed(word: str, repeat: int) -> Op:
        what = Identity(module=Module.OTHER, role=Role.COPY, serves=Role.GATHER, name=f"hop.{word}")
        one = memory_pass(what, Phase.FORWARD, word, elements, job.precision.activation)
        return replace(one, repeat=repeat)

    if not job.preset.pipeline.partitioned_tensors:
        return gather, passed("copy", 1)
    return passed("fill", 1), gather, passed("copy", 2)
