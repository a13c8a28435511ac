"""Memory of every pipeline stage, each term named; the worst stage decides.

``stage_memory`` is the sum:

    model state          parameters, gradients and optimizer state, which every job has
    activations          of all micro-batches in flight
    TERMS                what only some jobs have, one row each with when it applies; no other is called
    peak                 what does not add up (solver.memory.peak): the larger of loss and backward, what the end of the
                         step takes beyond the passes, and what the caching allocator keeps of all that

Sources: ZeRO (arXiv 1910.02054 sec. 3 and 5) for parameters, gradients and optimizer state; Korthikanti et al. 2022
(arXiv 2205.05198 sec. 4 and 5) for activations, whose bytes come from the operations themselves.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import wraps

import numpy as np

from ops.context import LayerContext, has_separate_ends, keeps_gathered, reduces_once
from ops.data_parallel.offload import host_elements, keeps_gradients_on_host, optimizer_host_bytes
from ops.data_parallel.step import RankParameters, owned_by_muon, owned_elements
from solver.memory.chunk_activations import chunk_activations
from solver.memory.device import communicator_bytes, dispatcher_bytes, transformer_engine_bytes
from solver.memory.peak import bucket_bytes, peak
from solver.memory.terms import FIELDS, MemoryEstimate, StageBytes, Stages, Tables, Term, elements_of, stages_of
from solver.plans.layers import LayerBytes
from spec.arrays import FloatArray, IntArray, floats
from spec.cluster.cluster import ClusterSpec
from spec.dtypes import dtype_bytes
from spec.job import JobSpec
from spec.model import ModelSpec


def stage_memory(model: ModelSpec, job: JobSpec, tables: Tables) -> StageBytes:
    """Returns the memory of every stage row of every plan."""
    stages = stages_of(model, job, tables)
    terms = dict.fromkeys(FIELDS, np.zeros(len(stages.row))) | model_state(stages)
    terms["activations_bytes"] = activation_bytes(stages)
    for term in TERMS:
        if term.applies(stages):
            terms[term.name] = terms[term.name] + term.bytes_of(stages)
    return StageBytes(on_rank=stages.trainable, cost=peak(stages, MemoryEstimate(**terms)))


# Parameters, gradients and optimizer state of a stage (ZeRO, arXiv 1910.02054 sec. 3 and 5).


def model_state(stages: Stages) -> dict[str, FloatArray]:
    """Returns parameters, which ZeRO stage 3 shards; gradients that accumulate, sharded from stage 2 on; optimizer
    state, sharded from stage 1 on."""
    precision, zero_stage = stages.job.precision, stages.context.layout.zero_stage
    whole, owned = stages.trainable.total, stages.owned
    # A sharded fp32 copy of the optimizer's replaces the shard of parameters; it is counted with the optimizer.
    sharded = 0 if stages.sync.shards_master and precision.master else owned
    cut_gradients = owned * sharded_gradient_width(stages.job)
    whole_gradients = whole * dtype_bytes(precision.gradient)
    return {
        "parameters_bytes": np.where(zero_stage >= 3, sharded, whole) * dtype_bytes(precision.parameter),
        "gradients_bytes": np.where(zero_stage >= 2, cut_gradients, whole_gradients),
        # Adam: the master copy, and two moments.
        "optimizer_bytes": owned * (precision.master_bytes + 2 * dtype_bytes(precision.moments)),
    }


def sharded_gradient_width(job: JobSpec) -> float:
    """Returns the bytes of an element of sharded gradients, which are cast to the master's format where that is
    sharded."""
    width = dtype_bytes(job.precision.gradient)
    return max(width, job.precision.master_bytes) if job.preset.data_parallel.shards_master else width


def frozen_bytes(stages: Stages) -> FloatArray:
    """Returns the bytes of frozen parameters beside adapters, which ZeRO stage 3 shards."""
    frozen = elements_of(stages.tables.kinds, "frozen", stages.row, stages.numbers)
    context = stages.context
    elements = np.where(context.layout.zero_stage >= 3, owned_elements(context, frozen), frozen.total)
    return floats(elements * dtype_bytes(context.job.precision.parameter))


def low_precision_only_bytes(stages: Stages) -> FloatArray:
    """Returns minus the bytes of weights that exist only in the format of the products; sharded parameters stay as they
    are."""
    whole = stages.total("cast_elements") * stages.context.parameter_bytes
    return -np.where(stages.context.layout.zero_stage >= 3, 0.0, whole)


def low_precision_copy_bytes(stages: Stages) -> FloatArray:
    """Returns the bytes of copies of weights in the format of the products, which stay from step to step."""
    precision = stages.job.precision
    # Sharded weights that exist or travel in that format are gathered in it: gathered_weights_bytes has them.
    gathered = (precision.low_precision_parameters or precision.gathers_low_precision) & (
        stages.context.layout.zero_stage >= 3
    )
    return np.where(gathered, 0.0, stages.total("cached_bytes"))


def whole_gradients_bytes(context: LayerContext, trainable: RankParameters, num_micro: IntArray) -> FloatArray:
    """Returns the bytes of gradients beyond those of model_state: those of one micro-batch where the framework keeps
    them, and the sum over micro-batches, in the format of the reduction, where sharded gradients are reduced once a
    step."""
    preset = context.job.preset
    micro = preset.data_parallel.keeps_micro_gradients * dtype_bytes(context.job.precision.compute)
    accumulates = reduces_once(context.job, context.layout) & (num_micro > 1)
    # FSDP1 adds up gradients in the format of the products (_runtime_utils.py, _post_backward_hook).
    fsdp1 = preset.data_parallel.fsdp_version == 1
    width = dtype_bytes(context.job.precision.compute if fsdp1 else context.reduce_dtype)
    whole = trainable.total * (micro + accumulates * width)
    shards = owned_elements(context, trainable) * sharded_gradient_width(context.job)
    # Without pipeline stages the last backward replaces the sum by its shards layer by layer, so that both are never
    # there at once: the shards of model_state are part of the sum.
    apart = ~accumulates | keeps_gathered(context.job, context.layout)
    return floats(np.where(apart, whole, np.maximum(whole - shards, 0.0)))


def dummy_wgrad_bytes(stages: Stages) -> FloatArray:
    """Returns the bytes of empty tensors that autograd gets for gradients that products accumulate themselves: one of
    each weight's shape, in the format of the products' results (Transformer Engine ``module/base.py``, get_dummy_wgrad;
    Megatron-LM ``tensor_parallel/layers.py`` for the head)."""
    shapes = stages.largest("shapes") + stages.total("shapes", slice(-1, None))
    return floats(dtype_bytes(stages.job.precision.compute) * shapes)


def muon_bytes(stages: Stages) -> FloatArray:
    """Returns minus the bytes of the second moment, which Muon has not for its matrices."""
    moments = dtype_bytes(stages.job.precision.moments)
    return floats(-owned_by_muon(stages.context, stages.trainable) * moments)


def offloaded_optimizer_bytes(stages: Stages) -> FloatArray:
    """Returns minus the bytes of optimizer state that is on the host."""
    precision = stages.job.precision
    elements = host_elements(stages.context, stages.owned)
    return floats(-elements * (precision.master_bytes + 2 * dtype_bytes(precision.moments)))


def offloaded_gradient_bytes(stages: Stages) -> FloatArray:
    """Returns minus the bytes of sharded gradients that stay on the host from one micro-batch to the next."""
    elements = keeps_gradients_on_host(stages.context) * host_elements(stages.context, stages.owned)
    return floats(-elements * sharded_gradient_width(stages.job))


# Activations, gathered weights and gradients on their way.


def activation_bytes(stages: Stages) -> FloatArray:
    """Returns the bytes that layers and embedding save for the backward of all micro-batches in flight."""
    tables = stages.tables
    # Chunks hold different layers, and are in flight for different micro-batches.
    if (tables.plans.vpp > 1).any() or not tables.plans.schedule.placement.looped:
        return chunk_activations(tables.plans, tables.stages, tables.kinds, tables.row, stages.in_flight)
    return stages.in_flight * stages.total("saved_bytes", slice(None, -1))


def host_activation_bytes(stages: Stages) -> FloatArray:
    """Returns the bytes of activations on the host, of all micro-batches in flight."""
    return stages.total("host_bytes", slice(None, -2)) * stages.in_flight


def stage_output_bytes(stages: Stages) -> FloatArray:
    """Returns the bytes of outputs that a stage keeps until their gradients come, one a micro-batch in flight, and of
    the buffers that its input and its output's gradient arrive in (DeepSpeed, runtime/pipe/engine.py: pipe_buffers,
    pipe_recv_buf, grad_layer). Megatron-LM frees outputs once they are sent (2205.05198 app. B)."""
    context = stages.context
    rows = context.tokens // context.layout.tp_if(stages.tables.plans.sharding.traits.cuts_tokens)
    hidden = context.activations(rows, context.model.hidden * context.model.residual_streams)
    outputs = stages.in_flight * ~stages.tables.stages.head + 2.0
    return np.where(context.layout.pp > 1, hidden * outputs, 0.0)


def gathered_weights_bytes(
    context: LayerContext, kinds: list[LayerBytes], row: IntArray, numbers: tuple[IntArray, ...]
) -> FloatArray:
    """Returns the bytes of weights that are gathered for a moment while their shards live on many ranks.

    Two layers, one in use and one prefetched (one alone without prefetch), or the head where that is more; of isp
    (arXiv 2401.09149 sec. 3.3) and of sharded parameters (arXiv 2304.11277 sec. 3.3.2). FSDP's root unit, embedding and
    head, stays gathered from the forward to the end of the backward (fully_shard: reshard_after_forward is False for
    the root); where both are units of their own the embedding is freed before the head is gathered. With pipeline
    stages all weights of a stage stay. DeepSpeed prefetches at every module up to live_elements
    (runtime/zero/partitioned_param_coordinator.py, fetch_sub_module: max_live_parameters), and its head in any case.
    """
    layout, data_parallel = context.layout, context.job.preset.data_parallel
    precision = context.job.precision
    # Assumption: weights that are held narrow are gathered in both orders, which take what 16 bits do.
    single = precision.gathers_low_precision and not precision.low_precision_parameters
    # Share of the 16 bits of an element that a gather in low precision saves.
    saving = single * (1.0 - dtype_bytes(precision.parameter_gather) / context.parameter_bytes)
    # The largest layers in use, embedding and head together, the larger of them, and everything that the stage holds.
    layers, ends, larger_end, everything = (np.zeros(len(row)) for _ in range(4))
    for index, (kind, number) in enumerate(zip(kinds, numbers, strict=True)):
        isp = np.where(layout.wp > 1, (kind.parameters.weight + kind.frozen.weight)[row] * layout.wp, 0)
        elements = kind.parameters.total + kind.frozen.total
        elements = elements - saving * (kind.parameters.low_precision_total + kind.frozen.low_precision_total)
        sharded = np.where(layout.zero_stage >= 3, elements[row], 0)
        gathered = (isp + sharded) * (number > 0)
        everything = everything + sharded * number
        if index < len(kinds) - 2:
            layers = np.maximum(layers, data_parallel.gathered_layers * gathered)
        else:
            larger_end, ends = np.maximum(larger_end, gathered), ends + gathered
    root = larger_end if has_separate_ends(context.job, context.model) else ends
    most = layers + root if data_parallel.gathers_every_forward else np.maximum(layers, larger_end)
    if data_parallel.live_elements:
        most = np.maximum(np.minimum(everything, data_parallel.live_elements), larger_end)
    most = np.where(context.job.preset.pipeline.keeps_gathered & (layout.pp > 1), everything, most)
    return np.asarray(most * context.parameter_bytes, dtype=np.float64)


def of_plans(bytes_of: Callable[[LayerContext, ClusterSpec], FloatArray]) -> Callable[[Stages], FloatArray]:
    """Returns a term of bytes that are the same on all stages of a plan."""

    @wraps(bytes_of)
    def of_stages(stages: Stages) -> FloatArray:
        tables = stages.tables
        assert tables.cluster is not None
        context = replace(stages.context, layout=tables.plans.layout)
        return bytes_of(context, tables.cluster)[tables.stages.plan]

    return of_stages


TERMS: tuple[Term, ...] = (
    # Adapters beside frozen weights; weights in the format of the products.
    Term("parameters_bytes", lambda s: bool(s.job.adapter_rank), frozen_bytes),
    Term("parameters_bytes", lambda s: s.job.precision.low_precision_parameters, low_precision_only_bytes),
    Term(
        "narrow_weights_bytes",
        lambda s: any(kind.cached_bytes.any() for kind in s.tables.kinds),
        low_precision_copy_bytes,
    ),
    # Gradients besides those of model_state.
    Term(
        "gradients_bytes",
        lambda s: s.sync.keeps_micro_gradients or s.sync.reduces_once or s.job.preset.pipeline.keeps_gathered,
        lambda s: whole_gradients_bytes(s.context, s.trainable, s.num_micro),
    ),
    Term("gradients_bytes", lambda s: s.sync.keeps_dummy_wgrad, dummy_wgrad_bytes),
    Term("optimizer_bytes", lambda s: s.job.optimizer == "muon", muon_bytes),
    # An optimizer on the host.
    Term("gradients_bytes", lambda s: s.offloads, offloaded_gradient_bytes),
    Term("optimizer_bytes", lambda s: s.offloads, offloaded_optimizer_bytes),
    Term("host_bytes", lambda s: s.offloads, lambda s: optimizer_host_bytes(s.context, s.owned)),
    # Activations on the host, and outputs of pipeline stages.
    Term("host_bytes", lambda s: any(kind.host_bytes.any() for kind in s.tables.kinds[:-2]), host_activation_bytes),
    Term(
        "activations_bytes",
        lambda s: s.job.preset.pipeline.keeps_stage_outputs and bool((s.context.layout.pp > 1).any()),
        stage_output_bytes,
    ),
    # Weights and gradients on their way.
    Term(
        "weight_pool_bytes",
        lambda s: bool(((s.context.layout.zero_stage >= 3) | (s.context.layout.wp > 1)).any()),
        lambda s: gathered_weights_bytes(s.context, s.tables.kinds, s.row, s.numbers),
    ),
    Term(
        "bucket_bytes",
        lambda s: s.sync.keeps_buckets or not s.sync.contiguous_gradients,
        lambda s: bucket_bytes(s.context, s.trainable)[0],
    ),
    # Besides tensors, from the first step to the last (solver.memory.device).
    Term("nccl_bytes", lambda s: s.on_device and s.job.world_size > 1, of_plans(communicator_bytes)),
    Term("nccl_bytes", lambda s: s.on_device and s.job.sends_tokens_once, of_plans(dispatcher_bytes)),
    Term(
        "nccl_bytes",
        lambda s: s.on_device and s.job.preset.layers.transformer_engine,
        of_plans(transformer_engine_bytes),
    ),
)
