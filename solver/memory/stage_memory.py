"""Memory of every pipeline stage, each term named; the worst stage decides.

Sources: ZeRO (arXiv 1910.02054 sec. 3 and 5) for parameters, gradients and optimizer state;
Korthikanti et al. 2022 (arXiv 2205.05198 sec. 4 and 5) for activations, whose bytes come from the
operations themselves.
"""

from dataclasses import dataclass, replace

import numpy as np

from ops.context import LayerContext
from ops.data_parallel.offload import keeps_gradients_on_host, offloaded_elements, optimizer_host_bytes
from ops.data_parallel.step import RankParameters, owned_elements
from ops.op import HostTransfer, Owner
from ops.strategies.sharding import Sharding, layer_context
from solver.memory.device_memory import communicator_bytes
from solver.memory.memory_cost import MemoryCost
from solver.pipeline.stages import StageTable
from solver.plans.plan_table import PlanTable
from solver.times.layer_times import DistinctLayers, LayerBytes, layer_bytes
from spec.arrays import BoolArray, FloatArray, IntArray, bools, ceil_div
from spec.cluster.cluster import ClusterSpec
from spec.dtypes import dtype_bytes
from spec.job import JobSpec
from spec.model import BlockSpec, ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class StageBytes:
    """Parameters of every stage row by owner, and its memory."""

    on_rank: RankParameters
    cost: MemoryCost


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """What memory is counted of: plans, their distinct layers and stages, and the cluster whose
    communicators count (None: nobody asks for device totals)."""

    plans: PlanTable
    layers: DistinctLayers
    stages: StageTable
    cluster: ClusterSpec | None = None


def stage_memory(model: ModelSpec, job: JobSpec, tables: Tables) -> StageBytes:
    """Memory of every stage row of every plan."""
    plans, layers, stages = tables.plans, tables.layers, tables.stages
    layout = plans.layout.take(stages.plan)
    context = layer_context(plans.sharding, model, job, layout)
    row = layers.row[stages.plan]
    count = len(layers.layout)
    kinds = [layer_bytes(piece, count) for piece in layers.pieces]
    weights = (*stages.layers, stages.embedding.astype(np.int64), stages.head.astype(np.int64))
    on_rank = RankParameters(
        **{
            owner.value: np.sum(
                [kind.parameters.of(owner)[row] * w for kind, w in zip(kinds, weights, strict=True)], axis=0
            )
            for owner in Owner
        }
    )
    vpp = plans.vpp[stages.plan]
    num_micro = plans.num_micro[stages.plan]
    chunks = plans.schedule.in_flight(stages.position, layout.pp, vpp, num_micro)
    blocks = len(stages.layers)
    saved = np.sum(
        [kind.saved_bytes[row] * w for kind, w in zip(kinds[:blocks], weights[:blocks], strict=True)], axis=0
    )
    embedding_saved = kinds[blocks].saved_bytes[row] * stages.embedding
    transient = np.max(
        [kind.transient_bytes[row] * (w > 0) for kind, w in zip(kinds[:blocks], weights, strict=False)],
        axis=0,
    )
    head = kinds[-1]
    logits = (head.saved_bytes + head.transient_bytes)[row] * stages.head
    working = transient + _working(context, plans.sharding, kinds, row)
    cost = MemoryCost(
        **_model_state(context, on_rank, plans, stages),
        narrow_weights_bytes=np.sum(
            [kind.cached_bytes[row] * w for kind, w in zip(kinds, weights, strict=True)], axis=0
        ),
        activations_bytes=(saved + embedding_saved) * chunks + _kept_outputs(context, plans, stages, chunks),
        # The logits are gone, but for their 16-bit gradient, when the last layer's backward begins.
        logits_bytes=np.where(logits > working, logits, 0.0),
        working_bytes=np.where(logits > working, 0.0, working),
        weight_pool_bytes=_weight_pool(context, kinds, row, weights),
        bucket_bytes=_bucket(context, on_rank) * _reduces_in_backward(context),
        step_bytes=np.zeros(len(row)),
        segment_bytes=np.zeros(len(row)),
        nccl_bytes=_nccl(tables),
        host_bytes=optimizer_host_bytes(context, owned_elements(context, on_rank))
        + _on_host(layers, row, weights[:blocks]) * chunks,
    )
    edge = kinds[blocks].parameters.total[row] * stages.embedding
    buffers = _step_buffers(context, on_rank, edge)
    step = _step_peak(cost, buffers)
    # Assumption: of the loss's tensors, all as large as the logits, one is a quarter of their bytes.
    segments = _segments(buffers, logits / 4.0) - step
    return StageBytes(
        on_rank=on_rank, cost=replace(cost, step_bytes=step, segment_bytes=np.maximum(segments, 0.0))
    )


def _on_host(layers: DistinctLayers, row: IntArray, weights: tuple[IntArray, ...]) -> FloatArray:
    """Saved activations that a micro-batch keeps on the host."""
    total = np.zeros(len(row))
    for piece, weight in zip(layers.pieces, weights, strict=False):
        for op in piece.forward:
            if isinstance(op, HostTransfer):
                total = total + op.size_bytes[row] * weight
    return total


def _nccl(tables: Tables) -> FloatArray:
    if tables.cluster is None:
        return np.zeros(len(tables.stages.plan))
    copies = tables.plans.sharding.traits.copies
    return communicator_bytes(tables.plans.layout, tables.cluster, copies)[tables.stages.plan]


def _kept_outputs(
    context: LayerContext, plans: PlanTable, stages: StageTable, chunks: FloatArray
) -> FloatArray:
    """Outputs of a stage that waits for their gradients, one a micro-batch in flight, and the buffers its
    input and its output's gradient arrive in (DeepSpeed, runtime/pipe/engine.py: pipe_buffers,
    pipe_recv_buf, grad_layer). Megatron-LM frees outputs once sent (2205.05198 app. B)."""
    if not context.job.preset.pipeline.keeps_stage_outputs:
        return np.zeros(len(chunks))
    rows = context.tokens // plans.sharding.norm_shards(context.layout)
    hidden = context.activations(rows, context.model.hidden)
    return np.where(context.layout.pp > 1, hidden * (chunks * ~stages.head + 2.0), 0.0)


def _model_state(
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


def _widest(block: BlockSpec, hidden: int) -> int:
    """Channels of the widest activations of a dense block; of one without a feed-forward network those that its
    mixer's widest product writes."""
    if block.mlp is not None:
        return block.mlp.ffn_hidden * (3 if block.mlp.gated else 2)
    if block.moe is not None:
        return 0
    tensors = (tensor for module in block.mixer.modules(hidden, "") for tensor in module.tensors)
    return max(tensor.shape[0] for tensor in tensors)


def _working(context: LayerContext, sharding: Sharding, kinds: list[LayerBytes], row: IntArray) -> FloatArray:
    """What a layer's backward holds for a moment: two hidden-sized gradients, the gradients of its widest
    activations, and, before it is reduced, the whole gradient of a layer whose gradients are sharded."""
    layout, model = context.layout, context.model
    widths = [_widest(run.block, model.hidden) for run in model.blocks]
    # This work is cut over tp whether the weights are (mtp, msp, fsp) or the tokens (isp).
    wide = context.activations(context.tokens, max(widths, default=0)) / layout.tp
    rows = ceil_div(context.tokens, sharding.gemm_shards(layout))
    gradients = 2.0 * context.activations(rows, model.hidden) + wide
    cut = (layout.zero_stage >= 2) | (layout.wp > 1)
    layer = np.max([kind.parameters.total[row] for kind in kinds[:-2]], axis=0) * layout.wp
    return gradients + np.where(cut, layer * dtype_bytes(context.job.precision.reduce), 0.0)


def _weight_pool(
    context: LayerContext, kinds: list[LayerBytes], row: IntArray, weights: tuple[IntArray, ...]
) -> FloatArray:
    """Gathered weights: two layers, one in use and one coming, or the head where that is more; isp
    (arXiv 2401.09149 sec. 3.3) and sharded parameters (arXiv 2304.11277 sec. 3.3.2). FSDP's outermost unit,
    embedding and head, stays gathered from the forward to the end of the backward (fully_shard:
    reshard_after_forward is False for the root)."""
    layout = context.layout
    layers, edges, edge = np.zeros(len(row)), np.zeros(len(row)), np.zeros(len(row))
    for index, (kind, weight) in enumerate(zip(kinds, weights, strict=True)):
        on_rank = kind.parameters
        isp = np.where(layout.wp > 1, on_rank.weight[row] * layout.wp, 0)
        sharded = np.where(layout.zero_stage >= 3, on_rank.total[row], 0)
        gathered = (isp + sharded) * (weight > 0)
        if index < len(kinds) - 2:
            layers = np.maximum(layers, 2.0 * gathered)
        else:
            edge, edges = np.maximum(edge, gathered), edges + gathered
    most = (
        layers + edges if context.job.preset.data_parallel.gathers_every_forward else np.maximum(layers, edge)
    )
    return np.asarray(most * context.parameter_bytes, dtype=np.float64)


def _bucket(context: LayerContext, on_rank: RankParameters) -> FloatArray:
    """One gradient bucket on its way, where gradients do not already lie in one buffer; a bucket in another
    format than the gradients' has a flat copy in theirs beside it."""
    preset, precision = context.job.preset, context.job.precision
    elements = np.minimum(on_rank.total, preset.data_parallel.bucket_elements)
    copied = precision.reduce != precision.gradient
    width = dtype_bytes(precision.reduce) + copied * dtype_bytes(precision.gradient)
    return 0.0 * elements if preset.data_parallel.contiguous_gradients else elements * width


def _reduces_in_backward(context: LayerContext) -> BoolArray:
    """Whether buckets leave while activations are still held: overlapped, or sharded gradients."""
    return bools(context.job.preset.data_parallel.overlap_grad_reduce | (context.layout.zero_stage >= 2))


def _step_buffers(
    context: LayerContext, on_rank: RankParameters, embedding: IntArray
) -> tuple[FloatArray, ...]:
    """Buffers in one piece that live one after another once activations go: the embedding's dense gradient
    before it is added to the sum, a bucket of gradients on its way, the fp32 copy of one fp16 gradient in
    the overflow check (DeepSpeed runtime/zero/stage_1_and_2.py, _has_inf_or_nan), fp32 gradients of the
    shard for the update."""
    precision, preset = context.job.precision, context.job.preset
    widened = (precision.gradient != precision.master) & (context.layout.zero_stage < 2)
    owned = owned_elements(context, on_rank)
    checked = 4.0 * (precision.gradient == "fp16") * (not preset.data_parallel.contiguous_gradients)
    return (
        embedding * context.activation_bytes,
        _bucket(context, on_rank) * ~_reduces_in_backward(context),
        embedding * checked,
        (owned - offloaded_elements(context, owned)) * dtype_bytes(precision.master) * widened,
    )


def _step_peak(cost: MemoryCost, buffers: tuple[FloatArray, ...]) -> FloatArray:
    """What the end of the step takes beyond the passes' peak; its activations are gone by then."""
    passes = cost.activations_bytes + cost.logits_bytes + cost.working_bytes + cost.bucket_bytes
    return np.asarray(np.maximum(np.max(buffers, axis=0) - passes, 0.0), dtype=np.float64)


def _segments(buffers: tuple[FloatArray, ...], largest: FloatArray) -> FloatArray:
    """What the caching allocator reserves for the buffers: tensors of 10 MiB and more have segments of
    their own, which do not join (c10/cuda/CUDACachingAllocator.cpp), so a buffer finds room only where
    the passes' ``largest`` tensor was. Assumption: no buffer fits where an earlier one was."""
    return np.asarray(np.sum([np.where(one > largest, one, 0.0) for one in buffers], axis=0))


def worst_stage(stages: StageTable, cost: MemoryCost) -> IntArray:
    """For every plan the stage row that needs the most device memory."""
    needed = cost.needed_bytes
    worst = np.maximum.reduceat(needed, stages.starts)
    is_worst = needed >= worst[stages.plan]
    rows = np.flatnonzero(is_worst)
    _, first = np.unique(stages.plan[rows], return_index=True)
    chosen: IntArray = rows[first].astype(np.int64)
    return chosen
