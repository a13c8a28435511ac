"""torchtitan's selective recomputation: of the matrix products every second runs again.

Source: torchtitan ``activation_checkpoint.py`` (selective, option "op"): the outputs of attention kernels,
of reduce-scatters and of the first, third, ... product of a layer are kept, everything else is made again.
Its layers have separate query, key, value, gate and up products, which count one by one also where this
project runs them as one.
"""

from dataclasses import replace

import numpy as np

from ops.kernels import KERNELS
from ops.op import Attention, BatchedGemm, Comm, MemoryBound, Op, Piece, run_again
from ops.recompute.kept_input import held_again
from ops.roles import Module, OpKey, Role
from spec.arrays import FloatArray, IntArray
from spec.collectives import Collective
from spec.dtypes import dtype_bytes

EVERY_SECOND_PRODUCT = "every_second_product"
ATTENTION_OUT = OpKey(Module.ATTENTION, Role.OUT)


def every_second_product(block: Piece, input_bytes: FloatArray, until: int | None = None) -> Piece:
    """The block with the policy applied; ``input_bytes`` is the layer's input, which is kept. Of the forward's
    operations only the first ``until`` run again (torch.utils.checkpoint, early_stop, which holds for a policy too).
    """
    cores = [op for op in block.forward if isinstance(op, Attention)]
    core = cores[0] if cores else None
    gated = any(_is_gate(op) for op in block.forward)
    apart = any(op.role is Role.GATE for op in block.forward)
    forward: list[Op] = []
    repeated: list[Op] = []
    products = 0
    last = len(block.forward) if until is None else until
    for index, op in enumerate(block.forward):
        kept = input_bytes if index == 0 else 0.0 * op.saved_bytes
        if isinstance(op, BatchedGemm) and op.role is not Role.CORE:
            widths = _products(op, core, joined=gated and not apart)
            stay = sum((w for i, w in enumerate(widths) if (products + i) % 2 == 0), 0 * op.n)
            products += len(widths)
            # Results of 8-bit products are 16-bit.
            kept = kept + max(dtype_bytes(op.dtype), 2.0) * op.m * stay
            if op.key == ATTENTION_OUT:
                kept = kept + op.saved_bytes
            if np.any(op.n > stay) and index < last:
                repeated.append(run_again(replace(op, n=op.n - stay)))
        elif isinstance(op, Attention):
            kept = kept + op.saved_bytes - op.input_bytes
        elif not _is_kept(op) and index < last:
            repeated.append(run_again(op))
        held = op.transient_bytes + op.saved_bytes if index else held_again(op, input_bytes)
        forward.append(replace(op, saved_bytes=kept, transient_bytes=held))
    return Piece(forward=tuple(forward), backward=(*repeated, *block.backward))


def _is_gate(op: Op) -> bool:
    """Whether it multiplies gate and up; a mixer's own gate does neither."""
    return isinstance(op, MemoryBound) and KERNELS[op.kernel].gated and op.role is Role.ACTIVATION


def _is_kept(op: Op) -> bool:
    """Whether its result is kept: a reduce-scatter's, and that of all that attention to parts of a sequence takes."""
    if op.role is Role.RING_HOP or op.serves is Role.CORE:
        return True
    return isinstance(op, Comm) and op.collective is Collective.REDUCE_SCATTER


def _products(op: BatchedGemm, core: Attention | None, *, joined: bool) -> list[IntArray]:
    """Output widths of the products that one of ours stands for."""
    if op.role is Role.QKV and core is not None:
        key = core.kv_heads * core.qk_dim
        value = core.kv_heads * core.v_dim
        return [op.n - key - value, key, value]
    if joined and op.role is Role.UP:
        return [op.n // 2, op.n - op.n // 2]
    return [op.n]
