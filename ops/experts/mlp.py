"""The experts of one rank on the rows that arrived: two grouped products around the activation.

Source: Megatron-LM core 0.15 ``transformer/moe/experts.py``, TEGroupedMLP: the activation multiplies by the
router's probability (fused), whose gradient is summed apart (``fusions/fused_bias_swiglu.py``,
weighted_swiglu_back); a bias of the second product, and limits on gate and up (gpt-oss), run as one
elementwise PyTorch kernel after another. Compiled, the limits are part of the activation's kernel (NeMo AutoModel
``components/moe/experts.py``, quick_geglu_deepep).
"""

from dataclasses import replace

import numpy as np

from ops.context import LayerContext
from ops.experts.load import aligned
from ops.experts.quantize import ExpertRows, cast_gradient, cast_input, cast_weights, kept_bytes, padded
from ops.linear import Linear, grouped_linear
from ops.memory_bound import Kernel, kernel
from ops.mlp_block import activation
from ops.op import Piece, sequence
from ops.roles import Module, Role
from spec.arrays import IntArray, ceil_div
from spec.model import MoeSpec


def expert_mlp(context: LayerContext, moe: MoeSpec, rows: IntArray) -> Piece:
    """``rows`` through the rank's num_experts / ep experts, cut over etp."""
    layout, channels = context.layout, moe.routed_hidden(context.model.hidden)
    experts = np.maximum(moe.num_experts // layout.ep, 1)
    width = ceil_div(layout.constant(moe.expert_ffn_hidden), layout.etp)
    hidden = layout.constant(channels)
    inward = width * (2 if moe.gated else 1)

    arrived, rows = rows, aligned(context, moe, rows, experts)

    def shared(channels: IntArray) -> ExpertRows:
        return ExpertRows(rows=rows, width=channels, experts=experts)

    def weights(inputs: IntArray, outputs: IntArray) -> ExpertRows:
        return ExpertRows(rows=experts * inputs, width=outputs, experts=experts)

    up = _product(context, moe, Role.UP, rows, (hidden, inward))
    down = _product(context, moe, Role.DOWN, rows, (width, hidden))
    return sequence(
        padded(context, "moe.pad", (arrived, rows), channels),
        cast_input(context, Role.UP, shared(hidden)),
        cast_weights(context, Role.UP, weights(hidden, inward)),
        grouped_linear(context, up, experts),
        cast_gradient(context, Role.UP, shared(inward)),
        _clamp(context, rows, width) if _limits_apart(context, moe) else Piece(),
        _activation(context, moe, rows, width),
        _probability_gradient(context, moe, rows, width),
        cast_input(context, Role.DOWN, shared(width)),
        cast_weights(context, Role.DOWN, weights(width, hidden)),
        grouped_linear(context, down, experts),
        cast_gradient(context, Role.DOWN, shared(hidden)),
        _bias_by_probability(context, moe, arrived, experts) if moe.bias else Piece(),
        padded(context, "moe.unpad", (rows, arrived), channels),
    )


def _product(
    context: LayerContext, moe: MoeSpec, role: Role, rows: IntArray, sizes: tuple[IntArray, IntArray]
) -> Linear:
    """A product of ``sizes`` in and out that keeps its input, in the format it runs in."""
    inputs, outputs = sizes
    return Linear(
        module=Module.MOE,
        role=role,
        tokens=rows,
        inputs=inputs,
        outputs=outputs,
        saved_bytes=kept_bytes(context) * rows * inputs,
        bias=moe.bias,
    )


def _limits_apart(context: LayerContext, moe: MoeSpec) -> bool:
    """Whether limits on gate and up are kernels of their own."""
    return moe.clamped and not context.job.preset.layers.fused_limits


def _clamp(context: LayerContext, rows: IntArray, width: IntArray) -> Piece:
    """Gate limited from above, up from both sides, and both put together again (kept for the activation)."""
    return kernel(
        context,
        Kernel(
            module=Module.MOE,
            role=Role.CLAMP,
            kernel="clamp_glu_unfused",
            rows=rows,
            width=width,
            saved_bytes=2.0 * context.activations(rows, width),
        ),
    )


def _activation(context: LayerContext, moe: MoeSpec, rows: IntArray, width: IntArray) -> Piece:
    """Gate and up into one. Beside limits Megatron-Core adds an offset to up, which it makes on the device of a
    Python number in every call (``fusions/fused_bias_geglu.py``, weighted_bias_quick_geglu_impl:
    torch.tensor(linear_offset, device)): a copy after which the host waits for the device (PyTorch issues 120996
    and 190217)."""
    piece = activation(context, moe.gated, rows, width, Module.MOE)
    preset = context.job.preset
    if not (_limits_apart(context, moe) and preset.host.code == "modules" and preset.layers.fused_activation):
        return piece
    return replace(piece, forward=tuple(replace(op, synchronises=True) for op in piece.forward))


def _probability_gradient(context: LayerContext, moe: MoeSpec, rows: IntArray, width: IntArray) -> Piece:
    """A row's activation times its output gradient, summed into the gradient of its probability: a kernel of its own,
    since it sums along rows what the other backward writes whole; it reads the activation's inputs and the gradient."""
    reads = 3 if moe.gated else 2
    summed = kernel(
        context,
        Kernel(
            module=Module.MOE,
            role=Role.STATISTICS,
            serves=Role.ACTIVATION,
            name="moe.activation.probability",
            kernel="bias",
            rows=reads * rows,
            width=width,
            saved_bytes=np.zeros(len(rows)),
        ),
    )
    return Piece(backward=summed.backward)


def _bias_by_probability(context: LayerContext, moe: MoeSpec, rows: IntArray, experts: IntArray) -> Piece:
    """Each expert's bias times its rows' probabilities, added, one expert after another; in fp32 where the
    dispatcher hands probabilities over in fp32 (DeepEP and HybridEP take no other format)."""
    wide = context.job.sends_tokens_once
    one = kernel(
        context,
        Kernel(
            module=Module.MOE,
            role=Role.BIAS,
            kernel="expert_bias_fp32_unfused" if wide else "expert_bias_unfused",
            rows=ceil_div(rows, experts),
            width=moe.routed_hidden(context.model.hidden),
            saved_bytes=np.zeros(len(rows)),
        ),
    )
    return Piece(
        forward=tuple(replace(op, repeat=experts) for op in one.forward),
        backward=tuple(replace(op, repeat=experts) for op in one.backward),
    )
