"""Memory of every pipeline stage, each term named; the worst stage decides.

``stage_memory`` is the sum:

    model state          parameters, gradients and optimizer state, which every job has
    activations          of all micro-batches in flight
    TERMS                what some jobs have beside them, one row each with when it applies; no other is called
    peak                 what does not add up: of loss and backward the larger, of the end of the step what goes beyond
                         the peak of the passes, and what the caching allocator keeps of all that

Sources: ZeRO (arXiv 1910.02054 sec. 3 and 5) for parameters, gradients and optimizer state;
Korthikanti et al. 2022 (arXiv 2205.05198 sec. 4 and 5) for activations, whose bytes come from the
operations themselves.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import wraps
from typing import NamedTuple

import numpy as np

from ops.context import LayerContext, has_separate_ends, keeps_gathered, reduces_once
from ops.data_parallel.muon import matrices_of_stage
from ops.data_parallel.muon import working_bytes as muon_working_bytes
from ops.data_parallel.offload import host_elements, keeps_gradients_on_host, optimizer_host_bytes
from ops.data_parallel.step import RankParameters, owned_by_muon, owned_elements
from ops.experts.exchange import routed_rows
from ops.low_precision import recipe_of
from ops.op import Owner
from ops.recompute import Recompute
from solver.memory.chunk_activations import chunk_activations
from solver.memory.device import (
    ALLOCATOR_SLACK,
    CONTEXT_BYTES,
    communicator_bytes,
    dispatcher_bytes,
    transformer_engine_bytes,
)
from solver.pipeline.stages import StageTable
from solver.plans.layers import LayerBytes
from solver.plans.plan_table import PlanTable
from spec.arrays import FloatArray, IntArray, bools, ceil_div, floats
from spec.cluster.cluster import ClusterSpec
from spec.dtypes import dtype_bytes
from spec.frameworks import DataParallel
from spec.job import JobSpec
from spec.mixers.attention import AttentionSpec
from spec.model import ModelSpec, MoeSpec

ROUTED = frozenset({"moe_router", "moe_preprocess"})
"""Parts of layers whose CUDA graphs hand rows to the experts."""

BESIDE_TENSORS = frozenset({"slack_bytes", "segment_bytes", "nccl_bytes", "host_bytes"})
"""Fields of MemoryEstimate that are no live tensors of the device at the peak."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryEstimate:
    """Bytes per row. The named terms (TERM_NAMES) sum to ``allocated_bytes``; ``slack_bytes`` are freed and split
    blocks that the caching allocator keeps, and those that CUDA graphs keep for themselves, ``segment_bytes`` what it
    keeps of buffers that lived at other times, ``nccl_bytes`` those of communicators, of the experts' dispatcher and of
    Transformer Engine's overlap, ``host_bytes`` what is kept in the host's memory instead (ops.data_parallel.offload).

    ``narrow_weights_bytes`` are copies of parameters in the format of the products; ``activations_bytes``
    with what stages keep of their outputs; of ``logits_bytes`` and ``working_bytes`` only the larger is live
    at the peak, the other shows as 0; ``step_bytes`` is what the end of the step takes beyond the peak of the
    passes.
    """

    parameters_bytes: FloatArray
    narrow_weights_bytes: FloatArray
    gradients_bytes: FloatArray
    optimizer_bytes: FloatArray
    activations_bytes: FloatArray
    logits_bytes: FloatArray
    working_bytes: FloatArray
    weight_pool_bytes: FloatArray
    bucket_bytes: FloatArray
    step_bytes: FloatArray
    slack_bytes: FloatArray
    segment_bytes: FloatArray
    nccl_bytes: FloatArray
    host_bytes: FloatArray

    @property
    def allocated_bytes(self) -> FloatArray:
        """Returns what tensors occupy at the peak (max_memory_allocated)."""
        total: FloatArray = np.zeros_like(self.parameters_bytes)
        for name in TERM_NAMES:
            total = total + getattr(self, name)
        return total

    @property
    def reserved_bytes(self) -> FloatArray:
        """Returns what the caching allocator holds where memory is plenty (max_memory_reserved)."""
        return self.allocated_bytes + self.slack_bytes + self.segment_bytes

    @property
    def device_bytes(self) -> FloatArray:
        """Returns what the device shows as used where memory is plenty: reserved, context and NCCL."""
        return self.reserved_bytes + CONTEXT_BYTES + self.nccl_bytes

    @property
    def needed_bytes(self) -> FloatArray:
        """The least a device must have: before it fails the allocator hands cached segments back."""
        return self.device_bytes - self.segment_bytes

    def take(self, rows: IntArray) -> "MemoryEstimate":
        """Returns these rows."""
        return MemoryEstimate(**{name: getattr(self, name)[rows] for name in FIELDS})


FIELDS: tuple[str, ...] = tuple(field.name for field in fields(MemoryEstimate))
TERM_NAMES: tuple[str, ...] = tuple(name for name in FIELDS if name not in BESIDE_TENSORS)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageBytes:
    """Parameters of every stage row by owner, and its memory."""

    on_rank: RankParameters
    cost: MemoryEstimate

    def take(self, rows: IntArray) -> "StageBytes":
        """Returns these stage rows."""
        return StageBytes(on_rank=self.on_rank.take(rows), cost=self.cost.take(rows))


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """What memory is counted of: plans, the bytes of every piece of a layer (``kinds``: block kinds,
    embedding, head) by distinct layers, the ``row`` in them of every plan, stages, and the cluster whose
    communicators count (None: nobody needs device totals)."""

    plans: PlanTable
    kinds: list[LayerBytes]
    row: IntArray
    stages: StageTable
    cluster: ClusterSpec | None = None

    def take(self, rows: IntArray) -> "Tables":
        """Returns these plans, in that order."""
        return replace(self, plans=self.plans.take(rows), row=self.row[rows], stages=self.stages.take(rows))


@dataclass(frozen=True, slots=True, kw_only=True)
class Stages:
    """What terms read, one row a stage: the ``context`` of its layers with its ``job`` and the framework's choices for
    data parallelism (``sync``), ``numbers`` of layers of every kind, embedding and
    head, the ``row`` of ``kinds`` that their bytes are in, micro-batches ``in_flight`` at its peak, elements that it
    trains and those of them whose optimizer state it owns; whether any optimizer state is on the host, and whether
    device totals are wanted."""

    tables: Tables
    context: LayerContext
    job: JobSpec
    sync: DataParallel
    row: IntArray
    numbers: tuple[IntArray, ...]
    in_flight: FloatArray
    trained: RankParameters
    owned: IntArray
    offloads: bool
    on_device: bool

    @property
    def num_micro(self) -> IntArray:
        """Micro-batches of a step."""
        return self.tables.plans.num_micro[self.tables.stages.plan]

    def total(self, name: str, kinds: slice = slice(None)) -> FloatArray:
        """Sum of a field of LayerBytes over all layers and ends, or those of some ``kinds``."""
        total: FloatArray = np.zeros(len(self.row))
        for kind, number in zip(self.tables.kinds[kinds], self.numbers[kinds], strict=True):
            total = total + getattr(kind, name)[self.row] * number
        return total

    def largest(self, name: str) -> FloatArray:
        """The largest of a field of LayerBytes among the stage's layers."""
        largest: FloatArray = np.zeros(len(self.row))
        for kind, number in zip(self.tables.kinds[:-2], self.numbers, strict=False):
            largest = np.maximum(largest, getattr(kind, name)[self.row] * (number > 0))
        return largest


def elements_of(kinds: list[LayerBytes], name: str, row: IntArray, numbers: tuple[IntArray, ...]) -> RankParameters:
    """Elements by owner, ``parameters`` or ``frozen``, of so many layers and ends of each kind."""
    whole = dict.fromkeys(Owner, np.zeros_like(row))
    narrow = dict(whole)
    for kind, number in zip(kinds, numbers, strict=True):
        elements: RankParameters = getattr(kind, name)
        for owner in Owner:
            whole[owner] = whole[owner] + elements.of(owner)[row] * number
            if elements.low_precision is not None:
                narrow[owner] = narrow[owner] + elements.low_precision.of(owner)[row] * number
    low_precision = any(getattr(kind, name).low_precision is not None for kind in kinds)
    return RankParameters.by_owner(whole.__getitem__, narrow.__getitem__ if low_precision else None)


class Term(NamedTuple):
    """One addend of the field ``name`` of MemoryEstimate; it is not called where it does not apply."""

    name: str
    applies: Callable[[Stages], bool]
    bytes_of: Callable[[Stages], FloatArray]


# Parameters, gradients and optimizer state of a stage (ZeRO, arXiv 1910.02054 sec. 3 and 5).


def model_state(stages: Stages) -> dict[str, FloatArray]:
    """Parameters, cut by stage 3; gradients that accumulate, by stage 2 and up; optimizer state, by stage 1 and up.
    The optimizer's copy of parameters is counted with its state, and is all there is where it alone is sharded."""
    precision, zero_stage = stages.job.precision, stages.context.layout.zero_stage
    whole, owned = stages.trained.total, stages.owned
    sharded = 0 if stages.sync.shards_master and precision.master else owned
    cut_gradients = owned * sharded_gradient_width(stages.job)
    whole_gradients = whole * dtype_bytes(precision.gradient)
    return {
        "parameters_bytes": np.where(zero_stage >= 3, sharded, whole) * dtype_bytes(precision.parameter),
        "gradients_bytes": np.where(zero_stage >= 2, cut_gradients, whole_gradients),
        "optimizer_bytes": owned * (precision.master_bytes + 2 * dtype_bytes(precision.moments)),
    }


def sharded_gradient_width(job: JobSpec) -> float:
    """Bytes an element of gradients that are cut."""
    wide = dtype_bytes(job.precision.gradient)
    return max(wide, job.precision.master_bytes) if job.preset.data_parallel.shards_master else wide


def frozen_bytes(stages: Stages) -> FloatArray:
    """Frozen parameters, cut by stage 3."""
    frozen = elements_of(stages.tables.kinds, "frozen", stages.row, stages.numbers)
    context = stages.context
    elements = np.where(context.layout.zero_stage >= 3, owned_elements(context, frozen), frozen.total)
    return floats(elements * dtype_bytes(context.job.precision.parameter))


def narrow_only_bytes(stages: Stages) -> FloatArray:
    """Less what the parameters' format would take of weights that exist in the products' format alone; sharded
    parameters stay as they are."""
    whole = stages.total("copied") * stages.context.parameter_bytes
    return -np.where(stages.context.layout.zero_stage >= 3, 0.0, whole)


def narrow_copy_bytes(stages: Stages) -> FloatArray:
    """Copies of weights in the format of the products, from step to step; sharded weights that exist in it alone or
    travel in it are gathered so, and go with what was gathered."""
    precision = stages.job.precision
    gone = (precision.low_precision_parameters or precision.gathers_narrow) & (stages.context.layout.zero_stage >= 3)
    return np.where(gone, 0.0, stages.total("cached_bytes"))


def whole_gradients_bytes(context: LayerContext, trained: RankParameters, num_micro: IntArray) -> FloatArray:
    """Gradients beside those that accumulate or are cut: of one micro-batch where the framework keeps them, and what
    stages add up in the format of the reduction where sharded gradients are reduced once a step. Without stages the
    shards of the sum are made as the last backward lets go of it, so what they take is no more on top."""
    preset = context.job.preset
    micro = preset.data_parallel.keeps_micro_gradients * dtype_bytes(context.job.precision.compute)
    summed = reduces_once(context.job, context.layout) & (num_micro > 1)
    # FSDP1 adds up gradients in the format of the products (_runtime_utils.py, _post_backward_hook).
    joins = preset.data_parallel.fsdp_version == 1
    width = dtype_bytes(context.job.precision.compute if joins else context.reduce_dtype)
    whole = trained.total * (micro + summed * width)
    shards = owned_elements(context, trained) * sharded_gradient_width(context.job)
    whole_only = ~summed | keeps_gathered(context.job, context.layout)
    return floats(np.where(whole_only, whole, np.maximum(whole - shards, 0.0)))


def dummy_wgrad_bytes(stages: Stages) -> FloatArray:
    """Returns what autograd is given for gradients that products add up themselves: one weight of each shape in the
    format of the products' results, empty (Transformer Engine ``module/base.py``, get_dummy_wgrad; Megatron-LM
    ``tensor_parallel/layers.py`` for the head)."""
    shapes = stages.largest("shapes") + stages.total("shapes", slice(-1, None))
    return floats(dtype_bytes(stages.job.precision.compute) * shapes)


def muon_bytes(stages: Stages) -> FloatArray:
    """Less the moment that Muon does not keep of its matrices."""
    moments = dtype_bytes(stages.job.precision.moments)
    return floats(-owned_by_muon(stages.context, stages.trained) * moments)


def offloaded_optimizer_bytes(stages: Stages) -> FloatArray:
    """Less the optimizer state that is on the host."""
    precision = stages.job.precision
    elements = host_elements(stages.context, stages.owned)
    return floats(-elements * (precision.master_bytes + 2 * dtype_bytes(precision.moments)))


def offloaded_gradient_bytes(stages: Stages) -> FloatArray:
    """Less the sharded gradients that wait on the host from one micro-batch to the next."""
    elements = keeps_gradients_on_host(stages.context) * host_elements(stages.context, stages.owned)
    return floats(-elements * sharded_gradient_width(stages.job))


# Activations, gathered weights and gradients on their way.


def activation_bytes(stages: Stages) -> FloatArray:
    """Returns what layers and embedding keep of all micro-batches in flight; of several chunks each holds those of its
    own."""
    tables = stages.tables
    if (tables.plans.vpp > 1).any() or not tables.plans.schedule.placement.looped:
        return chunk_activations(tables.plans, tables.stages, tables.kinds, tables.row, stages.in_flight)
    return stages.in_flight * stages.total("saved_bytes", slice(None, -1))


def host_activation_bytes(stages: Stages) -> FloatArray:
    """Returns what layers keep on the host of all micro-batches in flight."""
    return stages.total("host_bytes", slice(None, -2)) * stages.in_flight


def kept_output_bytes(stages: Stages) -> FloatArray:
    """Outputs of a stage that waits for their gradients, one a micro-batch in flight, and the buffers its
    input and its output's gradient arrive in (DeepSpeed, runtime/pipe/engine.py: pipe_buffers,
    pipe_recv_buf, grad_layer). Megatron-LM frees outputs once sent (2205.05198 app. B)."""
    context = stages.context
    rows = context.tokens // stages.tables.plans.sharding.norm_shards(context.layout)
    hidden = context.activations(rows, context.model.hidden)
    outputs = stages.in_flight * ~stages.tables.stages.head + 2.0
    return np.where(context.layout.pp > 1, hidden * outputs, 0.0)


def gathered_weights_bytes(
    context: LayerContext, kinds: list[LayerBytes], row: IntArray, weights: tuple[IntArray, ...]
) -> FloatArray:
    """Weights gathered for a moment while their shards live on many ranks: two layers, one in use and one coming (one
    alone where none is fetched ahead), or the head where that is more; isp (arXiv 2401.09149 sec. 3.3) and sharded
    parameters (arXiv 2304.11277 sec. 3.3.2). FSDP's outermost unit, embedding and head, stays gathered from the forward
    to the end of the backward (fully_shard: reshard_after_forward is False for the root); where both are units of their
    own the embedding is let go of before the head is gathered. With pipeline stages all of a stage's stay. DeepSpeed
    fetches ahead at every module until live_elements are there (runtime/zero/partitioned_param_coordinator.py,
    fetch_sub_module: max_live_parameters), and its head in any case."""
    layout, data_parallel = context.layout, context.job.preset.data_parallel
    precision = context.job.precision
    # Assumption: weights that are held narrow are gathered in both orders, which take what 16 bits do.
    single = precision.gathers_narrow and not precision.low_precision_parameters
    spared = single * (1.0 - dtype_bytes(precision.parameter_gather) / context.parameter_bytes)
    layers, edges, edge, stays = (np.zeros(len(row)) for _ in range(4))
    for index, (kind, weight) in enumerate(zip(kinds, weights, strict=True)):
        isp = np.where(layout.wp > 1, (kind.parameters.weight + kind.frozen.weight)[row] * layout.wp, 0)
        elements = kind.parameters.total + kind.frozen.total
        elements = elements - spared * (kind.parameters.low_precision_total + kind.frozen.low_precision_total)
        sharded = np.where(layout.zero_stage >= 3, elements[row], 0)
        gathered = (isp + sharded) * (weight > 0)
        stays = stays + sharded * weight
        if index < len(kinds) - 2:
            layers = np.maximum(layers, data_parallel.gathered_layers * gathered)
        else:
            edge, edges = np.maximum(edge, gathered), edges + gathered
    kept = edge if has_separate_ends(context.job, context.model) else edges
    most = layers + kept if data_parallel.gathers_every_forward else np.maximum(layers, edge)
    if data_parallel.live_elements:
        most = np.maximum(np.minimum(stays, data_parallel.live_elements), edge)
    most = np.where(context.job.preset.pipeline.keeps_gathered & (layout.pp > 1), stays, most)
    return np.asarray(most * context.parameter_bytes, dtype=np.float64)


def bucket_bytes(context: LayerContext, on_rank: RankParameters) -> tuple[FloatArray, FloatArray]:
    """One gradient bucket on its way, where gradients do not already lie in one buffer: beside activations where
    buckets leave in the backward (overlapped, or sharded gradients), and after them elsewhere. A bucket in another
    format than the gradients' has a flat copy in theirs beside it. Where they stay (keeps_buckets), all of
    them, from the first step to the last (PyTorch reducer.cpp, initialize_buckets)."""
    sync, precision, layout = context.job.preset.data_parallel, context.job.precision, context.layout
    early = bools(sync.overlap_grad_reduce | (layout.zero_stage >= 2))
    if sync.keeps_buckets:
        stay = early & (layout.dp * layout.cp > 1)
        return stay * on_rank.total * dtype_bytes(precision.parameter), np.zeros(len(layout))
    width = dtype_bytes(context.reduce_dtype)
    if context.reduce_dtype != precision.gradient:
        width = width + dtype_bytes(precision.gradient)
    bucket = np.minimum(on_rank.total, sync.bucket_elements) * width
    return bucket * early, bucket * ~early


def on_plans(bytes_of: Callable[[LayerContext, ClusterSpec], FloatArray]) -> Callable[[Stages], FloatArray]:
    """Bytes that are the same on all stages of a plan."""

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
    Term("parameters_bytes", lambda s: s.job.precision.low_precision_parameters, narrow_only_bytes),
    Term(
        "narrow_weights_bytes",
        lambda s: any(kind.cached_bytes.any() for kind in s.tables.kinds),
        narrow_copy_bytes,
    ),
    # Gradients beside those that accumulate.
    Term(
        "gradients_bytes",
        lambda s: s.sync.keeps_micro_gradients or s.sync.reduces_once or s.job.preset.pipeline.keeps_gathered,
        lambda s: whole_gradients_bytes(s.context, s.trained, s.num_micro),
    ),
    Term("gradients_bytes", lambda s: s.sync.keeps_dummy_wgrad, dummy_wgrad_bytes),
    Term("optimizer_bytes", lambda s: s.job.optimizer == "muon", muon_bytes),
    # An optimizer on the host.
    Term("gradients_bytes", lambda s: s.offloads, offloaded_gradient_bytes),
    Term("optimizer_bytes", lambda s: s.offloads, offloaded_optimizer_bytes),
    Term("host_bytes", lambda s: s.offloads, lambda s: optimizer_host_bytes(s.context, s.owned)),
    # Activations elsewhere, and outputs of pipeline stages.
    Term(
        "host_bytes",
        lambda s: any(kind.host_bytes.any() for kind in s.tables.kinds[:-2]),
        host_activation_bytes,
    ),
    Term(
        "activations_bytes",
        lambda s: s.job.preset.pipeline.keeps_stage_outputs and bool((s.context.layout.pp > 1).any()),
        kept_output_bytes,
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
        lambda s: bucket_bytes(s.context, s.trained)[0],
    ),
    # Beside tensors, from the first step to the last (solver.memory.device).
    Term("nccl_bytes", lambda s: s.on_device and s.job.world_size > 1, on_plans(communicator_bytes)),
    Term("nccl_bytes", lambda s: s.on_device and s.job.sends_tokens_once, on_plans(dispatcher_bytes)),
    Term(
        "nccl_bytes",
        lambda s: s.on_device and s.job.preset.layers.transformer_engine,
        on_plans(transformer_engine_bytes),
    ),
)


def stage_memory(model: ModelSpec, job: JobSpec, tables: Tables) -> StageBytes:
    """Memory of every stage row of every plan."""
    stages = stages_of(model, job, tables)
    terms = dict.fromkeys(FIELDS, np.zeros(len(stages.row))) | model_state(stages)
    terms["activations_bytes"] = activation_bytes(stages)
    for term in TERMS:
        if term.applies(stages):
            terms[term.name] = terms[term.name] + term.bytes_of(stages)
    return StageBytes(on_rank=stages.trained, cost=peak(stages, MemoryEstimate(**terms)))


def stages_of(model: ModelSpec, job: JobSpec, tables: Tables) -> Stages:
    """Returns what terms read of every stage row."""
    plans, table = tables.plans, tables.stages
    layout = plans.layout.take(table.plan)
    context = LayerContext(sharding=plans.sharding, model=model, job=job, layout=layout)
    row = tables.row[table.plan]
    numbers = (*table.layers, table.embedding.astype(np.int64), table.head.astype(np.int64))
    trained = elements_of(tables.kinds, "parameters", row, numbers)
    if job.optimizer == "muon":
        trained = replace(trained, matrices=matrices_of_stage(model, job, layout, table.layers))
    vpp, num_micro = plans.vpp[table.plan], plans.num_micro[table.plan]
    return Stages(
        tables=tables,
        context=context,
        job=job,
        sync=job.preset.data_parallel,
        row=row,
        numbers=numbers,
        in_flight=plans.schedule.in_flight(table.position, layout.pp, vpp, num_micro),
        trained=trained,
        owned=owned_elements(context, trained),
        offloads=bool(layout.optimizer_offload.any()),
        on_device=tables.cluster is not None,
    )


def peak(stages: Stages, terms: MemoryEstimate) -> MemoryEstimate:
    """The terms with those that do not add up: moments of a step that do not meet, its passes, the last layer of the
    backward, and its end, by which activations and gathered weights are gone; and what the allocator keeps."""
    context, job, head = stages.context, stages.job, stages.tables.kinds[-1]
    is_head = stages.numbers[-1]
    logits = (head.saved_bytes + head.transient_bytes)[stages.row] * is_head
    working = stages.largest("transient_bytes") + working_bytes(context, stages.tables.kinds, stages.row)
    keeps_inputs = job.preset.recomputation.keeps_frozen_inputs and bool(job.adapter_rank)
    if keeps_inputs and stages.tables.plans.recompute is Recompute.FULL:
        saved = stages.total("saved_bytes", slice(None, -2))
        working = working + frozen_input_gradients(saved, stages.numbers[:-2])
    # The logits are gone, but for their 16-bit gradient, when the last layer's backward begins.
    loss = logits > working
    logits_bytes, working_at_peak = np.where(loss, logits, 0.0), np.where(loss, 0.0, working)
    embedding = stages.tables.kinds[-2].parameters.total[stages.row] * stages.numbers[-2]
    buffers = step_buffers(context, stages.trained, embedding, stages.owned)
    lists = bool(stages.sync.lists_of_slices)
    returned = returned_bytes(context, stages.trained) if lists else np.zeros(len(stages.row))
    ends = np.max((*buffers, 2.0 * returned), axis=0)
    beside = terms.weight_pool_bytes + terms.bucket_bytes
    passes = terms.activations_bytes + logits_bytes + working_at_peak + beside
    gradients = terms.gradients_bytes
    if stages.sync.fresh_gradients:
        # Made by the step's only backward they take the place of activations: there are none at the loss, and all when
        # the last layer of the backward is worked on.
        last = gradients + np.maximum(ends, working + beside) - passes
        gradients = np.where(stages.num_micro == 1, np.clip(last, 0.0, gradients), gradients)
    step = np.maximum(ends - passes, 0.0)
    slack: FloatArray = np.zeros(len(stages.row))
    if job.cuda_graphs:
        slack = pool_bytes(context, logits_bytes + working_at_peak, np.max(buffers, axis=0) - step)
    terms = replace(
        terms,
        logits_bytes=logits_bytes,
        working_bytes=working_at_peak,
        gradients_bytes=gradients,
        step_bytes=step,
        slack_bytes=slack,
    )
    if job.expandable_segments:
        # Freed blocks join whatever their sizes (PyTorch, "Optimizing memory usage with PYTORCH_CUDA_ALLOC_CONF").
        return terms
    # Assumption: of the loss's tensors, all as large as the logits, one is a quarter of their bytes.
    segments = segment_bytes(buffers, logits / 4.0)
    if lists:
        widest = widest_bytes(context)
        segments = segments + returned_segments(returned, context.layout.zero_size, logits / 4.0, widest)
    segments = np.maximum(segments - step, 0.0)
    loss_kernel = job.preset.loss
    upcast = (loss_kernel.plain or loss_kernel.upcasts) and not loss_kernel.chunked
    if upcast and not job.preset.pipeline.keeps_stage_outputs:
        # They came first, into a segment that takes none of the fp32 ones (as large buffers: segment_bytes).
        narrow = context.activation_bytes * head.logits[stages.row] * is_head
        segments = segments + np.where(loss, narrow, 0.0)
    return replace(terms, slack_bytes=slack + ALLOCATOR_SLACK * terms.allocated_bytes, segment_bytes=segments)


# What the backward of one layer holds for a moment beside what the forward kept.


def working_bytes(context: LayerContext, kinds: list[LayerBytes], row: IntArray) -> FloatArray:
    """Returns what a layer's backward holds for a moment: its output and that one's gradient, the gradients of its
    widest activations, and, before it is reduced, the whole gradient of a layer whose gradients are sharded."""
    layout, layer = context.layout, np.zeros_like(row)
    for kind in kinds[:-2]:
        layer = np.maximum(layer, kind.parameters.total[row])
    rows = ceil_div(context.tokens, context.sharding.gemm_shards(layout))
    gradients = 2.0 * context.activations(rows, context.model.hidden) + widest_bytes(context)
    cut = (layout.zero_stage >= 2) | (layout.wp > 1)
    return gradients + np.where(cut, layer * layout.wp * dtype_bytes(context.reduce_dtype), 0.0)


def widest_bytes(context: LayerContext) -> FloatArray:
    """Bytes at the backward of the widest activation of any layer, beyond what the layer keeps; cut over tp whether the
    weights are (mtp, msp, fsp) or the tokens (isp).

    Of a dense network gradients of gate and up, or of the one input, and narrow copies of what products read narrow;
    the gradient of its result has the result's place where the product behind it keeps that. Of a block without a
    feed-forward network those that its mixer's widest product writes."""
    job, layout = context.job, context.layout
    widest: FloatArray = np.zeros(len(layout))
    for run in context.model.blocks:
        block, block_bytes = run.block, widest
        if block.moe is not None:
            block_bytes = experts_backward_bytes(context, block.moe)
        elif block.mlp is not None:
            keeps_result = not job.adapter_rank or "down" in job.adapted
            inputs = block.mlp.ffn_hidden * (2 if block.mlp.gated else 1)
            wide = inputs + block.mlp.ffn_hidden * (not keeps_result)
            block_bytes = context.activations(context.tokens, wide)
            if job.precision.narrows:
                block_bytes = block_bytes + narrow_gradient_bytes(context, context.tokens * inputs)
            block_bytes = block_bytes / layout.tp
        elif block.mixer is not None:
            modules = block.mixer.modules(context.model.hidden, "")
            wide = max(tensor.shape[0] for module in modules for tensor in module.tensors)
            block_bytes = context.activations(context.tokens, wide) / layout.tp
        widest = np.maximum(widest, block_bytes)
    return widest


def frozen_input_gradients(inputs: FloatArray, layers: tuple[IntArray, ...]) -> FloatArray:
    """Gradients of the ``inputs`` of a stage's layers that hooks hold until its backward ends, but those of
    the last two layers worked on, which count with the work. FSDP1 hangs a hook on the inputs of a unit whose
    parameters are all frozen (torch/distributed/fsdp/_runtime_utils.py,
    _register_post_backward_reshard_only_hook), which holds their nodes of the graph (torch/autograd/graph.py,
    register_multi_grad_hook: grad_fns); a recomputed layer's input is a leaf (torch/utils/checkpoint.py,
    detach_variable), whose node holds it and its gradient."""
    count = np.sum(layers, axis=0)
    return np.asarray(inputs * np.maximum(count - 2, 0) / np.maximum(count, 1), dtype=np.float64)


def experts_backward_bytes(context: LayerContext, moe: MoeSpec) -> FloatArray:
    """Bytes on a rank's routed rows, beyond what the block keeps. The gradient of the experts' result stands beside its
    narrow copies and the gradient of the activation's result (at the second product, which reads that result), or by
    itself in two orders where rows are sorted by expert; gradients of gate and up follow once it is gone (Megatron-LM
    ``moe/experts.py`` TEGroupedMLP, ``moe/token_dispatcher.py`` combine_preprocess; Transformer Engine
    ``module/grouped_linear.py``)."""
    layout, job = context.layout, context.job
    tokens = ceil_div(context.tokens, layout.tp)
    rows = routed_rows(context, moe, tokens) * layout.etp
    hidden, width = (
        moe.routed_hidden(context.model.hidden),
        ceil_div(layout.constant(moe.expert_ffn_hidden), layout.etp),
    )
    parts = 2 if moe.gated else 1
    result = context.activations(rows, hidden)
    second = result + context.activations(rows, width)
    first = context.activations(rows, width * parts)
    if job.precision.narrows:
        second = second + narrow_gradient_bytes(context, rows * hidden)
        first = first + narrow_gradient_bytes(context, rows * width * parts)
    # Dispatchers that send a token once hand rows over in the experts' order.
    turned = (job.moe_dispatcher == "all_to_all") & (moe.num_experts > layout.ep) & (layout.ep * layout.etp > 1)
    return np.asarray(np.maximum(np.maximum(first, second), np.where(turned, 2.0 * result, 0.0)))


def narrow_gradient_bytes(context: LayerContext, elements: IntArray) -> FloatArray:
    """Bytes of the narrow copies of an output gradient of ``elements`` that both products of a backward read."""
    return elements * dtype_bytes(context.job.precision.linear) * recipe_of(context).gradient.writes


# Buffers of the end of a step, and what the caching allocator keeps of them.


def step_buffers(
    context: LayerContext, trained: RankParameters, embedding: IntArray, owned: IntArray
) -> list[FloatArray]:
    """Buffers in one piece that live one after another once activations go: the embedding's dense gradient
    before it is added to the sum, a bucket of gradients on its way, the fp32 copy of one fp16 gradient in
    the overflow check (DeepSpeed runtime/zero/stage_1_and_2.py, _has_inf_or_nan), fp32 gradients of the
    shard for the update, what the update itself makes, and Muon's largest matrix."""
    precision, sync = context.job.precision, context.job.preset.data_parallel
    buffers = [embedding * context.activation_bytes]
    if sync.keeps_buckets or not sync.contiguous_gradients:
        buffers.append(bucket_bytes(context, trained)[1])
    if precision.gradient == "fp16" and not sync.contiguous_gradients:
        buffers.append(embedding * 4.0)
    here = owned - host_elements(context, owned) if context.layout.optimizer_offload.any() else owned
    if precision.master and precision.gradient != precision.master:
        buffers.append(here * precision.master_bytes * (context.layout.zero_stage < 2))
    if sync.update_copies:
        buffers.append(here * dtype_bytes(precision.moments))
    if trained.matrices:
        buffers.append(muon_working_bytes(context, trained.matrices))
    return buffers


def returned_bytes(context: LayerContext, on_rank: RankParameters) -> FloatArray:
    """Bytes of a flat copy of the parameters, of which updated shards return through two where they are lists of
    slices: a buffer for each rank's (nanotron distributed.py, all_gather_coalesced), and one for all
    (ProcessGroupNCCL, allgather of lists)."""
    width = dtype_bytes(context.job.precision.parameter_gather)
    travels = (context.layout.zero_stage == 1) & (context.layout.zero_size > 1)
    return np.where(travels, on_rank.total * width, 0.0)


def segment_bytes(buffers: Sequence[FloatArray], largest: FloatArray) -> FloatArray:
    """Bytes that the caching allocator reserves for the buffers: tensors of 10 MiB and more have segments of
    their own, which do not join (c10/cuda/CUDACachingAllocator.cpp), so a buffer finds room only where
    the passes' ``largest`` tensor was. Assumption: no buffer fits where an earlier one was."""
    total: FloatArray = np.zeros_like(largest)
    for buffer in buffers:
        total = total + np.where(buffer > largest, buffer, 0.0)
    return total


def returned_segments(returned: FloatArray, shards: IntArray, largest: FloatArray, widest: FloatArray) -> FloatArray:
    """The same for both copies that ``shards`` return through (returned_bytes): one in one piece, one in a
    piece for each rank, which also finds room where the ``widest`` activations of the layers were."""
    whole = np.where(returned > largest, returned, 0.0)
    return whole + np.where(returned / shards > np.maximum(largest, widest), returned, 0.0)


# Memory that CUDA graphs keep from what runs outside them. A captured graph replays into a pool of its own, whose free
# blocks no other code gets (PyTorch c10/cuda/CUDACachingAllocator.cpp, private pools; "CUDA semantics", Graph memory
# management). Graphs of parts of layers share one, through which what they keep passes as without graphs, since they
# are captured in the schedule's order and reuse inputs and outputs (Megatron-LM transformer/cuda_graphs.py,
# TECudaGraphHelper; Transformer Engine pytorch/graph.py); what their backward holds for a moment stands beside what the
# rest of a layer, or the loss, does. A graph of the whole iteration holds all forwards and backwards (Megatron-LM
# full_cuda_graph.py), so that the optimizer's buffers do not find the room of activations.


def pool_bytes(context: LayerContext, passing: FloatArray, ended: FloatArray) -> FloatArray:
    """Bytes reserved on one rank beyond the peak of one pool for all, for every row: ``passing`` is what loss or
    layer hold for a moment, ``ended`` the part of the buffers of the step's end that finds room where the
    passes' tensors were.

    The backward of a layer's graphed parts holds static gradients of its output and of its input
    (make_graphed_callables: static_grad_outputs, static_grad_inputs), of what its router hands to the experts, and of
    queries, keys, values and the kernel's output."""
    scopes, hidden = context.job.cuda_graphs, context.model.hidden
    if "full_iteration" in scopes:
        return ended
    rows = ceil_div(context.tokens, context.sharding.norm_shards(context.layout))
    blocks = [run.block for run in context.model.blocks]
    routes = bool(scopes & ROUTED) and any(block.moe is not None for block in blocks)
    mixers = [block.mixer for block in blocks if isinstance(block.mixer, AttentionSpec)] * ("attn" in scopes)
    widths = [(mixer.num_heads + mixer.num_kv_heads) * (mixer.qk_dim + mixer.v_dim) for mixer in mixers]
    attention = context.activations(context.tokens, max(widths, default=0)) / context.layout.tp
    return np.minimum((2.0 + routes) * context.activations(rows, hidden) + attention, passing)
