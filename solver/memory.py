"""Memory of every pipeline stage, each term named; the worst stage decides.

Sources: ZeRO (arXiv 1910.02054 sec. 3 and 5) for parameters, gradients and optimizer state;
Korthikanti et al. 2022 (arXiv 2205.05198 sec. 4 and 5) for activations, whose bytes come from the
operations themselves.
"""

from dataclasses import dataclass, fields

import numpy as np

from ops.context import LayerContext
from ops.op import Owner
from ops.step import HeldParameters, owned_elements
from solver.layer_times import DistinctLayers, LayerBytes, layer_bytes
from solver.plans import PlanTable
from solver.stages import StageTable, in_flight, in_flight_filled
from spec.arrays import FloatArray, IntArray
from spec.cluster import ClusterSpec
from spec.dtypes import dtype_bytes
from spec.job import JobSpec
from spec.model import ModelSpec
from spec.units import GIB

# Assumption: freed and split blocks that PyTorch's caching allocator keeps beyond what is allocated.
ALLOCATOR_SLACK = 0.04
# Assumption: what the driver and the context of other processes keep of the sheet's capacity.
UNUSABLE_SHARE = 0.01
# Assumption: CUDA context with cuBLAS and cuDNN workspaces, and NCCL's buffers, per process.
CONTEXT_BYTES = 1.0 * GIB
NCCL_BYTES = 0.5 * GIB


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryCost:
    """Bytes per row. The named parts sum to ``allocated_bytes``."""

    parameters_bytes: FloatArray
    gradients_bytes: FloatArray
    optimizer_bytes: FloatArray
    activations_bytes: FloatArray
    logits_bytes: FloatArray
    working_bytes: FloatArray
    weight_pool_bytes: FloatArray
    bucket_bytes: FloatArray

    @property
    def allocated_bytes(self) -> FloatArray:
        """What tensors occupy at the peak (max_memory_allocated)."""
        total = np.zeros_like(self.parameters_bytes)
        for field in fields(self):
            total = total + getattr(self, field.name)
        return total

    @property
    def reserved_bytes(self) -> FloatArray:
        """What the caching allocator holds (max_memory_reserved)."""
        return self.allocated_bytes * (1.0 + ALLOCATOR_SLACK)

    @property
    def device_bytes(self) -> FloatArray:
        """What the device shows as used: reserved, context and NCCL."""
        return self.reserved_bytes + CONTEXT_BYTES + NCCL_BYTES

    def take(self, rows: IntArray) -> "MemoryCost":
        """The rows asked for."""
        return MemoryCost(**{field.name: getattr(self, field.name)[rows] for field in fields(self)})


@dataclass(frozen=True, slots=True, kw_only=True)
class StageBytes:
    """Parameters of every stage row by owner, and its memory."""

    held: HeldParameters
    cost: MemoryCost


def stage_memory(
    model: ModelSpec, job: JobSpec, plans: PlanTable, layers: DistinctLayers, stages: StageTable
) -> StageBytes:
    """Memory of every stage row of every plan."""
    layout = plans.layout.take(stages.plan)
    context = LayerContext(model=model, job=job, layout=layout)
    row = layers.row[stages.plan]
    count = len(layers.layout)
    kinds = [layer_bytes(piece, count) for piece in layers.pieces]
    weights = (*stages.layers, stages.embedding.astype(np.int64), stages.head.astype(np.int64))
    held = HeldParameters(
        **{
            owner.value: np.sum(
                [kind.parameters.of(owner)[row] * w for kind, w in zip(kinds, weights, strict=True)], axis=0
            )
            for owner in Owner
        }
    )
    vpp = plans.vpp[stages.plan]
    num_micro = plans.num_micro[stages.plan]
    if plans.schedule.fills_bubble:
        chunks: FloatArray = in_flight_filled(layout.pp, num_micro).astype(np.float64)
    else:
        chunks = in_flight(stages.position, layout.pp, vpp, num_micro) / vpp
    blocks = len(model.blocks)
    saved = np.sum(
        [kind.saved_bytes[row] * w for kind, w in zip(kinds[:blocks], weights[:blocks], strict=True)], axis=0
    )
    embedding_saved = kinds[blocks].saved_bytes[row] * stages.embedding
    transient = np.max(
        [kind.transient_bytes[row] * (w > 0) for kind, w in zip(kinds[:blocks], weights, strict=False)],
        axis=0,
    )
    cost = MemoryCost(
        **_model_state(context, held, plans, stages),
        activations_bytes=(saved + embedding_saved) * chunks,
        logits_bytes=kinds[-1].saved_bytes[row] * stages.head,
        working_bytes=transient + _working(model, context, kinds, row),
        weight_pool_bytes=_weight_pool(context, kinds, row, weights),
        bucket_bytes=_bucket(context, held),
    )
    return StageBytes(held=held, cost=_or_step_peak(context, held, cost))


def _model_state(
    context: LayerContext, held: HeldParameters, plans: PlanTable, stages: StageTable
) -> dict[str, FloatArray]:
    """Parameters, gradients (cut by stage 2 and up) and optimizer state (cut by stage 1 and up)."""
    precision = context.job.precision
    owned = owned_elements(context, held)
    stage = plans.layout.zero_stage[stages.plan]
    state = dtype_bytes(precision.master) + 2 * dtype_bytes(precision.moments)
    gradients = np.where(stage >= 2, owned, held.total)
    parameters = np.where(stage >= 3, owned, held.total)
    return {
        "parameters_bytes": parameters * dtype_bytes(precision.parameter),
        "gradients_bytes": gradients * dtype_bytes(precision.gradient),
        "optimizer_bytes": owned * state,
    }


def _working(model: ModelSpec, context: LayerContext, kinds: list[LayerBytes], row: IntArray) -> FloatArray:
    """What a layer's backward holds for a moment: two hidden-sized gradients, the gradients of its widest
    activations, and, before it is reduced, the whole gradient of a layer whose gradients are sharded."""
    layout = context.layout
    widths = [
        run.block.mlp.ffn_hidden * (3 if run.block.mlp.gated else 2) for run in model.blocks if run.block.mlp
    ]
    # Feed-forward work is cut over tp whether the weights are (mtp, msp, fsp) or the tokens (isp).
    wide = context.activations(context.tokens, max(widths, default=0)) / layout.tp
    gradients = 2.0 * context.activations(context.tokens, model.hidden) + wide
    cut = (layout.zero_stage >= 2) | (layout.wp > 1)
    layer = np.max([kind.parameters.total[row] for kind in kinds[: len(model.blocks)]], axis=0) * layout.wp
    return gradients + np.where(cut, layer * dtype_bytes(context.job.precision.reduce), 0.0)


def _weight_pool(
    context: LayerContext, kinds: list[LayerBytes], row: IntArray, weights: tuple[IntArray, ...]
) -> FloatArray:
    """Gathered weights: two layers, one in use and one coming, or the head where that is more; isp
    (arXiv 2401.09149 sec. 3.3) and sharded parameters (arXiv 2304.11277 sec. 3.3.2)."""
    layout = context.layout
    most = np.zeros(len(row))
    for index, (kind, weight) in enumerate(zip(kinds, weights, strict=True)):
        held = kind.parameters
        isp = np.where(layout.wp > 1, held.weight[row] * layout.wp, 0)
        sharded = np.where(layout.zero_stage >= 3, held.total[row], 0)
        layers = 2.0 if index < len(kinds) - 2 else 1.0
        most = np.maximum(most, layers * (isp + sharded) * (weight > 0))
    return most * context.parameter_bytes


def _bucket(context: LayerContext, held: HeldParameters) -> FloatArray:
    """One gradient bucket on its way, where gradients do not already lie in one buffer."""
    preset, precision = context.job.preset, context.job.precision
    elements = np.minimum(held.total, preset.bucket_elements)
    return 0.0 * elements if preset.contiguous_gradients else elements * dtype_bytes(precision.reduce)


def _or_step_peak(context: LayerContext, held: HeldParameters, cost: MemoryCost) -> MemoryCost:
    """The optimizer step has a peak of its own: no activations, but fp32 gradients of the shard."""
    precision = context.job.precision
    if precision.gradient == precision.master:
        return cost
    step_bytes = owned_elements(context, held) * dtype_bytes(precision.master)
    backward_bytes = cost.activations_bytes + cost.logits_bytes + cost.working_bytes + cost.bucket_bytes
    extra = np.maximum(step_bytes - backward_bytes, 0.0)
    return MemoryCost(
        **{
            field.name: getattr(cost, field.name) + (extra if field.name == "working_bytes" else 0.0)
            for field in fields(MemoryCost)
        }
    )


def usable_bytes(cluster: ClusterSpec) -> float:
    """Device memory a plan may need at most."""
    return cluster.gpu.memory_bytes * (1.0 - UNUSABLE_SHARE)


def worst_stage(stages: StageTable, cost: MemoryCost) -> IntArray:
    """For every plan the stage row with the most device memory."""
    device = cost.device_bytes
    worst = np.maximum.reduceat(device, stages.starts)
    is_worst = device >= worst[stages.plan]
    rows = np.flatnonzero(is_worst)
    _, first = np.unique(stages.plan[rows], return_index=True)
    chosen: IntArray = rows[first].astype(np.int64)
    return chosen
