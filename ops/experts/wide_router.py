"""The gradients of a router whose scores are fp32 (Megatron-Core, --moe-router-dtype fp32).

``megatron/core/transformer/moe/moe_utils.py`` (core 0.13 and later), RouterGatingLinearFunction: forward one
product of 16-bit operands with an fp32 result; backward weight and input are copied to fp32, both products
run on fp32 operands alone, that is in TF32 (Transformer Engine ``common/gemm/cublaslt_gemm.cu``:
CUBLAS_COMPUTE_32F_FAST_TF32), and both results are copied back.
"""

from dataclasses import replace

import numpy as np

from ops.context import LayerContext
from ops.memory_bound import memory_pass
from ops.op import BatchedGemm, Op, Piece
from ops.roles import Role
from spec.arrays import IntArray
from spec.dtypes import dtype_bytes

WIDE = "tf32"


def wide_gradients(context: LayerContext, scores: Piece) -> Piece:
    """The product ``scores`` with these gradients; that of its result is fp32 already."""
    backward: list[Op] = []
    for op in scores.backward:
        if isinstance(op, BatchedGemm):
            backward += [
                _copied(context, op, "widen", op.k * op.n),
                replace(op, dtype=WIDE),
                _copied(context, op, "narrow", op.m * op.n),
            ]
        else:
            backward.append(op)
    return Piece(forward=scores.forward, backward=tuple(backward))


def _copied(context: LayerContext, op: BatchedGemm, word: str, elements: IntArray) -> Op:
    """``elements`` brought to fp32 or back, as a copy within the activations' format of as many bytes."""
    own = context.job.precision.activation
    share = (dtype_bytes(own) + dtype_bytes(WIDE)) / (2.0 * dtype_bytes(own))
    what = op.key.served_by(Role.CAST, f"{op.name}.{word}")
    return memory_pass(what, op.phase, "copy", np.ceil(elements * share).astype(np.int64), own)
