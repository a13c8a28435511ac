"""Parts of layers that keep on the host what they save, as Megatron-LM's --offload-modules.

Source: Megatron-LM (core 0.16) ``core/pipeline_parallel/fine_grained_activation_offload.py``, whose hooks take what a
part saves as it saves it and copy it on a stream of their own, and bring it back beside the backward of what runs
before it: "attn_norm" and "mlp_norm" (``transformer_layer.py``) are norms that are modules of their own, before MLA
and before experts; "qkv_linear" is everything between that norm and the core (``attention.py``,
``multi_latent_attention.py``, get_query_key_value_tensors), with the norm that Transformer Engine fuses into it;
"expert_fc1", "moe_act" and "fused_group_mlp" are of experts (``moe/experts.py``).

"layer_input" is what a layer keeps that runs again whole (torchtune ``training/_activation_offloading.py``,
OffloadActivations around checkpoints, which TRL has too; XTuner ``v1/utils/activation_offload.py``), on a stream of
its own as well.
"""

from collections.abc import Iterable

import numpy as np

from ops.op import Attention, HostTransfer, Lane, Op, Phase, Piece
from ops.roles import Module, OpKey, Role
from spec.arrays import FloatArray

ATTENTION_NORM, SECOND_NORM = OpKey(Module.ATTENTION, Role.NORM), OpKey(Module.MLP, Role.NORM)
LATENT, ROUTER = OpKey(Module.ATTENTION, Role.KV_DOWN), OpKey(Module.MOE, Role.ROUTER)
QKV_ROLES = (Role.NORM, Role.QKV, Role.Q_DOWN, Role.Q_UP, Role.KV_DOWN, Role.KV_UP, Role.ROTARY)
EXPERT_ACTIVATION = frozenset({OpKey(Module.MOE, Role.CLAMP), OpKey(Module.MOE, Role.ACTIVATION)})
EXPERT_UP, EXPERT_DOWN = OpKey(Module.MOE, Role.UP), OpKey(Module.MOE, Role.DOWN)

LAYER_INPUT = "layer_input"
# By the name of the part; a layer's input is all that the layer keeps.
PARTS: dict[str, frozenset[OpKey]] = {
    LAYER_INPUT: frozenset(),
    "attn_norm": frozenset({ATTENTION_NORM}),
    "qkv_linear": frozenset(OpKey(Module.ATTENTION, role) for role in QKV_ROLES),
    "core_attn": frozenset({OpKey(Module.ATTENTION, Role.CORE)}),
    "attn_proj": frozenset({OpKey(Module.ATTENTION, Role.OUT)}),
    "mlp_norm": frozenset({SECOND_NORM}),
    "expert_fc1": frozenset({EXPERT_UP}),
    "moe_act": EXPERT_ACTIVATION,
    "fused_group_mlp": EXPERT_ACTIVATION | {EXPERT_UP, EXPERT_DOWN},
}
# An attention kernel saves queries, keys, values, its output and the softmax's statistics.
TENSORS_OF_A_CORE = 5


def modules_offloaded(block: Piece, names: Iterable[str]) -> Piece:
    """``block`` whose named parts keep on the host what they save; KeyError for an unknown name.

    ``Assumption:`` what one layer sends is on the device too, on its way there or back; all layers send theirs
    (Megatron-LM keeps the last of a micro-batch), tensors of less than a million elements as well.
    """
    away, back = [], []
    for name in sorted(names):
        saving = [op for op in part_of(block, name) if op.saved_bytes.any()]
        if saving:
            away.append(_to_host(name, saving))
            back.append(_from_host(away[-1]))
    return Piece(forward=(*block.forward, *away), backward=(*reversed(back), *block.backward))


def part_of(block: Piece, name: str) -> list[Op]:
    """The forward operations of a named part; none where the layer has no such module."""
    if name == LAYER_INPUT:
        return list(block.forward)
    keys = {op.key for op in block.forward}
    apart = {"attn_norm": LATENT in keys, "mlp_norm": ROUTER in keys}.get(name, True)
    elsewhere = {ATTENTION_NORM} if LATENT in keys and name != "attn_norm" else set()
    wanted = PARTS[name] - elsewhere
    return [op for op in block.forward if apart and op.is_within(wanted)]


def _to_host(name: str, saving: list[Op]) -> HostTransfer:
    moved: FloatArray = np.sum(np.broadcast_arrays(*(op.saved_bytes for op in saving)), axis=0)
    return HostTransfer(
        module=saving[0].module,
        role=Role.ACTIVATIONS_TO_HOST,
        name=f"{name}.to_host",
        phase=Phase.FORWARD,
        lane=Lane.COPY,
        size_bytes=moved,
        tensors=sum(TENSORS_OF_A_CORE if isinstance(op, Attention) else 1 for op in saving),
        saved_bytes=-moved,
        transient_bytes=moved,
    )


def _from_host(away: HostTransfer) -> HostTransfer:
    return HostTransfer(
        module=away.module,
        role=Role.ACTIVATIONS_FROM_HOST,
        name=away.name.replace(".to_host", ".from_host"),
        phase=Phase.INPUT_GRAD,
        lane=Lane.COPY,
        size_bytes=away.size_bytes,
        tensors=away.tensors,
    )
