"""The dense feed-forward half of a block: norm, up, activation, down, residual."""

import numpy as np

from ops.context import LayerContext
from ops.linear import column_parallel, row_parallel
from ops.memory_bound import Kernel, kernel
from ops.op import Linear, Pass, sequence
from ops.roles import Module, OpKey, Role
from spec.arrays import IntArray, ceil_div
from spec.dtypes import dtype_bytes
from spec.model import ACTIVATION_PARAMETERS, MlpSpec


def feed_forward(context: LayerContext, mlp: MlpSpec, module: Module, *, keeps_input: bool = True) -> Pass:
    """Returns gate and up (as one GEMM or as two), activation and down, with the strategy's communication; unless it
    ``keeps_input``, another operation keeps what gate and up read."""
    layout = context.layout
    hidden = layout.constant(context.model.hidden)
    rows, saved_rows = context.gemm_rows, context.saved_rows * keeps_input
    width = ceil_div(layout.constant(mlp.ffn_hidden), layout.tp_if(context.traits.cuts_matrices))
    fused_gate = mlp.gated and context.job.preset.layers.joined_gate
    inward = tuple(
        Linear(
            module=module,
            role=role,
            tokens=rows,
            inputs=hidden,
            outputs=width * (2 if fused_gate else 1),
            # Two linears that read one input keep it once.
            saved_bytes=context.activations(saved_rows, context.model.hidden) * (role is Role.UP),
            bias=mlp.bias,
            after_norm=context.norm_place.leads,
            # The router reads and saves what the shared experts do.
            saved_elsewhere=module is Module.SHARED_EXPERTS,
            gathered="input",
        )
        for role in ((Role.UP,) if fused_gate or not mlp.gated else (Role.GATE, Role.UP))
    )
    down = Linear(
        module=module,
        role=Role.DOWN,
        tokens=rows,
        inputs=width,
        outputs=hidden,
        saved_bytes=context.activations(rows, width),
        bias=mlp.bias,
        gathered="gradient",
    )
    fused = context.job.preset.layers.fused_activation
    return sequence(
        *(column_parallel(context, layer, first=layer is inward[0]) for layer in inward),
        *((_join_gradients(context, inward[0], rows),) if fused_gate and not fused else ()),
        activation(context, mlp.gated, rows, width, module, ACTIVATION_PARAMETERS.get(mlp.activation, 0)),
        *((_inner_norm(context, rows, width, mlp),) if mlp.inner_norm else ()),
        row_parallel(context, down),
    )


def _inner_norm(context: LayerContext, rows: IntArray, width: IntArray, mlp: MlpSpec) -> Pass:
    """Returns a norm of what the last matrix reads on a rank, whose weights are cut as its channels are."""
    what = OpKey(Module.MLP, Role.NORM, Role.DOWN).named("mlp.inner_norm")
    saved = context.activations(rows, width)
    return kernel(
        context,
        Kernel(what, context.model.norm.kernel, rows, width, saved_bytes=saved, parameters=mlp.inner_norm * width),
    )


def _join_gradients(context: LayerContext, layer: Linear, rows: IntArray) -> Pass:
    """Returns the copy of two gradients into one tensor: gate and up are views of one product's result (PyTorch
    tools/autograd/derivatives.yaml, split: cat)."""
    copied = Kernel(OpKey(layer.module, Role.COPY, layer.role), "copy", rows, layer.outputs)
    return Pass(backward=kernel(context, copied).backward)


def activation(
    context: LayerContext, gated: bool, rows: IntArray, width: IntArray, module: Module, parameters: int = 0
) -> Pass:
    """Returns the activation function, which keeps its inputs: one tensor plain; gated gate and up, and unfused also
    silu(gate)."""
    # Saved tensors of the activation: its input (gelu), gate and up (fused), and silu(gate) as well (autograd over
    # two kernels).
    layers, tensors, kernel_name = context.job.preset.layers, 1, "gelu"
    if gated:
        tensors, kernel_name = 3, "swiglu_halves_unfused" if layers.joined_gate else "swiglu_unfused"
        if layers.fused_activation:
            tensors, kernel_name = 2, "swiglu"
    saved_bytes = context.activations(rows, width) * tensors
    fp8_inputs = context.job.fp8_activation_inputs
    fp8 = gated and (fp8_inputs == "all" or (fp8_inputs == "experts" and module is not Module.MLP))
    what = OpKey(module, Role.ACTIVATION)
    kept_bytes = saved_bytes * (0.0 if fp8 else 1.0)
    activated = kernel(context, Kernel(what, kernel_name, rows, width, saved_bytes=kept_bytes, parameters=parameters))
    return sequence(activated, _fp8_copy(context, rows, 2 * width, module)) if fp8 else activated


def _fp8_copy(context: LayerContext, rows: IntArray, width: IntArray, module: Module) -> Pass:
    """Returns the fp8 copy of gate and up that waits for the backward (JobSpec.fp8_activation_inputs), written by a
    pass and read back by another (Megatron-LM core/fusions/fused_bias_swiglu.py, fp8_input_store); priced as copies
    that move as many bytes."""
    own_bytes, fp8_bytes = context.activation_bytes, dtype_bytes("fp8")
    # a copy in 16 bits moves 2 + 2 bytes an element, this one 2 + 1
    moved = np.ceil(rows * (own_bytes + fp8_bytes) / (2.0 * own_bytes)).astype(np.int64)
    copy = Kernel(
        OpKey(module, Role.CAST, Role.ACTIVATION).named(f"{module}.cast_activation"),
        "copy",
        moved,
        width,
        saved_bytes=fp8_bytes * rows * width,
    )
    return kernel(context, copy)
