"""The dense feed-forward half of a block: norm, up, activation, down, residual."""

from dataclasses import dataclass

import numpy as np

from ops.context import LayerContext
from ops.linear import Linear, linear, summed_gradients
from ops.memory_bound import Kernel, kernel, norm, residual
from ops.op import Piece, sequence
from ops.roles import Module, OpKey, Role
from ops.strategies.narrow_gather import cast_parts
from ops.strategies.sharding import Sharding
from spec.arrays import FloatArray, IntArray, ceil_div
from spec.dtypes import dtype_bytes
from spec.model import BlockSpec, MlpSpec, NormPlace

OUTPUT_NORM = f"{Module.MLP}.output_norm"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Token rows of a rank: ``gemm`` in the linears, ``saved`` kept of their input (0 where the mixer's linears keep
    it)."""

    gemm: IntArray
    saved: IntArray


def mlp_half(context: LayerContext, sharding: Sharding, block: BlockSpec) -> Piece:
    """Everything from the second norm to the second residual add of a dense block."""
    if block.mlp is None:
        raise ValueError("a block without a dense MLP has no dense feed-forward half")
    layout = context.layout
    norm_rows = ceil_div(context.tokens, sharding.norm_shards(layout))
    rows = Rows(
        gemm=ceil_div(context.tokens, sharding.gemm_shards(layout)),
        saved=ceil_div(context.tokens, sharding.saved_input_shards(layout)) * keeps_input(block),
    )
    place = block.norm_place
    return sequence(
        norm(context, Module.MLP, norm_rows) if place.leads_second else Piece(),
        feed_forward(context, sharding, block.mlp, rows, Module.MLP),
        norm(context, Module.MLP, norm_rows, OUTPUT_NORM) if place.follows else Piece(),
        residual(context, Module.MLP, norm_rows),
    )


def keeps_input(block: BlockSpec) -> bool:
    """Whether the second half reads what no other linear keeps: halves that share a norm share its output."""
    return block.norm_place is not NormPlace.SHARED


def feed_forward(
    context: LayerContext, sharding: Sharding, mlp: MlpSpec, rows: Rows, module: Module
) -> Piece:
    """Gate and up (as one GEMM or as two), activation, down, with the strategy's communication."""
    layout = context.layout
    hidden = layout.constant(context.model.hidden)
    width = ceil_div(layout.constant(mlp.ffn_hidden), sharding.weight_shards(layout))
    joined = mlp.gated and context.job.preset.layers.joined_gate
    inward = [
        Linear(
            module=module,
            role=role,
            tokens=rows.gemm,
            inputs=hidden,
            outputs=width * (2 if joined else 1),
            # Two linears that read one input keep it once.
            saved_bytes=context.activations(rows.saved, context.model.hidden) * (role is Role.UP),
            bias=mlp.bias,
            after_norm=context.norm_place.leads,
            # The router reads and keeps what the shared experts do.
            kept_whole=module is Module.SHARED_EXPERTS,
            input_parts=cast_parts(context, sharding, OpKey(module, role)),
        )
        for role in ((Role.UP,) if joined or not mlp.gated else (Role.GATE, Role.UP))
    ]
    down = Linear(
        module=module,
        role=Role.DOWN,
        tokens=rows.gemm,
        inputs=width,
        outputs=hidden,
        saved_bytes=context.activations(rows.gemm, width),
        bias=mlp.bias,
        gradient_parts=cast_parts(context, sharding, OpKey(module, Role.DOWN)),
    )
    fused = context.job.preset.layers.fused_activation
    return sequence(
        *(_entering(context, sharding, layer, first=layer is inward[0]) for layer in inward),
        _joined_gradients(context, inward[0], rows.gemm) if joined and not fused else Piece(),
        activation(context, mlp.gated, rows.gemm, width, module),
        sharding.weights(context, down.key, down.inputs * down.outputs),
        linear(context, down),
        sharding.leave(context, down.key),
    )


def _entering(context: LayerContext, sharding: Sharding, layer: Linear, *, first: bool) -> Piece:
    """An entering linear. A second one finds its input gathered and adds its input gradient to the first
    one's: after both reduced theirs, or, where the gathered input is a tensor that both keep (msp) or the
    framework says so, before the sum is reduced once."""
    enter = sharding.enter(context, layer.key, context.model.hidden)
    if first:
        entered = enter
    elif sharding.traits.shares_gathered_input or context.job.preset.tensor_parallel.reduces_sums:
        entered = summed_gradients(context, layer)
    else:
        entered = sequence(summed_gradients(context, layer), Piece(backward=enter.backward))
    return sequence(
        entered,
        sharding.weights(context, layer.key, layer.inputs * layer.outputs),
        linear(context, layer),
    )


def _joined_gradients(context: LayerContext, layer: Linear, rows: IntArray) -> Piece:
    """Gate and up are views of one product's result; backward their gradients are copied into one tensor
    (PyTorch tools/autograd/derivatives.yaml, split: cat)."""
    copied = Kernel(
        module=layer.module,
        role=Role.COPY,
        serves=layer.role,
        kernel="copy",
        rows=rows,
        width=layer.outputs,
        saved_bytes=0.0 * rows,
    )
    return Piece(backward=kernel(context, copied).backward)


def activation(context: LayerContext, gated: bool, rows: IntArray, width: IntArray, module: Module) -> Piece:
    """The activation function; a gated one keeps gate and up, and unfused also silu(gate)."""
    narrow = gated and _waits_narrow(context, module)
    made = kernel(
        context,
        Kernel(
            module=module,
            role=Role.ACTIVATION,
            kernel=_activation_kernel(context, gated),
            rows=rows,
            width=width,
            saved_bytes=activation_saved_bytes(context, gated, rows, width) * (0.0 if narrow else 1.0),
        ),
    )
    return sequence(made, _narrow_copy(context, rows, 2 * width, module)) if narrow else made


def _waits_narrow(context: LayerContext, module: Module) -> bool:
    """Whether gate and up of a module wait for the backward in fp8 (JobSpec.fp8_activation_inputs)."""
    where = context.job.fp8_activation_inputs
    return where == "all" or (where == "experts" and module is not Module.MLP)


def _narrow_copy(context: LayerContext, rows: IntArray, width: IntArray, module: Module) -> Piece:
    """The fp8 copy that waits, written by a pass and read back by another (Megatron-LM
    core/fusions/fused_bias_swiglu.py, fp8_input_store); priced as copies that move as many bytes."""
    wide, narrow = context.activation_bytes, dtype_bytes("fp8")
    moved = np.ceil(rows * (wide + narrow) / (2.0 * wide)).astype(np.int64)
    copy = Kernel(
        module=module,
        role=Role.CAST,
        serves=Role.ACTIVATION,
        name=f"{module}.cast_activation",
        kernel="copy",
        rows=moved,
        width=width,
        saved_bytes=narrow * rows * width,
    )
    return kernel(context, copy)


def _activation_kernel(context: LayerContext, gated: bool) -> str:
    if not gated:
        return "gelu"
    layers = context.job.preset.layers
    if layers.fused_activation:
        return "swiglu"
    return "swiglu_halves_unfused" if layers.joined_gate else "swiglu_unfused"


def activation_saved_bytes(context: LayerContext, gated: bool, rows: IntArray, width: IntArray) -> FloatArray:
    """Its inputs: one tensor plain, two gated, three gated and unfused."""
    if not gated:
        return context.activations(rows, width)
    tensors = 2 if context.job.preset.layers.fused_activation else 3
    return context.activations(rows, width) * tensors
