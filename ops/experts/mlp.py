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
from ops.linear import grouped_linear
from ops.memory_bound import Kernel, kernel
from ops.mlp_block import activation
from ops.op import Linear, Pass, sequence
from ops.roles import Module, OpKey, Role
from spec.arrays import IntArray, ceil_div
from spec.model import MoeSpec


def expert_mlp(context: LayerContext, moe: MoeSpec, arrived: IntArray) -> Pass:
    """Returns the rows that ``arrived`` through the rank's num_experts / ep experts, cut over etp."""
    layout, channels = context.layout, moe.routed_hidden(context.model.hidden)
    experts = np.maximum(moe.num_experts // layout.ep, 1)
    width = ceil_div(layout.constant(moe.expert_ffn_hidden), layout.etp)
    hidden = layout.constant(channels)
    before, behind, rows, input_bytes = Pass(), Pass(), arrived, context.activation_bytes
    if context.job.precision.low_precision_linear:
        from ops.experts.casts import padded_rows, padding, saved_input_bytes

        input_bytes = saved_input_bytes(context)
        rows = padded_rows(context, moe, arrived, experts)
        before = padding(context, "moe.pad", (arrived, rows), channels)
        behind = padding(context, "moe.unpad", (rows, arrived), channels)

    def product(role: Role, inputs: IntArray, outputs: IntArray) -> Pass:
        # the rows of all experts of a rank together; grouped_linear knows how many groups share them
        layer = Linear(
            module=Module.MOE,
            role=role,
            tokens=rows,
            inputs=inputs,
            outputs=outputs,
            saved_bytes=input_bytes * rows * inputs,
            bias=moe.bias,
        )
        product_ops = grouped_linear(context, layer, experts)
        if not context.job.precision.low_precision_linear:
            return product_ops
        from ops.experts.casts import cast_experts

        return cast_experts(context, layer, experts, product_ops)

    return sequence(
        before,
        product(Role.UP, hidden, width * (2 if moe.gated else 1)),
        _clamp(context, rows, width) if _has_clamp_kernel(context, moe) else Pass(),
        _activation(context, moe, rows, width),
        _probability_gradient(context, moe, rows, width),
        product(Role.DOWN, width, hidden),
        _bias_by_probability(context, moe, arrived, experts) if moe.bias else Pass(),
        behind,
    )


def _has_clamp_kernel(context: LayerContext, moe: MoeSpec) -> bool:
    """Returns whether limits on gate and up are kernels of their own."""
    return moe.clamped and not context.job.preset.layers.fused_limits


def _clamp(context: LayerContext, rows: IntArray, width: IntArray) -> Pass:
    """Returns the limits of gate from above and of up from both sides, and both put together again (saved for the
    activation)."""
    return kernel(
        context,
        Kernel(
            OpKey(Module.MOE, Role.CLAMP),
            "clamp_glu_unfused",
            rows,
            width,
            saved_bytes=2.0 * context.activations(rows, width),
        ),
    )


def _activation(context: LayerContext, moe: MoeSpec, rows: IntArray, width: IntArray) -> Pass:
    """Returns gate and up made into one. With limits Megatron-Core adds an offset to up, which it makes on the device
    of a Python number in every call (``fusions/fused_bias_geglu.py``, weighted_bias_quick_geglu_impl:
    torch.tensor(linear_offset, device)): a copy after which the host waits for the device (PyTorch issues 120996 and
    190217)."""
    piece = activation(context, moe.gated, rows, width, Module.MOE)
    preset = context.job.preset
    if not (_has_clamp_kernel(context, moe) and preset.layers.transformer_engine and preset.layers.fused_activation):
        return piece
    return replace(piece, forward=tuple(replace(op, synchronises=True) for op in piece.forward))


def _probability_gradient(context: LayerContext, moe: MoeSpec, rows: IntArray, width: IntArray) -> Pass:
    """Returns the kernel that sums a row's activation times its output gradient into the gradient of its probability:
    one of its own, since it sums along rows what the other backward writes whole; it reads the activation's inputs
    and the gradient."""
    reads = 3 if moe.gated else 2
    summed = kernel(
        context,
        Kernel(
            OpKey(Module.MOE, Role.STATISTICS, Role.ACTIVATION).named("moe.activation.probability"),
            "bias",
            reads * rows,
            width,
        ),
    )
    return Pass(backward=summed.backward)


def _bias_by_probability(context: LayerContext, moe: MoeSpec, rows: IntArray, experts: IntArray) -> Pass:
    """Returns each expert's bias times its rows' probabilities, added, one expert after another; in fp32 where the
    dispatcher hands probabilities over in fp32 (DeepEP and HybridEP take no other format)."""
    in_fp32 = context.job.sends_tokens_once
    one = kernel(
        context,
        Kernel(
            OpKey(Module.MOE, Role.BIAS),
            "expert_bias_fp32_unfused" if in_fp32 else "expert_bias_unfused",
            ceil_div(rows, experts),
            moe.routed_hidden(context.model.hidden),
        ),
    )
    return Pass(
        forward=tuple(replace(op, repeat=experts) for op in one.forward),
        backward=tuple(replace(op, repeat=experts) for op in one.backward),
    )
