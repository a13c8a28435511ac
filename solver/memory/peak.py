"""Memory of a stage that does not add up: what is live at the peak, and what the caching allocator keeps of it.

A step has moments that never meet, of which the largest counts:

    loss        all activations in flight, and logits with their gradient
    backward    all activations in flight, and what the backward of one layer makes (``WORKING``)
    step        buffers of reduction, overflow check and update, once activations and gathered weights are freed

The allocator keeps segments of the moments that are over, where later buffers did not fit into them (``SEGMENTS``), and
CUDA graphs memory that nothing else may use (``SLACK``). As in solver.memory.stage each of these is a term with when it
applies.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from ops.context import LayerContext
from ops.data_parallel.muon import working_bytes as muon_working_bytes
from ops.data_parallel.offload import host_elements
from ops.data_parallel.step import RankParameters
from ops.experts.exchange import routed_rows
from ops.low_precision import recipe_of
from ops.recompute import Recompute
from solver.memory.device import ALLOCATOR_SLACK
from solver.memory.terms import MemoryEstimate, Stages, Term
from solver.plans.layers import LayerBytes
from spec.arrays import BoolArray, FloatArray, IntArray, bools, ceil_div, floats
from spec.dtypes import dtype_bytes
from spec.mixers.attention import AttentionSpec
from spec.model import MoeSpec

ROUTED = frozenset({"moe_router", "moe_preprocess"})
"""Parts of layers whose CUDA graphs hand rows to the experts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moments:
    """What is live beside the activations at each moment of a step, one row a stage.

    ``logits`` are those of the loss, ``at_loss`` where the loss is the larger moment of the passes, ``passing`` what
    that moment holds; ``buffers`` those at the end of the step, which live one after another, ``slices`` the flat copy
    of parameters that shards return through; ``step`` what the end of the step takes beyond the passes."""

    stages: Stages
    logits: FloatArray
    at_loss: BoolArray
    passing: FloatArray
    buffers: list[FloatArray]
    slices: FloatArray
    step: FloatArray


class PeakTerm(NamedTuple):
    """An addend of what the allocator keeps; ``bytes_of`` is not called where it does not apply."""

    applies: Callable[[Stages], bool]
    bytes_of: Callable[[Moments], FloatArray]


def peak(stages: Stages, terms: MemoryEstimate) -> MemoryEstimate:
    """Returns the additive ``terms`` with those of the peak."""
    head, is_head = stages.tables.kinds[-1], stages.numbers[-1]
    # The passes: all of the logits are freed, but for their 16-bit gradient, when the last layer's backward begins.
    logits = (head.saved_bytes + head.transient_bytes)[stages.row] * is_head
    working = stages.largest("transient_bytes") + layer_backward_bytes(stages.context, stages.tables.kinds, stages.row)
    for term in WORKING:
        if term.applies(stages):
            working = working + term.bytes_of(stages)
    at_loss = bools(logits > working)
    logits_bytes, working_at_peak = np.where(at_loss, logits, 0.0), np.where(at_loss, 0.0, working)
    # The end of the step.
    embedding = stages.tables.kinds[-2].parameters.total[stages.row] * stages.numbers[-2]
    buffers = step_buffers(stages.context, stages.trainable, embedding, stages.owned)
    slices: FloatArray = np.zeros(len(stages.row))
    if stages.sync.lists_of_slices:
        slices = slice_bytes(stages.context, stages.trainable)
    # Two copies of the parameters in slices live at once (slice_bytes).
    ends = np.max((*buffers, 2.0 * slices), axis=0)
    in_flight = terms.weight_pool_bytes + terms.bucket_bytes
    passes = terms.activations_bytes + logits_bytes + working_at_peak + in_flight
    gradients = terms.gradients_bytes
    if stages.sync.fresh_gradients:
        # Gradients that the step's only backward makes take the place of activations: there are none at the loss, and
        # all of them when the last layer of the backward is worked on.
        last = gradients + np.maximum(ends, working + in_flight) - passes
        gradients = np.where(stages.num_micro == 1, np.clip(last, 0.0, gradients), gradients)
    step = np.maximum(ends - passes, 0.0)
    live = replace(
        terms, logits_bytes=logits_bytes, working_bytes=working_at_peak, gradients_bytes=gradients, step_bytes=step
    )
    moments = Moments(
        stages=stages,
        logits=logits,
        at_loss=at_loss,
        passing=logits_bytes + working_at_peak,
        buffers=buffers,
        slices=slices,
        step=step,
    )
    # What the caching allocator keeps besides.
    slack = _sum(SLACK, moments)
    if stages.job.expandable_segments:
        # Freed blocks join whatever their sizes (PyTorch, "Optimizing memory usage with PYTORCH_CUDA_ALLOC_CONF").
        return replace(live, slack_bytes=slack)
    # Of the buffers that found no room ``step`` is live, and counted already.
    segments = np.maximum(_sum(END_SEGMENTS, moments) - step, 0.0) + _sum(LOSS_SEGMENTS, moments)
    return replace(live, slack_bytes=slack + ALLOCATOR_SLACK * live.allocated_bytes, segment_bytes=segments)


def _sum(terms: Sequence[PeakTerm], moments: Moments) -> FloatArray:
    total: FloatArray = np.zeros(len(moments.step))
    for term in terms:
        if term.applies(moments.stages):
            total = total + term.bytes_of(moments)
    return total


# What the backward of one layer holds for a moment besides what the forward saved.


def layer_backward_bytes(context: LayerContext, kinds: list[LayerBytes], row: IntArray) -> FloatArray:
    """Returns the bytes that a layer's backward holds for a moment: its output and the gradient of that, gradients of
    its widest activations, and the whole gradient of a layer, before it is reduced, where gradients are sharded."""
    layout, layer = context.layout, np.zeros_like(row)
    for kind in kinds[:-2]:
        layer = np.maximum(layer, kind.parameters.total[row])
    rows = ceil_div(context.tokens, layout.tp_if(not context.traits.cuts_matrices))
    output = context.activations(rows, context.model.hidden * context.model.residual_streams)
    gradients = 2.0 * output + widest_bytes(context)
    cut = (layout.zero_stage >= 2) | (layout.wp > 1)
    return gradients + np.where(cut, layer * layout.wp * dtype_bytes(context.reduce_dtype), 0.0)


def widest_bytes(context: LayerContext) -> FloatArray:
    """Returns the bytes of the widest activation's gradients of any layer, beyond what the layer keeps; cut over tp
    whether the weights are (mtp, msp, fsp) or the tokens (isp).

    Of a dense network: gradients of gate and up, or of the one input, and their copies in low precision for the
    products that read them; the gradient of its result replaces the result where the product behind it keeps that. Of a
    block without a feed-forward network: those that its mixer's widest product writes."""
    job, layout = context.job, context.layout
    widest: FloatArray = np.zeros(len(layout))
    for run in context.model.blocks:
        block, block_bytes = run.block, widest
        if block.moe is not None:
            block_bytes = experts_backward_bytes(context, block.moe)
        elif block.mlp is not None:
            keeps_result = not job.adapter_rank or "down" in job.adapted
            inputs = block.mlp.ffn_hidden * (2 if block.mlp.gated else 1)
            width = inputs + block.mlp.ffn_hidden * (not keeps_result)
            block_bytes = context.activations(context.tokens, width)
            if job.precision.low_precision_linear:
                block_bytes = block_bytes + cast_gradient_bytes(context, context.tokens * inputs)
            block_bytes = block_bytes / layout.tp
        elif block.mixer is not None:
            modules = block.mixer.modules(context.model.hidden, "")
            width = max(tensor.shape[0] for module in modules for tensor in module.tensors)
            block_bytes = context.activations(context.tokens, width) / layout.tp
        widest = np.maximum(widest, block_bytes)
    return widest


def experts_backward_bytes(context: LayerContext, moe: MoeSpec) -> FloatArray:
    """Returns the bytes of gradients of a rank's routed rows, beyond what the block keeps (Megatron-LM
    ``moe/experts.py`` TEGroupedMLP, ``moe/token_dispatcher.py`` combine_preprocess; Transformer Engine
    ``module/grouped_linear.py``).

    The largest of three moments: at the second product the gradient of the experts' result with its copies in low
    precision, and the gradient of the activation's result; then, once these are freed, gradients of gate and up; and,
    where rows are sorted by expert, the gradient of the result in both orders.
    """
    layout, job = context.layout, context.job
    tokens = ceil_div(context.tokens, layout.tp)
    rows = routed_rows(context, moe, tokens) * layout.etp
    hidden = moe.routed_hidden(context.model.hidden)
    width = ceil_div(layout.constant(moe.expert_ffn_hidden), layout.etp)
    parts = 2 if moe.gated else 1
    result = context.activations(rows, hidden)
    second = result + context.activations(rows, width)
    first = context.activations(rows, width * parts)
    if job.precision.low_precision_linear:
        second = second + cast_gradient_bytes(context, rows * hidden)
        first = first + cast_gradient_bytes(context, rows * width * parts)
    # Dispatchers that send a token once hand rows over in the experts' order.
    permutes = (job.moe_dispatcher == "all_to_all") & (moe.num_experts > layout.ep) & (layout.ep * layout.etp > 1)
    return np.asarray(np.maximum(np.maximum(first, second), np.where(permutes, 2.0 * result, 0.0)))


def cast_gradient_bytes(context: LayerContext, elements: IntArray) -> FloatArray:
    """Returns the bytes of an output gradient of ``elements`` cast for both products of a backward."""
    return elements * dtype_bytes(context.job.precision.linear) * recipe_of(context).gradient.writes


def frozen_input_gradients(stages: Stages) -> FloatArray:
    """Returns the bytes of gradients of layer inputs that hooks hold until a stage's backward ends, but those of the
    last two layers worked on, which count with the work.

    FSDP1 hangs a hook on the inputs of a unit whose parameters are all frozen
    (torch/distributed/fsdp/_runtime_utils.py, _register_post_backward_reshard_only_hook), which holds their nodes of
    the graph (torch/autograd/graph.py, register_multi_grad_hook: grad_fns); a recomputed layer's input is a leaf
    (torch/utils/checkpoint.py, detach_variable), whose node holds it and its gradient."""
    inputs = stages.total("saved_bytes", slice(None, -2))
    count = np.sum(stages.numbers[:-2], axis=0)
    return np.asarray(inputs * np.maximum(count - 2, 0) / np.maximum(count, 1), dtype=np.float64)


WORKING: tuple[Term, ...] = (
    Term(
        "working_bytes",
        lambda stages: (
            stages.job.preset.recomputation.keeps_frozen_inputs
            and bool(stages.job.adapter_rank)
            and stages.tables.plans.recompute is Recompute.FULL
        ),
        frozen_input_gradients,
    ),
)
"""What only some jobs hold while the backward works on a layer."""


# Buffers of the end of a step.


def bucket_bytes(context: LayerContext, on_rank: RankParameters) -> tuple[FloatArray, FloatArray]:
    """Returns the bytes of a gradient bucket on its way, where gradients do not already lie in one buffer: beside
    activations, where buckets leave in the backward (overlapped, or sharded gradients), and after them elsewhere.

    A bucket in another format than the gradients' has a flat copy in theirs beside it. DDP keeps all of its buckets
    from the first step to the last (``keeps_buckets``; PyTorch reducer.cpp, initialize_buckets)."""
    sync, precision, layout = context.job.preset.data_parallel, context.job.precision, context.layout
    early = bools(sync.overlap_grad_reduce | (layout.zero_stage >= 2))
    if sync.keeps_buckets:
        resident = early & (layout.dp * layout.cp > 1)
        return resident * on_rank.total * dtype_bytes(precision.parameter), np.zeros(len(layout))
    width = dtype_bytes(context.reduce_dtype)
    if context.reduce_dtype != precision.gradient:
        width = width + dtype_bytes(precision.gradient)
    bucket = np.minimum(on_rank.total, sync.bucket_elements) * width
    return bucket * early, bucket * ~early


def step_buffers(
    context: LayerContext, trainable: RankParameters, embedding: IntArray, owned: IntArray
) -> list[FloatArray]:
    """Returns the bytes of buffers in one piece that live one after another once activations are freed. ``embedding``
    are the elements of the embedding on the rank, ``owned`` those whose optimizer state the rank owns."""
    precision, sync = context.job.precision, context.job.preset.data_parallel
    # The embedding's dense gradient before it is added to the sum.
    buffers = [embedding * context.activation_bytes]
    # A bucket of gradients on its way.
    if sync.keeps_buckets or not sync.contiguous_gradients:
        buffers.append(bucket_bytes(context, trainable)[1])
    # The fp32 copy of one fp16 gradient in the overflow check (DeepSpeed runtime/zero/stage_1_and_2.py,
    # _has_inf_or_nan): the largest is the embedding's.
    if precision.gradient == "fp16" and not sync.contiguous_gradients:
        buffers.append(embedding * 4.0)
    here = owned - host_elements(context, owned) if context.layout.optimizer_offload.any() else owned
    # Gradients of the shard in the master's format, for the update.
    if precision.master and precision.gradient != precision.master:
        buffers.append(here * precision.master_bytes * (context.layout.zero_stage < 2))
    # What the update itself makes, and Muon's largest matrix.
    if sync.update_copies:
        buffers.append(here * dtype_bytes(precision.moments))
    if trainable.matrices:
        buffers.append(muon_working_bytes(context, trainable.matrices))
    return buffers


def slice_bytes(context: LayerContext, on_rank: RankParameters) -> FloatArray:
    """Returns the bytes of a flat copy of the parameters, of which updated shards return through two where they are
    lists of slices: a buffer for each rank's (nanotron distributed.py, all_gather_coalesced), and one for all
    (ProcessGroupNCCL, allgather of lists)."""
    width = dtype_bytes(context.job.precision.parameter_gather)
    travels = (context.layout.zero_stage == 1) & (context.layout.zero_size > 1)
    return np.where(travels, on_rank.total * width, 0.0)


# What the caching allocator keeps. Tensors of 10 MiB and more have segments of their own, which do not join
# (c10/cuda/CUDACachingAllocator.cpp), so a buffer at the end of the step finds room only where a tensor as large was in
# the passes. Assumption: of the loss's tensors, all as large as the logits, one is a quarter of their bytes.
LOSS_TENSORS = 4


def segment_bytes(buffers: Sequence[FloatArray], largest: FloatArray) -> FloatArray:
    """Returns the bytes that the allocator reserves for buffers beyond the ``largest`` tensor of the passes.
    Assumption: no buffer fits where an earlier one was."""
    total: FloatArray = np.zeros_like(largest)
    for buffer in buffers:
        total = total + np.where(buffer > largest, buffer, 0.0)
    return total


def slice_segment_bytes(slices: FloatArray, shards: IntArray, largest: FloatArray, widest: FloatArray) -> FloatArray:
    """Returns the same for both copies of slice_bytes: one in one piece, one in a piece for each of ``shards`` ranks,
    which also finds room where the ``widest`` activations of the layers were."""
    whole = np.where(slices > largest, slices, 0.0)
    return whole + np.where(slices / shards > np.maximum(largest, widest), slices, 0.0)


def slice_segments(moments: Moments) -> FloatArray:
    """Returns ``slice_segment_bytes`` of a step."""
    context = moments.stages.context
    return slice_segment_bytes(
        moments.slices, context.layout.zero_size, moments.logits / LOSS_TENSORS, widest_bytes(context)
    )


END_SEGMENTS: tuple[PeakTerm, ...] = (
    PeakTerm(lambda stages: True, lambda moments: segment_bytes(moments.buffers, moments.logits / LOSS_TENSORS)),
    PeakTerm(lambda stages: bool(stages.sync.lists_of_slices), slice_segments),
)
"""Segments of buffers at the end of the step."""


def upcasts_logits(stages: Stages) -> bool:
    """Returns whether logits of 16 bits are there before those of fp32, which are all of the loss's other tensors."""
    kernel = stages.job.preset.loss
    upcasts = (kernel.plain or kernel.upcasts) and not kernel.chunked
    return upcasts and not stages.job.preset.pipeline.keeps_stage_outputs


def cast_logits_bytes(moments: Moments) -> FloatArray:
    """Returns the bytes of the 16-bit logits: they came first, into a segment that takes none of the larger fp32
    ones."""
    stages = moments.stages
    size = stages.context.activation_bytes * stages.tables.kinds[-1].logits[stages.row] * stages.numbers[-1]
    return np.where(moments.at_loss, size, 0.0)


LOSS_SEGMENTS: tuple[PeakTerm, ...] = (PeakTerm(upcasts_logits, cast_logits_bytes),)
"""Segments of the loss."""


# Memory that CUDA graphs keep from what runs outside them. A captured graph replays into a pool of its own, whose free
# blocks no other code gets (PyTorch c10/cuda/CUDACachingAllocator.cpp, private pools; "CUDA semantics", Graph memory
# management). Graphs of parts of layers share one, through which what they keep passes as without graphs, since they
# are captured in the schedule's order and reuse inputs and outputs (Megatron-LM transformer/cuda_graphs.py,
# TECudaGraphHelper; Transformer Engine pytorch/graph.py); what their backward holds for a moment stands beside what the
# rest of a layer, or the loss, does. A graph of the whole iteration holds all forwards and backwards (Megatron-LM
# full_cuda_graph.py), so that the optimizer's buffers do not find the room of activations.


def pool_bytes(context: LayerContext, passing: FloatArray, reused: FloatArray) -> FloatArray:
    """Returns the bytes that graphs reserve beyond the peak of one pool for all. ``passing`` is what loss or layer hold
    for a moment, ``reused`` the part of the buffers of the step's end that finds room where the passes' tensors were.

    The backward of a layer's graphed parts holds static gradients of its output and of its input
    (make_graphed_callables: static_grad_outputs, static_grad_inputs), of what its router hands to the experts, and of
    queries, keys, values and the kernel's output.
    """
    scopes, hidden = context.job.cuda_graphs, context.model.hidden
    if "full_iteration" in scopes:
        return reused
    rows = ceil_div(context.tokens, context.layout.tp_if(context.traits.cuts_tokens))
    blocks = [run.block for run in context.model.blocks]
    routes = bool(scopes & ROUTED) and any(block.moe is not None for block in blocks)
    mixers = [block.mixer for block in blocks if isinstance(block.mixer, AttentionSpec)] * ("attn" in scopes)
    widths = [(mixer.num_heads + mixer.num_kv_heads) * (mixer.qk_dim + mixer.v_dim) for mixer in mixers]
    attention = context.activations(context.tokens, max(widths, default=0)) / context.layout.tp
    return np.minimum((2.0 + routes) * context.activations(rows, hidden) + attention, passing)


def graph_pool_bytes(moments: Moments) -> FloatArray:
    """Returns ``pool_bytes`` of a step."""
    return pool_bytes(moments.stages.context, moments.passing, floats(np.max(moments.buffers, axis=0) - moments.step))


SLACK: tuple[PeakTerm, ...] = (PeakTerm(lambda stages: bool(stages.job.cuda_graphs), graph_pool_bytes),)
"""What no buffer may use."""
