"""Which forward operations run again in the backward, and what is kept instead.

Source: Korthikanti et al. 2022 (arXiv 2205.05198) sec. 5: full recomputation keeps a layer's input
and repeats its forward; selective recomputation repeats the attention core alone, torchtitan's every second
product (ops.recompute.every_second_product).
"""

from collections.abc import Callable, Collection
from dataclasses import replace
from enum import StrEnum

import numpy as np

from ops.mixers.unfused_attention import is_score_kernel
from ops.op import Attention, Axis, BatchedGemm, Comm, GroupedGemm, Op, Ops, Phase, Piece, run_again
from ops.recompute.every_second_product import EVERY_SECOND_PRODUCT, every_second_product
from ops.recompute.kept_input import held_again
from ops.roles import Module, OpKey, Role
from spec.arrays import FloatArray
from spec.dtypes import dtype_bytes

CORE_ATTENTION = "core_attn"
WIDE_BYTES = 2.0  # of an element that stays, in 16 bits


class Recompute(StrEnum):
    """How much of a layer is run again: SELECTIVE what the preset selects; BLOCK everything in the first
    num_recompute_layers layers of every chunk of a stage and nothing in the others (Megatron-LM,
    recompute_method "block")."""

    NONE = "none"
    SELECTIVE = "selective"
    FULL = "full"
    BLOCK = "block"


def recomputed(
    block: Piece,
    kind: Recompute,
    input_bytes: FloatArray,
    selective: str = CORE_ATTENTION,
    *,
    stops: bool = False,
    keeps: Collection[str] = (),
) -> Piece:
    """The block with ``kind`` applied; ``input_bytes`` is what full recomputation keeps, ``selective`` what
    selective recomputation repeats (FrameworkPreset.selective), ``stops`` whether full recomputation and that
    of every second product end with the last thing needed, ``keeps`` what full recomputation keeps of attention too
    (FrameworkPreset.recomputation).

    With full recomputation what the layer saves lives only while its own backward runs: it moves from
    ``saved_bytes`` to ``transient_bytes``.
    """
    if kind is Recompute.NONE:
        return block
    if kind is Recompute.SELECTIVE and selective == EVERY_SECOND_PRODUCT:
        return every_second_product(block, input_bytes, until=_needed(block) if stops else None)
    if kind is Recompute.SELECTIVE:
        return _repeat(block, is_score_kernel, keep=None)
    whole = _repeat(block, lambda op: True, keep=input_bytes, until=_needed(block) if stops else None)
    return _keeping(block, whole, keeps, input_bytes) if keeps else whole


# By what full recomputation keeps: the operations that make it.
MLPS = (Module.MLP, Module.MOE)
MAKERS: dict[str, frozenset[OpKey]] = {
    "qkv": frozenset({OpKey(Module.ATTENTION, Role.QKV), OpKey(Module.ATTENTION, Role.ROTARY)}),
    "context": frozenset({OpKey(Module.ATTENTION, Role.CORE), OpKey(Module.ATTENTION, Role.RING)}),
    "out": frozenset({OpKey(Module.ATTENTION, Role.OUT)}),
    "up": frozenset(OpKey(module, role) for module in MLPS for role in (Role.GATE, Role.UP)),
}


def _keeping(block: Piece, again: Piece, kept: Collection[str], input_bytes: FloatArray) -> Piece:
    """Queries, keys and values stay as attention reads them, its own result, its output product's (as large
    as a layer's input) or those of gate and up, and what makes them does not run again (MaxText
    ``layers/attentions.py``, ``linears.py`` and ``moe.py``: checkpoint_name behind the rotary embedding, the
    kernel and each product). Casts do, of inputs for the weight gradients. ``Assumption:`` of weights too,
    which nobody needs and which take little."""
    makers = frozenset[OpKey]().union(*(MAKERS[name] for name in kept))

    def makes(op: Op) -> bool:
        return op.served in makers and op.role is not Role.CAST

    def more(op: Op) -> FloatArray:
        none = 0.0 * input_bytes
        if isinstance(op, Attention):
            beside = np.maximum(op.saved_bytes - op.input_bytes, 0.0)
            both: FloatArray = ("qkv" in kept) * op.input_bytes + ("context" in kept) * beside
            return both
        if not isinstance(op, (BatchedGemm, GroupedGemm)) or op.phase is not Phase.FORWARD:
            return none
        if op.role is Role.OUT:
            # a wide product reads what attention made, beside a narrow one the kernel keeps it itself
            read = op.saved_bytes if dtype_bytes(op.dtype) >= WIDE_BYTES else none
            return ("out" in kept) * input_bytes + ("context" in kept) * read
        return WIDE_BYTES * op.m * op.n if "up" in kept and op.served in MAKERS["up"] else none

    forward = tuple(
        replace(op, saved_bytes=op.saved_bytes + more(was), transient_bytes=op.transient_bytes - more(was))
        if isinstance(op, Attention)
        else replace(op, saved_bytes=op.saved_bytes + more(was))
        for op, was in zip(again.forward, block.forward, strict=True)
    )
    backward = tuple(op for op in again.backward if not (op.phase is Phase.RECOMPUTE and makes(op)))
    return Piece(forward=forward, backward=backward)


def _needed(block: Piece) -> int:
    """How many of the forward operations bring back all that the backward needs: a last product's input is
    known before it runs, and nothing after it keeps anything (torch.utils.checkpoint, early_stop)."""
    keeping = [index for index, op in enumerate(block.forward) if op.saved_bytes.any()]
    last = keeping[-1] if keeping else -1
    return last + int(last < 0 or not isinstance(block.forward[last], BatchedGemm))


def _repeat(
    block: Piece, chosen: Callable[[Op], bool], keep: FloatArray | None, until: int | None = None
) -> Piece:
    """Copy the chosen ones of the first ``until`` forward operations into the backward and let go of what
    they save."""
    again: Ops = tuple(run_again(op) for op in block.forward[:until] if chosen(op))
    forward = []
    for op in block.forward:
        if not chosen(op):
            forward.append(op)
            continue
        kept: FloatArray = 0.0 * op.saved_bytes
        held: FloatArray = op.transient_bytes + op.saved_bytes
        if keep is None:
            kept = _inputs_of_core(op)
        elif op is block.forward[0]:
            kept, held = keep, held_again(op, keep)
        forward.append(replace(op, saved_bytes=kept, transient_bytes=held))
    backward = tuple(op for op in block.backward if keep is None or not _gathers_weights(op))
    return Piece(forward=tuple(forward), backward=again + backward)


def _gathers_weights(op: Op) -> bool:
    """isp's gather before the backward: the repeated forward has just gathered the same weights, and
    InternEvo keeps them until the layer's backward is done."""
    return isinstance(op, Comm) and op.axis is Axis.WP and op.phase is Phase.INPUT_GRAD


def _inputs_of_core(op: Op) -> FloatArray:
    """What the attention core needs to run again: q, k and v, without its own by-products."""
    return op.input_bytes if isinstance(op, Attention) else 0.0 * op.saved_bytes
