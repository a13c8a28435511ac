"""What attention without a flash kernel runs around its two batched products.

The score matrix passes through softmax and dropout; queries, keys and values are views of one projection, and
the product with the values comes out head by head. Source: Megatron-LM, ``ParallelAttention.forward`` in
megatron/model/transformer.py (v2.x); Aleph-Alpha/scaling, ``multi_head_attention`` in
core/nn/attention/attention.py does the same.
"""

import numpy as np

from ops.context import LayerContext
from ops.memory_bound import Kernel, kernel, soft_capped
from ops.op import Op, Piece, sequence
from ops.roles import Identity, Module, OpKey, Role
from spec.arrays import IntArray
from spec.job import JobSpec
from spec.mixers.attention import AttentionSpec

# The router's top-k over its scores is repeated as the softmax over those of attention is.
SCORES = frozenset(
    {
        OpKey(Module.ATTENTION, Role.CORE),
        OpKey(Module.ATTENTION, Role.RING),
        OpKey(Module.ATTENTION, Role.RING_HOP),
        OpKey(Module.ATTENTION, Role.BIAS),
        OpKey(Module.ATTENTION, Role.SOFTMAX),
        OpKey(Module.ATTENTION, Role.DROPOUT),
        OpKey(Module.ATTENTION, Role.JOINED_HEADS),
        OpKey(Module.MOE, Role.TOP_K),
    }
)
QKV = OpKey(Module.ATTENTION, Role.QKV)


def score_kernels(context: LayerContext, attention: AttentionSpec, rows: IntArray, width: IntArray) -> Piece:
    """ALiBi's biases, soft cap, scale, mask and softmax over the score matrix, as one kernel or one after another, and
    dropout; sinks are put beside the scores by a copy, and backward what belongs to keys is copied back.

    Biases of keys are spread over the queries into the array that the first product then reads and writes to
    (torch.baddbmm: baddbmm_out_cuda_impl of PyTorch's cuda/Blas.cpp copies what is added into the result,
    cuBLAS adds to it), forward alone.
    """
    softmax = "masked_softmax_unfused" if _unfused_softmax(context.job, attention) else "masked_softmax"
    pieces = []
    if attention.alibi:
        pieces.append(
            Piece(forward=_kernel(context, _of(Role.BIAS, "alibi"), "spread_unfused", rows, width).forward)
        )
    if attention.softcap:
        pieces.append(soft_capped(context, _of(Role.SOFTMAX, "softcap"), rows, width))
    if attention.sinks:
        pieces.append(_kernel(context, _of(Role.SOFTMAX, "sinks"), "copy", rows, width))
    pieces += [_kernel(context, _of(Role.SOFTMAX, softmax), softmax, rows, width)]
    if context.job.dropout:
        pieces.append(_kernel(context, _of(Role.DROPOUT), "dropout", rows, width))
    return sequence(*pieces)


def _unfused_softmax(job: JobSpec, attention: AttentionSpec) -> bool:
    """Whether the softmax is PyTorch's: fused ones know no sinks (Megatron-Core fused_softmax.py, forward)."""
    return attention.sinks or "softmax" in job.unfused


def score_saved_bytes(job: JobSpec, attention: AttentionSpec) -> float:
    """Bytes kept of one score: what the product with the values reads, with dropout its mask and what it read
    (arXiv 2205.05198 table 2); without a fused kernel the softmax in fp32 instead of what dropout read."""
    if _unfused_softmax(job, attention):
        return 6.0 + job.dropout
    return 2.0 + 3.0 * job.dropout


def joined_heads(context: LayerContext, rows: IntArray, width: IntArray) -> Piece:
    """The output copied from heads x tokens to tokens x heads; backward its gradient is a view."""
    return Piece(forward=_kernel(context, _of(Role.JOINED_HEADS), "strided_copy", rows, width).forward)


def split_projection(
    context: LayerContext, attention: AttentionSpec, rows: IntArray, width: IntArray
) -> Piece:
    """Bias added by a kernel of its own forward (its gradient belongs to the linear), and backward the
    gradients of the three views written into one array."""
    joining = QKV.served_by(Role.COPY, "attention.qkv.join")
    joined = _kernel(context, joining, "copy", rows, width).backward
    if not attention.qkv_bias:
        return Piece(backward=joined)
    adding = QKV.served_by(Role.BIAS, "attention.qkv.add_bias")
    added = _kernel(context, adding, "bias", rows, width).forward
    return Piece(forward=added, backward=joined)


def is_score_kernel(op: Op) -> bool:
    """Whether an operation belongs to the attention core that selective recomputation repeats."""
    return op.key in SCORES


def _of(role: Role, label: str = "") -> Identity:
    return Identity(module=Module.ATTENTION, role=role, name=f"{Module.ATTENTION}.{label}" if label else "")


def _kernel(context: LayerContext, what: Identity, word: str, rows: IntArray, width: IntArray) -> Piece:
    """A kernel that keeps nothing of its own."""
    return kernel(
        context,
        Kernel(
            module=what.module,
            role=what.role,
            serves=what.serves,
            name=what.name,
            kernel=word,
            rows=rows,
            width=width,
            saved_bytes=np.zeros(len(rows)),
        ),
    )
