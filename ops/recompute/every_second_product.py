"""torchtitan's selective recomputation: of the matrix products every second runs again.

Source: torchtitan ``activation_checkpoint.py`` (selective, option "op"): the outputs of attention kernels,
of reduce-scatters and of the first, third, ... product of a layer are kept, everything else is made again.
Its layers have separate query, key, value, gate and up products, which count one by one also where this
project runs them as one.
"""

from dataclasses import replace

import numpy as np

from ops.op import Attention, BatchedGemm, Comm, Op, Piece
from ops.recompute.modules import run_again
from spec.arrays import FloatArray, IntArray
from spec.collectives import Collective
from spec.dtypes import dtype_bytes

EVERY_SECOND_PRODUCT = "every_second_product"


def every_second_product(block: Piece, input_bytes: FloatArray) -> Piece:
    """The block with the policy applied; ``input_bytes`` is the layer's input, which is kept."""
    cores = [op for op in block.forward if isinstance(op, Attention)]
    core = cores[0] if cores else None
    gated = any(op.name.endswith(".activation") and _is_gated(op) for op in block.forward)
    apart = any(op.name.endswith(".gate") for op in block.forward)
    forward: list[Op] = []
    repeated: list[Op] = []
    products = 0
    for index, op in enumerate(block.forward):
        kept = input_bytes if index == 0 else 0.0 * op.saved_bytes
        if isinstance(op, BatchedGemm):
            widths = _products(op, core, joined=gated and not apart)
            stay = sum((w for i, w in enumerate(widths) if (products + i) % 2 == 0), 0 * op.n)
            products += len(widths)
            # Results of 8-bit products are 16-bit.
            kept = kept + max(dtype_bytes(op.dtype), 2.0) * op.m * stay
            if op.name == "attention.out":
                kept = kept + op.saved_bytes
            if np.any(op.n > stay):
                repeated.append(run_again(replace(op, n=op.n - stay)))
        elif isinstance(op, Attention):
            kept = kept + op.saved_bytes - op.input_bytes
        elif not (isinstance(op, Comm) and (op.collective is Collective.REDUCE_SCATTER or _feeds(op, cores))):
            repeated.append(run_again(op))
        forward.append(replace(op, saved_bytes=kept, transient_bytes=op.transient_bytes + op.saved_bytes))
    return Piece(forward=tuple(forward), backward=(*repeated, *block.backward))


def _feeds(op: Comm, cores: list[Attention]) -> bool:
    """Whether a message is part of the attention whose outputs are kept: the hops of a ring."""
    return any(op.beside == core.key for core in cores)


def _is_gated(op: Op) -> bool:
    return "swiglu" in str(getattr(op, "kernel", ""))


def _products(op: BatchedGemm, core: Attention | None, *, joined: bool) -> list[IntArray]:
    """Output widths of the products that one of ours stands for."""
    if op.name == "attention.qkv" and core is not None:
        key = core.kv_heads * core.qk_dim
        value = core.kv_heads * core.v_dim
        return [op.n - key - value, key, value]
    if joined and op.name.endswith(".up"):
        return [op.n // 2, op.n - op.n // 2]
    return [op.n]
