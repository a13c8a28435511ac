"""Memory of every pipeline stage, each term named; the worst stage decides.

Sources: ZeRO (arXiv 1910.02054 sec. 3 and 5) for parameters, gradients and optimizer state;
Korthikanti et al. 2022 (arXiv 2205.05198 sec. 4 and 5) for activations, whose bytes come from the
operations themselves.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from ops.context import LayerContext
from ops.data_parallel.muon import matrices_of_stage
from ops.data_parallel.offload import optimizer_host_bytes
from ops.data_parallel.step import RankParameters, owned_elements
from ops.op import Owner
from ops.recompute import Recompute
from solver.layers import LayerBytes
from solver.memory.chunk_activations import looped_bytes, saved_by_chunk, turning_bytes
from solver.memory.device_memory import ALLOCATOR_SLACK, communicator_bytes, exchanging_axes
from solver.memory.dispatcher_buffers import dispatcher_bytes
from solver.memory.gathered_weights import gathered_weights_bytes
from solver.memory.graph_pool import pool_bytes
from solver.memory.layer_backward import frozen_input_gradients, widest_bytes, working_bytes
from solver.memory.memory_cost import MemoryCost
from solver.memory.model_state import (
    held_narrow_bytes,
    model_state,
    narrow_copies_bytes,
    stand_ins_bytes,
    whole_gradients_bytes,
)
from solver.memory.peaks import beyond_passes
from solver.memory.step_buffers import (
    bucket_bytes,
    reduces_in_backward,
    returned_bytes,
    returned_segments,
    segment_bytes,
    step_buffers,
)
from solver.memory.user_buffers import user_buffer_bytes, workspace_bytes
from solver.pipeline.stages import StageTable
from solver.plans.plan_table import PlanTable
from spec.arrays import FloatArray, IntArray, bools
from spec.cluster.cluster import ClusterSpec
from spec.job import JobSpec
from spec.model import ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class StageBytes:
    """Parameters of every stage row by owner, and its memory."""

    on_rank: RankParameters
    cost: MemoryCost

    def take(self, rows: IntArray) -> "StageBytes":
        """The stage rows asked for."""
        return StageBytes(on_rank=self.on_rank.take(rows), cost=self.cost.take(rows))


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """What memory is counted of: plans, the bytes of every piece of a layer (``kinds``: block kinds,
    embedding, head) by distinct layers, the ``row`` in them of every plan, stages, the cluster whose
    communicators count (None: nobody asks for device totals), and the micro-batches that every chunk row
    holds (None: those of its stage's peak)."""

    plans: PlanTable
    kinds: list[LayerBytes]
    row: IntArray
    stages: StageTable
    cluster: ClusterSpec | None = None
    flying: FloatArray | None = None

    def take(self, rows: IntArray) -> "Tables":
        """The plans asked for, in that order."""
        return replace(self, plans=self.plans.take(rows), row=self.row[rows], stages=self.stages.take(rows))


def stage_memory(model: ModelSpec, job: JobSpec, tables: Tables) -> StageBytes:
    """Memory of every stage row of every plan."""
    plans, kinds, stages = tables.plans, tables.kinds, tables.stages
    layout = plans.layout.take(stages.plan)
    context = LayerContext(sharding=plans.sharding, model=model, job=job, layout=layout)
    row = tables.row[stages.plan]
    weights = (*stages.layers, stages.embedding.astype(np.int64), stages.head.astype(np.int64))
    on_rank = _over_layers([kind.parameters.take(row) for kind in kinds], weights)
    if job.optimizer == "muon":
        on_rank = replace(on_rank, matrices=matrices_of_stage(model, job, layout, stages.layers))
    frozen = _over_layers([kind.frozen.take(row) for kind in kinds], weights)
    vpp = plans.vpp[stages.plan]
    num_micro = plans.num_micro[stages.plan]
    chunks = plans.schedule.in_flight(stages.position, layout.pp, vpp, num_micro)
    blocks = len(stages.layers)
    saved = np.sum(
        [kind.saved_bytes[row] * w for kind, w in zip(kinds[:blocks], weights[:blocks], strict=True)], axis=0
    )
    held = _held(tables, chunks * vpp)
    transient = np.max(
        [kind.transient_bytes[row] * (w > 0) for kind, w in zip(kinds[:blocks], weights, strict=False)],
        axis=0,
    )
    head = kinds[-1]
    logits = (head.saved_bytes + head.transient_bytes)[row] * stages.head
    working = transient + working_bytes(context, plans.sharding, kinds, row)
    if (
        job.preset.recomputation.keeps_frozen_inputs
        and job.adapter_rank
        and plans.recompute is Recompute.FULL
    ):
        working = working + frozen_input_gradients(saved, stages.layers)
    copied = _summed([kind.copied[row] for kind in kinds], weights)
    shapes = np.max(
        [kind.shapes[row] * (w > 0) for kind, w in zip(kinds[:blocks], weights, strict=False)], axis=0
    )
    shapes = shapes + kinds[-1].shapes[row] * stages.head
    copies = _summed([kind.cached_bytes[row] for kind in kinds], weights)
    cost = MemoryCost(
        **_states(context, on_rank, frozen, num_micro, (copied, shapes)),
        narrow_weights_bytes=narrow_copies_bytes(context, copies),
        activations_bytes=held + _kept_outputs(context, plans, stages, chunks),
        # The logits are gone, but for their 16-bit gradient, when the last layer's backward begins.
        logits_bytes=np.where(logits > working, logits, 0.0),
        working_bytes=np.where(logits > working, 0.0, working),
        weight_pool_bytes=gathered_weights_bytes(context, kinds, row, weights),
        bucket_bytes=bucket_bytes(context, on_rank) * reduces_in_backward(context),
        step_bytes=np.zeros(len(row)),
        slack_bytes=np.zeros(len(row)),
        segment_bytes=np.zeros(len(row)),
        nccl_bytes=_beside_tensors(model, job, tables),
        host_bytes=optimizer_host_bytes(context, owned_elements(context, on_rank))
        + _summed([kind.host_bytes[row] for kind in kinds[:blocks]], weights[:blocks]) * chunks,
    )
    buffers = step_buffers(context, on_rank, kinds[blocks].parameters.total[row] * stages.embedding)
    returned = returned_bytes(context, on_rank)
    gradients, step = beyond_passes(
        cost,
        (*buffers, 2.0 * returned),
        working,
        bools(job.preset.data_parallel.fresh_gradients & (num_micro == 1)),
    )
    cost = replace(
        cost,
        gradients_bytes=gradients,
        step_bytes=step,
        slack_bytes=pool_bytes(
            context, plans.sharding, cost.logits_bytes + cost.working_bytes, np.max(buffers, axis=0) - step
        ),
    )
    if job.expandable_segments:
        # Freed blocks join whatever their sizes (PyTorch, "Optimizing memory usage with PYTORCH_CUDA_ALLOC_CONF").
        return StageBytes(on_rank=on_rank, cost=cost)
    # Assumption: of the loss's tensors, all as large as the logits, one is a quarter of their bytes.
    own = segment_bytes(buffers, logits / 4.0) + returned_segments(
        returned, layout.zero_size, logits / 4.0, widest_bytes(context)
    )
    narrow = np.where(logits > working, _narrow_logits(context, head.logits[row]) * stages.head, 0.0)
    segments = np.maximum(own - cost.step_bytes, 0.0) + narrow
    return StageBytes(on_rank=on_rank, cost=_reserved(cost, segments))


def _held(tables: Tables, pieces: FloatArray) -> FloatArray:
    """What layers and embedding of every stage row keep of all micro-batches, of which ``pieces`` of work are
    in flight.
    """
    saved = saved_by_chunk(tables.stages, tables.kinds, tables.row)
    if not tables.plans.schedule.placement.looped:
        return turning_bytes(tables.plans, tables.stages, saved)
    if tables.flying is not None:
        return np.asarray(np.add.reduceat(saved * tables.flying, tables.stages.chunk_starts))
    return looped_bytes(tables.plans, tables.stages, saved, pieces)


def _reserved(cost: MemoryCost, segments: FloatArray) -> MemoryCost:
    """The allocator's slack and segments on top of what is allocated and what graphs keep for themselves."""
    slack = cost.slack_bytes + ALLOCATOR_SLACK * cost.allocated_bytes
    return replace(cost, slack_bytes=slack, segment_bytes=segments)


def _states(
    context: LayerContext,
    on_rank: RankParameters,
    frozen: RankParameters,
    num_micro: IntArray,
    weights: tuple[FloatArray, FloatArray],
) -> dict[str, FloatArray]:
    """Model state by term; of elements of ``weights`` the first have a copy in the format of the products, the second
    are one weight of each shape."""
    copied, shapes = weights
    state = model_state(context, on_rank, frozen, context.layout.zero_stage)
    beside = whole_gradients_bytes(context, on_rank, num_micro) + stand_ins_bytes(context, shapes)
    state["gradients_bytes"] = state["gradients_bytes"] + beside
    if context.job.precision.narrow_parameters:
        state["parameters_bytes"] = state["parameters_bytes"] - held_narrow_bytes(context, copied)
    return state


def _summed(values: list[FloatArray], weights: tuple[IntArray, ...]) -> FloatArray:
    """A stage's sum, which holds so many layers of each kind."""
    return np.asarray(np.sum([value * w for value, w in zip(values, weights, strict=True)], axis=0))


def _over_layers(kinds: list[RankParameters], weights: tuple[IntArray, ...]) -> RankParameters:
    """Elements of a stage, which holds so many layers of each kind."""

    def over(count: Callable[[RankParameters, Owner], IntArray]) -> Callable[[Owner], IntArray]:
        return lambda owner: np.sum(
            [count(kind, owner) * w for kind, w in zip(kinds, weights, strict=True)], axis=0
        )

    return RankParameters.by_owner(over(RankParameters.of), over(RankParameters.low_precision_of))


def _narrow_logits(context: LayerContext, logits: FloatArray) -> FloatArray:
    """16-bit logits, gone once they are brought to fp32: they came first, into a segment that takes none of the fp32
    ones (as large buffers of the step's end: segment_bytes)."""
    loss = context.job.preset.loss
    if not (loss.plain or loss.upcasts) or loss.chunked or context.job.preset.pipeline.keeps_stage_outputs:
        return np.zeros(len(logits))
    return np.asarray(context.activation_bytes * logits)


def _beside_tensors(model: ModelSpec, job: JobSpec, tables: Tables) -> FloatArray:
    """Buffers of communicators, of the experts' dispatcher, of tensor-parallel overlap, and workspaces of products."""
    if tables.cluster is None:
        return np.zeros(len(tables.stages.plan))
    sharding, layout, cluster = tables.plans.sharding, tables.plans.layout, tables.cluster
    context = LayerContext(sharding=sharding, model=model, job=job, layout=layout)
    held = communicator_bytes(layout, cluster, sharding.traits.copies, exchanging_axes(context))
    held = held + dispatcher_bytes(model, job, sharding, layout, cluster.domains[0].ranks)
    overlapped = user_buffer_bytes(context, sharding)
    held = held + overlapped + workspace_bytes(context, overlapped, cluster.gpu.architecture)
    return held[tables.stages.plan]


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


def worst_stage(stages: StageTable, cost: MemoryCost) -> IntArray:
    """For every plan the stage row that needs the most device memory."""
    needed = cost.needed_bytes
    worst = np.maximum.reduceat(needed, stages.starts)
    is_worst = needed >= worst[stages.plan]
    rows = np.flatnonzero(is_worst)
    _, first = np.unique(stages.plan[rows], return_index=True)
    chosen: IntArray = rows[first].astype(np.int64)
    return chosen
