"""Parts of a layer that run again in the backward by name, as Megatron-LM's --recompute-modules.

Source where no other is named: Megatron-LM ``core/transformer/moe/README.md``, "Checkpointing", and ``transformer_config.py``,
recompute_modules. What a part hands on is dropped and made again; its own input stays. Norms before linears
that Transformer Engine fuses them into are not modules of their own and stay as they are.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from ops.op import Attention, Op, Phase, Piece


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """``again`` are starts of names of operations that run again, ``drops`` names of those that need not
    keep what they saved (the attention core: its inputs); only where an operation ``where`` is in the layer.
    """

    again: tuple[str, ...]
    drops: tuple[str, ...]
    where: str = ""


# By the name of the module; "layernorm" is two, before experts and before MLA's projections.
MODULES: dict[str, tuple[Module, ...]] = {
    "moe_act": (Module(again=("moe.clamp", "moe.activation"), drops=("moe.clamp", "moe.down")),),
    "layernorm": (
        Module(again=("mlp.norm",), drops=("moe.router",), where="moe.router"),
        Module(again=("attention.norm",), drops=("attention.q_down",), where="attention.kv_down"),
    ),
    # InternEvo's dropout_selective_checkpoint (internlm/model/modeling_internlm.py): residual add and norm.
    "dropout_norm": (
        Module(again=("attention.norm", "attention.residual", "mlp.norm"), drops=(), where="mlp.up"),
    ),
    "mla_up_proj": (
        Module(
            again=(
                "attention.q_norm",
                "attention.kv_norm",
                "attention.q_up",
                "attention.kv_up",
                "attention.rotary",
            ),
            drops=("attention.q_up", "attention.kv_up", "attention.core"),
            where="attention.kv_down",
        ),
    ),
    "mlp": (
        Module(
            again=("mlp.norm", "mlp.gate", "mlp.up", "mlp.activation", "mlp.down"),
            drops=("mlp.up", "mlp.activation", "mlp.down"),
            where="mlp.up",
        ),
    ),
    "shared_experts": (Module(again=("shared.",), drops=("shared.activation", "shared.down")),),
    "moe": (
        Module(
            again=("moe.", "shared."),
            drops=(
                "moe.topk",
                "moe.up",
                "moe.clamp",
                "moe.activation",
                "moe.down",
                "shared.activation",
                "shared.down",
            ),
            where="moe.router",
        ),
    ),
}


def modules_recomputed(block: Piece, names: Iterable[str]) -> Piece:
    """``block`` with the named modules run again; KeyError for an unknown name."""
    present = {op.name for op in block.forward}
    modules = [
        module
        for name in sorted(names)
        for module in MODULES[name]
        if not module.where or module.where in present
    ]
    again = tuple(run_again(op) for op in block.forward if any(op.name.startswith(m.again) for m in modules))
    dropped = {name for module in modules for name in module.drops}
    forward = tuple(_without_saved(op) if op.name in dropped else op for op in block.forward)
    return Piece(forward=forward, backward=again + block.backward)


def run_again(op: Op) -> Op:
    """A forward operation as the backward repeats it: it keeps and owns nothing."""
    return replace(
        op,
        phase=Phase.RECOMPUTE,
        beside_phase=Phase.RECOMPUTE,
        saved_bytes=0.0 * op.saved_bytes,
        parameters=0 * op.parameters,
    )


def _without_saved(op: Op) -> Op:
    """What it saved lives only while its layer runs."""
    kept = 0.0 * op.saved_bytes
    if isinstance(op, Attention):
        kept = np.maximum(op.saved_bytes - op.input_bytes, 0.0)
    return replace(op, saved_bytes=kept, transient_bytes=op.transient_bytes + op.saved_bytes - kept)
