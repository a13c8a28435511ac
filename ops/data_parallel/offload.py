"""What lives in the host's memory instead of the device's: optimizer state, and saved activations.

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

import numpy as np

from ops.context import LayerContext
from ops.op import HostTransfer, HostUpdate, Lane, Op, Phase, Piece
from ops.roles import Module, Role
from spec.arrays import FloatArray, IntArray, ints
from spec.dtypes import dtype_bytes
from spec.model import ModelSpec

# Gradients reach the host's optimizer in the format of its state.
HOST_GRADIENT_BYTES = 4.0


def offloaded_elements(context: LayerContext, owned: IntArray) -> IntArray:
    """Of the ``owned`` elements of a rank's optimizer those that the host updates."""
    elements: IntArray = np.ceil(owned * context.layout.optimizer_offload).astype(np.int64)
    return elements


def keeps_gradients_on_host(context: LayerContext) -> IntArray:
    """1 where sharded gradients wait on the host from one micro-batch to the next."""
    offloads = context.layout.optimizer_offload > 0
    leaves_early = context.job.preset.offload.optimizer == "backward"
    return ints((context.layout.zero_stage >= 2) & offloads & leaves_early)


def optimizer_host_bytes(context: LayerContext, owned: IntArray) -> FloatArray:
    """Bytes of a rank's offloaded optimizer on the host: state, fp32 gradients, and gradients that wait."""
    precision = context.job.precision
    state = precision.master_bytes + 2 * dtype_bytes(precision.moments) + HOST_GRADIENT_BYTES
    waiting = keeps_gradients_on_host(context) * (context.num_micro > 1) * dtype_bytes(precision.gradient)
    return np.asarray(offloaded_elements(context, owned) * (state + waiting), dtype=np.float64)


def gradients_to_host(context: LayerContext, owned: IntArray) -> list[Op]:
    """Gradients of earlier micro-batches there, and back to be added to; the sum there at the end."""
    if not context.layout.optimizer_offload.any():
        return []
    elements = offloaded_elements(context, owned)
    earlier = (context.num_micro - 1) * keeps_gradients_on_host(context)
    waiting = elements * dtype_bytes(context.job.precision.gradient)
    return [
        _step(
            Role.GRADIENTS_TO_HOST,
            2.0 * waiting * (earlier > 0),
            np.maximum(earlier, 1),
            "step.host_gradients_summed",
        ),
        _step(
            Role.GRADIENTS_TO_HOST,
            elements * HOST_GRADIENT_BYTES,
            np.ones_like(earlier),
            "step.host_gradients",
        ),
    ]


def host_updates(context: LayerContext, owned: IntArray) -> list[Op]:
    """The processors' part of the update, and its parameters back to the device."""
    if not context.layout.optimizer_offload.any():
        return []
    elements = offloaded_elements(context, owned)
    back = elements * dtype_bytes(context.job.precision.parameter)
    return [
        HostUpdate(module=Module.STEP, role=Role.HOST_UPDATE, phase=Phase.STEP, elements=elements),
        _step(Role.PARAMETERS_FROM_HOST, back, np.ones_like(elements), "step.host_parameters"),
    ]


def _step(role: Role, size_bytes: FloatArray, repeat: IntArray, name: str) -> HostTransfer:
    size = np.asarray(size_bytes, dtype=np.float64)
    return HostTransfer(
        module=Module.STEP, role=role, name=name, phase=Phase.STEP, size_bytes=size, repeat=repeat
    )


def offloaded_shares(model: ModelSpec, layers: IntArray) -> tuple[FloatArray, ...]:
    """Of each run of blocks the share that is among the first ``layers`` of the model."""
    shares = []
    for run in model.blocks:
        here = np.minimum(run.count, layers)
        shares.append(here / run.count)
        layers = layers - here
    return tuple(shares)


def activations_offloaded(piece: Piece, share: FloatArray) -> Piece:
    """A layer of a run of which ``share`` keep on the host what they save: an equal part of that on every layer."""
    if not share.any():
        return piece
    saved = np.zeros(len(share))
    for op in piece.forward:
        saved = saved + op.saved_bytes
    moved = saved * share
    away = HostTransfer(
        module=Module.LAYER,
        role=Role.ACTIVATIONS_TO_HOST,
        name="activations_to_host",
        phase=Phase.FORWARD,
        lane=Lane.COPY,
        size_bytes=moved,
        saved_bytes=-moved,
        transient_bytes=np.where(share > 0, saved, 0.0),
    )
    back = HostTransfer(
        module=Module.LAYER,
        role=Role.ACTIVATIONS_FROM_HOST,
        name="activations_from_host",
        phase=Phase.INPUT_GRAD,
        lane=Lane.COPY,
        size_bytes=moved,
    )
    return Piece(forward=(*piece.forward, away), backward=(back, *piece.backward))
