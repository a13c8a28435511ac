"""Queries, keys and values copied out of the product that made them, before a flash kernel reads them."""

from dataclasses import replace

import numpy as np

from ops.context import LayerContext
from ops.memory_bound import Kernel, kernel
from ops.op import Piece
from ops.roles import Module, Role
from spec.arrays import IntArray
from spec.mixers.attention import AttentionSpec


def copied_heads(
    context: LayerContext, attention: AttentionSpec, rows: IntArray, widths: tuple[IntArray, IntArray]
) -> Piece:
    """The product's result permuted and copied, its keys and values (the second of ``widths``) joined, then
    permuted and copied once more; backward the same for their gradients (nanotron models/llama.py,
    CausalSelfAttention.forward).

    Copies of permuted arrays are PyTorch's kernel for strides. Backward the joined gradients of keys and
    values, then those of all three are written by concatenations, and as many heads of each are copied once
    more, into the product's order. Queries are turned in place (flash_attn/layers/rotary.py), so that where
    queries, keys and values are one copy the first keys and values stay with them. A batch of several
    sequences is transposed behind the kernel, and so is its gradient: a plain product reads, and keeps, a
    copy of its output, one whose collectives run beside it makes that copy again backward
    (parallel/tensor_parallel/functional.py, _RowLinearAsyncCommunication: tensor.contiguous()).
    """
    queries, keys_values = widths
    together = attention.num_kv_heads == attention.num_heads
    beside = int(context.job.preset.tensor_parallel.overlap_backward)
    transposed = np.where(context.layout.micro_batch > 1, queries, 0)

    def copied(name: str, kernel_name: str, width: IntArray, kept: IntArray) -> Piece:
        return kernel(
            context,
            Kernel(
                module=Module.ATTENTION,
                role=Role.COPY,
                serves=Role.QKV,
                name=name,
                kernel=kernel_name,
                rows=rows,
                width=width,
                saved_bytes=context.activations(rows, kept),
            ),
        )

    none = 0 * queries
    permuted = queries + 2 * keys_values + transposed
    kept = keys_values * together + transposed * (1 - beside)
    forward = (
        *copied("", "strided_copy", permuted, kept).forward,
        *copied("attention.qkv.join", "copy", keys_values, none).forward,
    )
    returned = (queries + keys_values) * together + transposed * (1 + beside)
    backward = (
        *copied("attention.qkv.join", "copy", queries + 2 * keys_values, none).backward,
        *copied("", "strided_copy", returned, none).backward,
    )
    return Piece(forward=forward, backward=backward)


def repeats_keys(context: LayerContext, attention: AttentionSpec) -> bool:
    """Whether the flash kernel is handed keys and values copied to all heads."""
    repeats = context.job.flash_attention and context.job.preset.layers.repeats_keys
    return repeats and attention.num_kv_heads < attention.num_heads


def repeated_heads(
    context: LayerContext, attention: AttentionSpec, rows: IntArray, heads: tuple[IntArray, IntArray]
) -> Piece:
    """Keys and values of a rank's key-value heads (the second of ``heads``) copied to all heads, and the
    gradients of the copies added up (torchtitan up to v0.2.1, models/llama3/model/model.py, repeat_kv;
    foundation-model-stack fms/modules/attention.py: expand and flatten). Compiled, the copy moves its bytes;
    else it is PyTorch's kernel for strides."""
    queries, keys = heads
    channels = attention.qk_dim + attention.v_dim
    copies = np.where(queries > keys, queries, 0) * channels
    # Read of one set of heads and written to the other; the kernel's own traffic is of one width.
    moved = np.where(queries > keys, queries + keys, 0) * channels // 2

    def copied(word: str, width: IntArray) -> Piece:
        return kernel(
            context,
            Kernel(
                module=Module.ATTENTION,
                role=Role.COPY,
                serves=Role.QKV,
                name="attention.repeated_heads",
                kernel=word,
                rows=rows,
                width=width,
                saved_bytes=np.zeros(len(rows)),
            ),
        )

    added = copied("copy", moved)
    if context.job.preset.host.code == "compiled":
        return added
    return replace(copied("strided_copy", copies), backward=added.backward)


def split_heads(
    context: LayerContext, attention: AttentionSpec, rows: IntArray, heads: tuple[IntArray, IntArray]
) -> Piece:
    """What views of the joined product cost where queries and keys are rotated: copies forward, and backward one of all
    gradients into one tensor; ``heads`` and key-value heads of a rank.

    Queries of several groups cannot be viewed as heads and are copied (Megatron-LM core 0.15
    transformer/attention.py, get_query_key_value_tensors: reshape of sq, b, ng, np/ng * hn). Rotated keys are
    a tensor of their own, values still a view of other strides, so Transformer Engine makes values contiguous
    (dot_product_attention/utils.py, get_qkv_layout). The gradients are three tensors, which ``SplitAlongDim``
    concatenates (pytorch/utils.py, backward). The copies take the place of what the attention keeps.
    """
    queries, keys = heads
    shares = (queries > keys) & (keys > 1)
    out = np.where(shares, queries * attention.qk_dim, 0) + keys * attention.v_dim
    together = queries * attention.qk_dim + keys * (attention.qk_dim + attention.v_dim)

    def copied(width: IntArray, word: str) -> Piece:
        return kernel(
            context,
            Kernel(
                module=Module.ATTENTION,
                role=Role.COPY,
                serves=Role.QKV,
                kernel=word,
                rows=rows,
                width=width,
                saved_bytes=np.zeros(len(rows)),
            ),
        )

    return replace(copied(out, "strided_copy"), backward=copied(together, "copy").backward)
