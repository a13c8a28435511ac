"""Data that lives in the host's memory instead of the device's: optimizer state, and saved activations.

An optimizer on the host (ZeRO-Offload, arXiv 2101.06840 sec. 3 and 4): gradients go there in fp32, the processors
update, parameters come back in their own format. DeepSpeed (``runtime/zero/stage_1_and_2.py``,
``async_accumulate_grad_in_cpu_via_gpu``; stage 3 alike) sends each gradient as the backward makes it; where it
keeps shards of gradients, those of earlier micro-batches wait on the host, come back to be added to, and return.
Megatron-Core (``optimizer/cpu_offloading/hybrid_optimizer.py``, ``HybridDeviceOptimizer.step``) sends
them once all are there; the device updates its own part while the processors update theirs.

Activations (Transformer Engine, ``pytorch/cpu_offload.py``, AsyncDoubleBufferGroupOffloadHandler): the first
layers' copies are spread over all layers of the pass ("bulk_offload_group"), so every layer of a kind carries an
equal part. ``Assumption:`` all that a layer saves goes, and one layer of them is on the device at any time,
on its way.
"""

from collections.abc import Iterable

import numpy as np

from ops.context import LayerContext, num_micro
from ops.op import Attention, HostTransfer, HostUpdate, Lane, Op, Pass, Phase
from ops.roles import Module, OpKey, Role
from spec.arrays import FloatArray, IntArray, ints
from spec.dtypes import dtype_bytes
from spec.model import ModelSpec

# Gradients reach the host's optimizer in the format of its state.
HOST_GRADIENT_BYTES = 4.0


def host_elements(context: LayerContext, owned: IntArray) -> IntArray:
    """Returns those of the ``owned`` elements of a rank's optimizer that the host updates."""
    elements: IntArray = np.ceil(owned * context.layout.optimizer_offload).astype(np.int64)
    return elements


def keeps_gradients_on_host(context: LayerContext) -> IntArray:
    """Returns 1 where sharded gradients wait on the host from one micro-batch to the next, else 0."""
    offloads = context.layout.optimizer_offload > 0
    leaves_early = context.job.preset.offload.optimizer == "backward"
    return ints((context.layout.zero_stage >= 2) & offloads & leaves_early)


def optimizer_host_bytes(context: LayerContext, owned: IntArray) -> FloatArray:
    """Returns the bytes of a rank's offloaded optimizer on the host: state, fp32 gradients, and gradients that wait."""
    precision = context.job.precision
    state = precision.master_bytes + 2 * dtype_bytes(precision.moments) + HOST_GRADIENT_BYTES
    waiting = (
        keeps_gradients_on_host(context)
        * (num_micro(context.job, context.layout) > 1)
        * dtype_bytes(precision.gradient)
    )
    return np.asarray(host_elements(context, owned) * (state + waiting), dtype=np.float64)


def gradients_to_host(context: LayerContext, owned: IntArray) -> list[Op]:
    """Returns the transfers of gradients: those of earlier micro-batches to the host and back to be added to, and the
    sum to the host at the end."""
    elements = host_elements(context, owned)
    earlier = (num_micro(context.job, context.layout) - 1) * keeps_gradients_on_host(context)
    waiting = elements * dtype_bytes(context.job.precision.gradient)
    return [
        _step(
            Role.GRADIENTS_TO_HOST,
            # once there and once back for each micro-batch but the last
            2.0 * waiting * (earlier > 0),
            np.maximum(earlier, 1),
            "step.host_gradients_summed",
        ),
        _step(Role.GRADIENTS_TO_HOST, elements * HOST_GRADIENT_BYTES, np.ones_like(earlier), "step.host_gradients"),
    ]


def host_updates(context: LayerContext, owned: IntArray) -> list[Op]:
    """Returns the processors' part of the update, and its parameters back to the device."""
    elements = host_elements(context, owned)
    back = elements * dtype_bytes(context.job.precision.parameter)
    return [
        HostUpdate(module=Module.STEP, role=Role.HOST_UPDATE, phase=Phase.STEP, elements=elements),
        _step(Role.PARAMETERS_FROM_HOST, back, np.ones_like(elements), "step.host_parameters"),
    ]


def _step(role: Role, size_bytes: FloatArray, repeat: IntArray, name: str) -> HostTransfer:
    size = np.asarray(size_bytes, dtype=np.float64)
    return HostTransfer(module=Module.STEP, role=role, name=name, phase=Phase.STEP, size_bytes=size, repeat=repeat)


def offload_shares(model: ModelSpec, layers: IntArray) -> tuple[FloatArray, ...]:
    """Returns the share of each run of blocks that is among the first ``layers`` of the model."""
    shares = []
    for run in model.blocks:
        here = np.minimum(run.count, layers)
        shares.append(here / run.count)
        layers = layers - here
    return tuple(shares)


def offload_activations(piece: Pass, share: FloatArray) -> Pass:
    """Returns a layer of a run of which ``share`` keep on the host what they save: every layer carries an equal part
    of that."""
    if not share.any():
        return piece
    saved = np.zeros(len(share))
    for op in piece.forward:
        saved = saved + op.saved_bytes
    # A whole layer's bytes are in flight at any time, however small the share that goes.
    away = _to_host(Module.LAYER, "activations_to_host", saved * share, np.where(share > 0, saved, 0.0))
    return Pass(forward=(*piece.forward, away), backward=(_from_host(away), *piece.backward))


# Parts of layers that keep on the host what they save, as Megatron-LM's offload_modules.
#
# Source: Megatron-LM (core 0.16) ``core/pipeline_parallel/fine_grained_activation_offload.py``, whose hooks take what a
# part saves as it saves it and copy it on a stream of their own, and bring it back beside the backward of what runs
# before it: "attn_norm" and "mlp_norm" (``transformer_layer.py``) are norms that are modules of their own, before MLA
# and before experts; "qkv_linear" is everything between that norm and the core (``attention.py``,
# ``multi_latent_attention.py``, get_query_key_value_tensors), with the norm that Transformer Engine fuses into it;
# "expert_fc1", "moe_act" and "fused_group_mlp" are of experts (``moe/experts.py``).
#
# "layer_input" is what a layer keeps that runs again whole (torchtune ``training/_activation_offloading.py``,
# OffloadActivations around checkpoints, which TRL has too; XTuner ``v1/utils/activation_offload.py``), on a stream of
# its own as well.

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


def offload_parts(block: Pass, names: Iterable[str]) -> Pass:
    """Returns ``block`` whose named parts keep on the host what they save; KeyError for an unknown name.

    ``Assumption:`` what one layer sends is on the device too, on its way there or back; all layers send theirs
    (Megatron-LM keeps the last of a micro-batch), tensors of less than a million elements as well.
    """
    away, back = [], []
    for name in sorted(names):
        saving = [op for op in part_of(block, name) if op.saved_bytes.any()]
        if saving:
            moved: FloatArray = np.sum(np.broadcast_arrays(*(op.saved_bytes for op in saving)), axis=0)
            tensors = sum(TENSORS_OF_A_CORE if isinstance(op, Attention) else 1 for op in saving)
            away.append(_to_host(saving[0].module, f"{name}.to_host", moved, moved, tensors))
            back.append(_from_host(away[-1]))
    return Pass(forward=(*block.forward, *away), backward=(*reversed(back), *block.backward))


def part_of(block: Pass, name: str) -> list[Op]:
    """Returns the forward operations of a named part; none where the layer has no such module."""
    if name == LAYER_INPUT:
        return list(block.forward)
    keys = {op.key for op in block.forward}
    # Transformer Engine fuses norms into the linear behind them, except before MLA's projections and before a router.
    apart = {"attn_norm": LATENT in keys, "mlp_norm": ROUTER in keys}.get(name, True)
    elsewhere = {ATTENTION_NORM} if LATENT in keys and name != "attn_norm" else set()
    wanted = PARTS[name] - elsewhere
    return [op for op in block.forward if apart and op.is_within(wanted)]


def _to_host(
    module: Module, name: str, moved: FloatArray, transient_bytes: FloatArray, tensors: int = 0
) -> HostTransfer:
    """Returns the transfer of ``moved`` saved bytes to the host; ``transient_bytes`` of them are on the device meanwhile."""
    return HostTransfer(
        module=module,
        role=Role.ACTIVATIONS_TO_HOST,
        name=name,
        phase=Phase.FORWARD,
        lane=Lane.COPY,
        size_bytes=moved,
        tensors=tensors,
        # negative: the parts have counted these bytes as saved on the device
        saved_bytes=-moved,
        transient_bytes=transient_bytes,
    )


def _from_host(away: HostTransfer) -> HostTransfer:
    """Returns the transfer back of what went ``away``, before the backward that reads it."""
    return HostTransfer(
        module=away.module,
        role=Role.ACTIVATIONS_FROM_HOST,
        name=away.name.replace("to_host", "from_host"),
        phase=Phase.INPUT_GRAD,
        lane=Lane.COPY,
        size_bytes=away.size_bytes,
        tensors=away.tensors,
    )
