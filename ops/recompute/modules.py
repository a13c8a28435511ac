"""Parts of a layer that run again in the backward by name, as Megatron-LM's --recompute-modules.

Source where no other is named: Megatron-LM ``core/transformer/moe/README.md``, "Checkpointing", and
``transformer_config.py``, recompute_modules. What a part hands on is dropped and made again; its own input
stays. Norms before linears that Transformer Engine fuses them into are not modules of their own and stay as
they are.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from ops.op import Attention, Op, Piece, run_again
from ops.roles import Module, OpKey, Role


def _in(module: Module, *roles: Role) -> frozenset[OpKey]:
    return frozenset(OpKey(module, role) for role in roles)


ROUTER, DENSE_UP = OpKey(Module.MOE, Role.ROUTER), OpKey(Module.MLP, Role.UP)
LATENT = OpKey(Module.ATTENTION, Role.KV_DOWN)
SHARED_INNER = _in(Module.SHARED_EXPERTS, Role.ACTIVATION, Role.DOWN)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecomputedModule:
    """``again`` are the operations, or the modules whole, that run again with all that serves them; ``drops``
    those that need not keep what they saved (the attention core: its inputs); only where an operation ``where``
    is in the layer.
    """

    again: frozenset[Module | OpKey]
    drops: frozenset[OpKey]
    where: OpKey | None = None

    @property
    def begins_with_norm(self) -> bool:
        """Whether norms before linears are among what runs again."""
        return any(isinstance(part, OpKey) and part.role is Role.NORM for part in self.again)


# By the name of the module; "layernorm" is two, before experts and before MLA's projections.
MODULES: dict[str, tuple[RecomputedModule, ...]] = {
    "moe_act": (
        RecomputedModule(
            again=_in(Module.MOE, Role.CLAMP, Role.ACTIVATION), drops=_in(Module.MOE, Role.CLAMP, Role.DOWN)
        ),
    ),
    "layernorm": (
        RecomputedModule(
            again=_in(Module.MLP, Role.NORM),
            drops=_in(Module.SHARED_EXPERTS, Role.UP) | {ROUTER},
            where=ROUTER,
        ),
        RecomputedModule(
            again=_in(Module.ATTENTION, Role.NORM),
            drops=_in(Module.ATTENTION, Role.Q_DOWN, Role.KV_DOWN),
            where=LATENT,
        ),
    ),
    # DeepSeek-V3 (arXiv 2412.19437 sec. 3.2.3): every RMSNorm runs again and nothing keeps what it makes.
    "norm": (
        RecomputedModule(
            again=_in(Module.ATTENTION, Role.NORM) | _in(Module.MLP, Role.NORM),
            drops=_in(Module.ATTENTION, Role.QKV, Role.Q_DOWN, Role.KV_DOWN)
            | _in(Module.MLP, Role.UP)
            | _in(Module.SHARED_EXPERTS, Role.UP)
            | {ROUTER},
        ),
    ),
    # InternEvo's dropout_selective_checkpoint (internlm/model/modeling_internlm.py): residual add and norm.
    "dropout_norm": (
        RecomputedModule(
            again=_in(Module.ATTENTION, Role.NORM, Role.RESIDUAL) | _in(Module.MLP, Role.NORM),
            drops=frozenset(),
            where=DENSE_UP,
        ),
    ),
    "mla_up_proj": (
        RecomputedModule(
            again=_in(Module.ATTENTION, Role.Q_UP, Role.KV_UP, Role.ROTARY),
            drops=_in(Module.ATTENTION, Role.Q_UP, Role.KV_UP, Role.CORE),
            where=LATENT,
        ),
    ),
    "mlp": (
        RecomputedModule(
            again=_in(Module.MLP, Role.NORM, Role.GATE, Role.UP, Role.ACTIVATION, Role.DOWN),
            drops=_in(Module.MLP, Role.UP, Role.ACTIVATION, Role.DOWN),
            where=DENSE_UP,
        ),
    ),
    "shared_experts": (RecomputedModule(again=frozenset({Module.SHARED_EXPERTS}), drops=SHARED_INNER),),
    "moe": (
        RecomputedModule(
            again=frozenset({Module.MOE, Module.SHARED_EXPERTS}),
            drops=SHARED_INNER
            | _in(Module.MOE, Role.TOP_K, Role.UP, Role.CLAMP, Role.ACTIVATION, Role.DOWN)
            | _in(Module.MOE, Role.LATENT_DOWN, Role.LATENT_UP),
            where=ROUTER,
        ),
    ),
}


def felt_by(block: Piece, names: Iterable[str]) -> tuple[str, ...]:
    """Those of the named modules that do anything to ``block``; KeyError for an unknown name."""
    keys = {op.key for op in block.forward}
    return tuple(
        name
        for name in sorted(names)
        if any(
            (one.where is None or one.where in keys)
            and (keys & one.drops or any(op.is_within(one.again) for op in block.forward))
            for one in MODULES[name]
        )
    )


def modules_recomputed(block: Piece, names: Iterable[str], *, norms_lead: bool = True) -> Piece:
    """``block`` with the named modules run again; KeyError for an unknown name. Unless norms make what linears read
    (``norms_lead``), parts that begin with a norm stay as they are: they could not be made again from its input."""
    present = {op.key for op in block.forward}
    modules = [
        module
        for name in sorted(names)
        for module in MODULES[name]
        if (module.where is None or module.where in present) and (norms_lead or not module.begins_with_norm)
    ]
    again = tuple(run_again(op) for op in block.forward if any(op.is_within(m.again) for m in modules))
    dropped = {key for module in modules for key in module.drops}
    forward = tuple(_without_saved(op) if op.key in dropped else op for op in block.forward)
    return Piece(forward=forward, backward=again + block.backward)


def _without_saved(op: Op) -> Op:
    """What it saved lives only while its layer runs."""
    kept = 0.0 * op.saved_bytes
    if isinstance(op, Attention):
        kept = np.maximum(op.saved_bytes - op.input_bytes, 0.0)
    return replace(op, saved_bytes=kept, transient_bytes=op.transient_bytes + op.saved_bytes - kept)
