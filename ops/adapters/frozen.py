"""Low-rank adapters beside frozen weights: LoRA (arXiv 2106.09685 sec. 4.1), and QLoRA (arXiv 2305.14314 sec. 3).

A frozen weight W has an input gradient and no gradient of its own, so its product keeps no input and nothing
of it is reduced or updated. Beside an adapted one run h = B A x, with A of ``adapter_rank`` x inputs and B of
outputs x ``adapter_rank``, and their gradients; x is kept for A's, or, dropped out or in another format, a
copy of it for each A (peft, tuners/lora/layer.py, Linear.forward: lora_A(dropout(x)) of x in lora_A's
format). Weights held in 4 bits are brought to 16 before each product that reads them (QLoRA sec. 3, eq. 5;
bitsandbytes, autograd/_functions.py, MatMul4Bit).
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ops.adapters.pair import adapter_pair
from ops.context import LayerContext
from ops.memory_bound import memory_pass
from ops.op import BatchedGemm, GroupedGemm, Lane, Op, Phase, Piece
from ops.roles import Module, OpKey, Role
from spec.arrays import IntArray
from spec.dtypes import dtype_bytes
from spec.job import Adapted

# The products that a name of JobSpec.adapted means.
ADAPTED: dict[Adapted, tuple[OpKey, ...]] = {
    "qkv": (OpKey(Module.ATTENTION, Role.QKV),),
    "q_k_v": (OpKey(Module.ATTENTION, Role.QKV),),
    "out": (OpKey(Module.ATTENTION, Role.OUT),),
    "up": (OpKey(Module.MLP, Role.UP), OpKey(Module.MLP, Role.GATE)),
    "down": (OpKey(Module.MLP, Role.DOWN),),
}


def adapted(context: LayerContext, piece: Piece) -> Piece:
    """``piece`` with its weights frozen and adapters on the products that the job names; as it is where the job
    trains everything."""
    if not context.job.adapter_rank:
        return piece
    weighted = {op.key for op in piece.backward if op.phase is Phase.WEIGHT_GRAD and _is_product(op)}
    bases = {op.key: op for op in piece.forward if _is_product(op) and op.key in weighted}
    wanted = {key for name in context.job.adapted for key in ADAPTED[name]}
    adapters = {
        key: adapter_pair(context, base, times=3 if _apart(context, key) else 1)
        for key, base in bases.items()
        if key in wanted and isinstance(base, BatchedGemm)
    }
    return Piece(
        forward=tuple(_forward(context, piece.forward, bases, adapters)),
        backward=tuple(_backward(context, piece.backward, bases, adapters)),
    )


def frozen_ends(context: LayerContext, piece: Piece) -> Piece:
    """The embedding of a job with adapters: looked up, and without a gradient."""
    if not context.job.adapter_rank:
        return piece
    return Piece(forward=tuple(_frozen(op) for op in piece.forward))


def _apart(context: LayerContext, key: OpKey) -> bool:
    return key.role is Role.QKV and "q_k_v" in context.job.adapted


def _is_product(op: Op) -> bool:
    return isinstance(op, BatchedGemm | GroupedGemm)


def _frozen(op: Op, share: float = 1.0) -> Op:
    held = np.ceil(op.parameters * share).astype(np.int64)
    return replace(op, frozen=op.frozen + held, parameters=0 * op.parameters)


def _held_share(context: LayerContext, product: Op) -> float:
    """Width of a product's frozen weights over that of parameters; quantizers leave the head alone
    (transformers, integrations/bitsandbytes.py: get_keys_to_not_convert)."""
    precision = context.job.precision
    if not precision.frozen or product.module is Module.HEAD:
        return 1.0
    return dtype_bytes(precision.frozen) / dtype_bytes(precision.parameter)


def _forward(
    context: LayerContext, ops: Sequence[Op], bases: dict[OpKey, Op], adapters: dict[OpKey, Piece]
) -> list[Op]:
    found: list[Op] = []
    for op in ops:
        if op.key not in bases:
            found.append(_frozen(op))
            continue
        found.extend(_widened(context, op, Phase.FORWARD, op.parameters))
        kept = op.saved_bytes if _keeps_input(context, op, op.key in adapters) else 0.0 * op.saved_bytes
        found.append(replace(_frozen(op, _held_share(context, op)), saved_bytes=kept))
        found.extend(adapters[op.key].forward if op.key in adapters else ())
    return found


def _keeps_input(context: LayerContext, product: Op, has_adapter: bool) -> bool:
    """Whether a frozen product's own input stays: the flash kernel's result does for that kernel's backward, any other
    for an adapter that reads it and makes nothing else of it."""
    if product.key == OpKey(Module.ATTENTION, Role.OUT) and context.job.flash_attention:
        return True
    return has_adapter and not (context.job.adapter_dropout or context.job.adapter_dtype)


def _backward(
    context: LayerContext, ops: Sequence[Op], bases: dict[OpKey, Op], adapters: dict[OpKey, Piece]
) -> list[Op]:
    """Without the gradients of frozen weights, and what served only them; what ran beside one is waited for."""
    found: list[Op] = []
    for op in ops:
        base = op.served in bases
        if base and op.phase is Phase.WEIGHT_GRAD:
            if op.key in adapters:
                found.extend(adapters[op.key].backward)
            if op.role is Role.REGATHER and op.served in adapters:
                found.append(op)
            continue
        if op.lane is Lane.BESIDE and op.beside in bases and op.beside_phase is Phase.WEIGHT_GRAD:
            found.append(replace(op, lane=Lane.MAIN))
            continue
        if base and op.key in bases:
            found.extend(_widened(context, op, Phase.INPUT_GRAD, bases[op.key].parameters))
        found.append(op)
    return found


def _widened(context: LayerContext, product: Op, phase: Phase, elements: IntArray) -> list[Op]:
    """Frozen weights of few bits written out for one product: a copy that reads the narrow ones."""
    share = _held_share(context, product)
    if share == 1.0:
        return []
    # A copy reads and writes an element of the parameters' format.
    rows = np.ceil(elements * (1.0 + share) / 2.0).astype(np.int64)
    wide = context.job.precision.parameter
    what = product.key.served_by(Role.CAST, f"{product.name}.widen")
    return [memory_pass(what, phase, "copy", rows, wide)]
