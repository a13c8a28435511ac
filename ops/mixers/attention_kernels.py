"""Kernels around attention: queries, keys and values copied before a flash kernel reads them, and what runs without one."""

from dataclasses import replace

import numpy as np

from ops.context import LayerContext
from ops.memory_bound import Kernel, kernel, soft_cap
from ops.op import Pass, sequence
from ops.roles import Identity, Module, OpKey, Role
from spec.arrays import IntArray
from spec.job import JobSpec
from spec.mixers.attention import AttentionSpec

QKV = OpKey(Module.ATTENTION, Role.QKV)
QKV_COPY = QKV.served_by(Role.COPY)


def copy_heads(
    context: LayerContext, attention: AttentionSpec, rows: IntArray, widths: tuple[IntArray, IntArray]
) -> Pass:
    """Returns the product's result permuted and copied, its keys and values (the second of ``widths``) joined, then
    permuted and copied once more; backward the same for their gradients (nanotron models/llama.py,
    CausalSelfAttention.forward).

    Copies of permuted arrays are PyTorch's kernel for strides. Backward the joined gradients of keys and values, then
    those of all three are written by concatenations, and as many heads of each are copied once more, into the
    product's order. Queries are rotated in place (flash_attn/layers/rotary.py), so that where queries, keys and
    values are one copy the first keys and values stay with them. A batch of several sequences is transposed after the
    kernel, and so is its gradient: a plain product reads, and saves, a copy of its output, one whose collectives
    overlap it makes that copy again backward (parallel/tensor_parallel/functional.py, _RowLinearAsyncCommunication:
    tensor.contiguous()).
    """
    queries, keys_values = widths
    together = attention.num_kv_heads == attention.num_heads
    overlaps = int(context.job.preset.tensor_parallel.overlap_backward)
    transposed = np.where(context.layout.micro_batch > 1, queries, 0)

    join = QKV.served_by(Role.COPY, "attention.qkv.join")
    permuted = queries + 2 * keys_values + transposed
    saved = keys_values * together + transposed * (1 - overlaps)
    forward = (
        *_kernel(context, QKV_COPY, "strided_copy", rows, permuted, saved).forward,
        *_kernel(context, join, "copy", rows, keys_values).forward,
    )
    returned = (queries + keys_values) * together + transposed * (1 + overlaps)
    backward = (
        *_kernel(context, join, "copy", rows, queries + 2 * keys_values).backward,
        *_kernel(context, QKV_COPY, "strided_copy", rows, returned).backward,
    )
    return Pass(forward=forward, backward=backward)


def repeats_keys(context: LayerContext, attention: AttentionSpec) -> bool:
    """Returns whether the flash kernel is handed keys and values copied to all heads."""
    repeats = context.job.flash_attention and context.job.preset.layers.repeats_keys
    return repeats and attention.num_kv_heads < attention.num_heads


def repeat_heads(
    context: LayerContext, attention: AttentionSpec, rows: IntArray, heads: tuple[IntArray, IntArray]
) -> Pass:
    """Returns keys and values of a rank's key-value heads (the second of ``heads``) copied to all heads, and the
    gradients of the copies added up (torchtitan up to v0.2.1, models/llama3/model/model.py, repeat_kv;
    foundation-model-stack fms/modules/attention.py: expand and flatten). Compiled, the copy moves its bytes; else it
    is PyTorch's kernel for strides."""
    queries, keys = heads
    channels = attention.qk_dim + attention.v_dim
    copies = np.where(queries > keys, queries, 0) * channels
    # Read of one set of heads and written to the other; the kernel's own traffic is of one width.
    moved = np.where(queries > keys, queries + keys, 0) * channels // 2

    what = QKV.served_by(Role.COPY, "attention.repeated_heads")
    added = _kernel(context, what, "copy", rows, moved)
    if context.job.preset.host.code == "compiled":
        return added
    return replace(_kernel(context, what, "strided_copy", rows, copies), backward=added.backward)


def split_heads(
    context: LayerContext, attention: AttentionSpec, rows: IntArray, heads: tuple[IntArray, IntArray]
) -> Pass:
    """Returns the cost of views of the joined product where queries and keys are rotated: copies forward, and
    backward one of all gradients into one tensor; ``heads`` and key-value heads of a rank.

    Queries of several groups cannot be viewed as heads and are copied (Megatron-LM core 0.15
    transformer/attention.py, get_query_key_value_tensors: reshape of sq, b, ng, np/ng * hn). Rotated keys are
    a tensor of their own, values still a view of other strides, so Transformer Engine makes values contiguous
    (dot_product_attention/utils.py, get_qkv_layout). The gradients are three tensors, which ``SplitAlongDim``
    concatenates (pytorch/utils.py, backward). The copies take the place of what the attention keeps.
    """
    queries, keys = heads
    # one group of queries, or a head of keys for each query, can be viewed without a copy
    shares = (queries > keys) & (keys > 1)
    out = np.where(shares, queries * attention.qk_dim, 0) + keys * attention.v_dim
    together = queries * attention.qk_dim + keys * (attention.qk_dim + attention.v_dim)

    gradients = _kernel(context, QKV_COPY, "copy", rows, together).backward
    return replace(_kernel(context, QKV_COPY, "strided_copy", rows, out), backward=gradients)


# What attention without a flash kernel runs around its two batched products.
#
# The score matrix passes through softmax and dropout; queries, keys and values are views of one projection, and
# the product with the values comes out head by head. Source: Megatron-LM, ``ParallelAttention.forward`` in
# megatron/model/transformer.py (v2.x); Aleph-Alpha/scaling, ``multi_head_attention`` in
# core/nn/attention/attention.py does the same.


def score_kernels(context: LayerContext, attention: AttentionSpec, rows: IntArray, width: IntArray) -> Pass:
    """Returns ALiBi's biases, soft cap, scale, mask and softmax over the score matrix, as one kernel or one after
    another, and dropout; sinks are put beside the scores by a copy, and backward what belongs to keys is copied back.

    Biases of keys are spread over the queries into the array that the first product then reads and writes to
    (torch.baddbmm: baddbmm_out_cuda_impl of PyTorch's cuda/Blas.cpp copies what is added into the result, cuBLAS adds
    to it), forward alone.
    """
    softmax = "masked_softmax_unfused" if _runs_unfused_softmax(context.job, attention) else "masked_softmax"
    pieces = []
    if attention.alibi:
        pieces.append(Pass(forward=_kernel(context, _of(Role.BIAS, "alibi"), "spread_unfused", rows, width).forward))
    if attention.softcap:
        pieces.append(soft_cap(context, _of(Role.SOFTMAX, "softcap"), rows, width))
    if attention.sinks:
        pieces.append(_kernel(context, _of(Role.SOFTMAX, "sinks"), "copy", rows, width))
    pieces += [_kernel(context, _of(Role.SOFTMAX, softmax), softmax, rows, width)]
    if context.job.dropout:
        pieces.append(_kernel(context, _of(Role.DROPOUT), "dropout", rows, width))
    return sequence(*pieces)


def _runs_unfused_softmax(job: JobSpec, attention: AttentionSpec) -> bool:
    """Returns whether the softmax is PyTorch's: fused ones know no sinks (Megatron-Core fused_softmax.py, forward)."""
    return attention.sinks or "softmax" in job.unfused


def score_saved_bytes(job: JobSpec, attention: AttentionSpec) -> float:
    """Returns the bytes saved of one score: what the product with the values reads, with dropout its mask and what it
    read (arXiv 2205.05198 table 2); without a fused kernel the softmax in fp32 instead of what dropout read."""
    # Table 2: 2 bytes of softmax output, 1 of dropout mask, 2 of dropout output; unfused 4 bytes of fp32 softmax, 2
    # that the product reads, and the mask.
    if _runs_unfused_softmax(job, attention):
        return 6.0 + job.dropout
    return 2.0 + 3.0 * job.dropout


def join_heads(context: LayerContext, rows: IntArray, width: IntArray) -> Pass:
    """Returns the output copied from heads x tokens to tokens x heads; backward its gradient is a view."""
    return Pass(forward=_kernel(context, _of(Role.JOIN_HEADS), "strided_copy", rows, width).forward)


def split_projection(context: LayerContext, attention: AttentionSpec, rows: IntArray, width: IntArray) -> Pass:
    """Returns the bias added by a kernel of its own forward (its gradient belongs to the linear), and backward the
    gradients of the three views written into one array."""
    join = QKV.served_by(Role.COPY, "attention.qkv.join")
    gradients = _kernel(context, join, "copy", rows, width).backward
    if not attention.qkv_bias:
        return Pass(backward=gradients)
    adding = QKV.served_by(Role.BIAS, "attention.qkv.add_bias")
    added = _kernel(context, adding, "bias", rows, width).forward
    return Pass(forward=added, backward=gradients)


def _of(role: Role, label: str = "") -> Identity:
    return Identity(module=Module.ATTENTION, role=role, name=f"{Module.ATTENTION}.{label}" if label else "")


def _kernel(
    context: LayerContext, what: Identity, word: str, rows: IntArray, width: IntArray, saved: IntArray | int = 0
) -> Pass:
    """Returns a kernel that keeps so many channels of its ``width``."""
    return kernel(context, Kernel(what, word, rows, width, saved_bytes=context.activations(rows, saved)))
