"""Buffers of gradients on their way and of the end of a step."""

import numpy as np

from ops.context import LayerContext
from ops.data_parallel.muon import working_bytes
from ops.data_parallel.offload import offloaded_elements
from ops.data_parallel.step import RankParameters, owned_elements
from spec.arrays import BoolArray, FloatArray, IntArray, bools
from spec.dtypes import dtype_bytes


def bucket_bytes(context: LayerContext, on_rank: RankParameters) -> FloatArray:
    """One gradient bucket on its way, where gradients do not already lie in one buffer; a bucket in another
    format than the gradients' has a flat copy in theirs beside it. Where they stay (keeps_buckets), all of
    them, from the first step to the last (PyTorch reducer.cpp, initialize_buckets)."""
    preset, precision = context.job.preset, context.job.precision
    if preset.data_parallel.keeps_buckets:
        copies = (context.layout.dp * context.layout.cp > 1) & reduces_in_backward(context)
        return np.where(copies, on_rank.total * dtype_bytes(precision.parameter), 0.0)
    elements = np.minimum(on_rank.total, preset.data_parallel.bucket_elements)
    copied = context.reduce_dtype != precision.gradient
    width = dtype_bytes(context.reduce_dtype) + copied * dtype_bytes(precision.gradient)
    return 0.0 * elements if preset.data_parallel.contiguous_gradients else elements * width


def reduces_in_backward(context: LayerContext) -> BoolArray:
    """Whether buckets leave while activations are still held: overlapped, or sharded gradients."""
    return bools(context.job.preset.data_parallel.overlap_grad_reduce | (context.layout.zero_stage >= 2))


def step_buffers(
    context: LayerContext, on_rank: RankParameters, embedding: IntArray
) -> tuple[FloatArray, ...]:
    """Buffers in one piece that live one after another once activations go: the embedding's dense gradient
    before it is added to the sum, a bucket of gradients on its way, the fp32 copy of one fp16 gradient in
    the overflow check (DeepSpeed runtime/zero/stage_1_and_2.py, _has_inf_or_nan), fp32 gradients of the
    shard for the update, what the update itself makes, and Muon's largest matrix."""
    precision, preset = context.job.precision, context.job.preset
    widened = (
        bool(precision.master) & (precision.gradient != precision.master) & (context.layout.zero_stage < 2)
    )
    owned = owned_elements(context, on_rank)
    checked = 4.0 * (precision.gradient == "fp16") * (not preset.data_parallel.contiguous_gradients)
    here = owned - offloaded_elements(context, owned)
    return (
        embedding * context.activation_bytes,
        bucket_bytes(context, on_rank) * ~reduces_in_backward(context),
        embedding * checked,
        here * precision.master_bytes * widened,
        here * dtype_bytes(precision.moments) * preset.data_parallel.update_copies,
        working_bytes(context, on_rank.matrices),
    )


def returned_bytes(context: LayerContext, on_rank: RankParameters) -> FloatArray:
    """A flat copy of the parameters, of which updated shards return through two where they are lists of
    slices: a buffer for each rank's (nanotron distributed.py, all_gather_coalesced), and one for all
    (ProcessGroupNCCL, allgather of lists)."""
    width = dtype_bytes(context.job.precision.parameter_gather)
    lists = context.job.preset.data_parallel.lists_of_slices
    travels = lists & (context.layout.zero_stage == 1) & (context.layout.zero_size > 1)
    return np.where(travels, on_rank.total * width, 0.0)


def segment_bytes(buffers: tuple[FloatArray, ...], largest: FloatArray) -> FloatArray:
    """What the caching allocator reserves for the buffers: tensors of 10 MiB and more have segments of
    their own, which do not join (c10/cuda/CUDACachingAllocator.cpp), so a buffer finds room only where
    the passes' ``largest`` tensor was. Assumption: no buffer fits where an earlier one was."""
    return np.asarray(np.sum([np.where(one > largest, one, 0.0) for one in buffers], axis=0))


def returned_segments(
    returned: FloatArray, shards: IntArray, largest: FloatArray, widest: FloatArray
) -> FloatArray:
    """The same for both copies that ``shards`` return through (returned_bytes): one in one piece, one in a
    piece for each rank, which also finds room where the ``widest`` activations of the layers were."""
    whole = np.where(returned > largest, returned, 0.0)
    return whole + np.where(returned / shards > np.maximum(largest, widest), returned, 0.0)
