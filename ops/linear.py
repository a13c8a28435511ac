"""A linear layer as its three matrix products, each with its own shape."""

from dataclasses import replace

import numpy as np

from ops.context import LayerContext
from ops.memory_bound import memory_pass
from ops.op import BatchedGemm, GroupedGemm, Linear, Op, Owner, Pass, Phase, sequence
from ops.roles import Identity, Role
from spec.arrays import IntArray, ceil_div


def linear(context: LayerContext, layer: Linear) -> Pass:
    """Returns forward NT (t, i, o), input gradient NN (t, o, i) and weight gradient TN (o, t, i), with the sum of
    weight gradients, the gradient of a bias, and the casts to a lower precision that the job's recipe makes."""
    precision = context.job.precision
    t, i, o = layer.tokens, layer.inputs, layer.outputs
    forward = BatchedGemm(
        **layer.words,
        phase=Phase.FORWARD,
        batch=np.ones_like(t),
        m=t,
        k=i,
        n=o,
        layout="NT",
        dtype=layer.dtype or precision.linear,
        scale_recipe="" if layer.dtype else precision.scale_recipe,
        bias=layer.bias,
        saved_bytes=layer.saved_bytes,
        parameters=ceil_div((i + int(layer.bias)) * o, context.layout.wp),
        owner=context.traits.copies.linear_owner,
    )
    # Both gradients have the forward's FLOPs but their own shapes: an m of a few tokens is a k of a few tokens in the
    # weight gradient, and kernels differ.
    gradient = replace(forward, bias=False, saved_bytes=0.0 * layer.saved_bytes, parameters=0 * t)
    backward: list[Op] = [
        replace(gradient, phase=Phase.INPUT_GRAD, k=o, n=i, layout="NN"),
        replace(gradient, phase=Phase.WEIGHT_GRAD, m=o, k=t, n=i, layout="TN"),
        *_accumulate(context, layer, i),
    ]
    if layer.bias:
        what = Identity(module=layer.module, role=Role.BIAS, serves=layer.role, name=f"{layer.name}.bias")
        backward.append(memory_pass(what, Phase.WEIGHT_GRAD, "bias", t, precision.activation, o))
    products = Pass(forward=(forward,), backward=tuple(backward))
    # A linear with a format of its own (head, router) is left alone by fp8 recipes.
    if layer.dtype or not precision.low_precision_linear:
        return products
    from ops.low_precision import cast_linear

    return cast_linear(context, layer, products)


def _accumulate(context: LayerContext, layer: Linear, rows: IntArray) -> list[Op]:
    """Returns the addition of the weight gradient of this micro-batch, ``rows`` x outputs, to that of earlier ones."""
    kernel, dtype = context.job.preset.data_parallel.accumulation, context.job.precision.activation
    if not kernel:
        return []
    what = layer.key.served_by(Role.ACCUMULATE, f"{layer.name}.accumulate")
    return [memory_pass(what, Phase.WEIGHT_GRAD, kernel, rows, dtype, layer.outputs)]


def grouped_linear(context: LayerContext, layer: Linear, groups: IntArray) -> Pass:
    """Returns the same for ``groups`` experts that share ``tokens`` rows; weights belong to the experts."""
    precision = context.job.precision
    t, i, o = layer.tokens, layer.inputs, layer.outputs
    forward = GroupedGemm(
        **layer.words,
        phase=Phase.FORWARD,
        groups=groups,
        m=t,
        k=i,
        n=o,
        layout="NT",
        dtype=precision.linear,
        scale_recipe=precision.scale_recipe,
        saved_bytes=layer.saved_bytes,
        parameters=groups * (i + int(layer.bias)) * o,
        owner=Owner.EXPERT,
        one_kernel=context.job.preset.layers.grouped_kernel or rows_on_device(context),
    )
    gradient = replace(forward, saved_bytes=0.0 * layer.saved_bytes, parameters=0 * groups)
    backward = (
        replace(gradient, phase=Phase.INPUT_GRAD, k=o, n=i, layout="NN"),
        # m counts the rows of all experts in every layout (profdb.fits.families, grouped_product_shapes)
        replace(gradient, phase=Phase.WEIGHT_GRAD, layout="TN"),
        *_accumulate(context, layer, groups * i),
    )
    products = Pass(forward=(forward,), backward=backward)
    if not precision.low_precision_linear:
        return products
    from ops.low_precision import with_weight_copies

    return with_weight_copies(context, products)


def rows_on_device(context: LayerContext) -> bool:
    """Returns whether only the device knows each expert's rows: a graph of the whole iteration, which no host
    interrupts, of experts that drop no tokens. Megatron-LM d98e8a6 ``transformer_config.py``:
    moe_expert_rank_capacity_factor "requires use_transformer_engine_op_fuser=True or
    moe_use_grouped_tensor=True", one product of Transformer Engine 2.x (d0067d0)
    ``pytorch/ops/fused/grouped_mlp.py`` for all experts, or general_grouped_gemm_for_grouped_tensor."""
    if "full_iteration" not in context.job.cuda_graphs:
        return False
    routed = [run.block.moe for run in context.model.blocks if run.block.moe is not None]
    return all(context.job.capacity_factor(moe) is None for moe in routed)


def column_parallel(
    context: LayerContext, layer: Linear, *, matrices: int = 1, first: bool = True, width: int = 0
) -> Pass:
    """Returns a linear cut over tp by its outputs, with what the strategy communicates of its weights and of its
    input of ``width`` channels (the hidden size when 0).

    Its gradients are those of so many ``matrices``, one after another; unless it is the ``first`` that reads its
    input, this is gathered, and its input gradient added to the others'. Assumption: products of several matrices
    take what one of all takes.
    """
    # q, k and v, or gate and up, may be one product or several: autograd then adds their input gradients up, one
    # kernel each, and only the first gathers the input.
    enter = context.sharding.column_parallel_input(context, layer.key, width or context.model.hidden)
    further = () if first and matrices == 1 else (_further_gradient(context, layer, enter),)
    return sequence(
        *((enter,) if first else further),
        *further * (matrices - 1),
        *weight_collectives(context, layer),
        linear(context, layer),
    )


def weight_collectives(context: LayerContext, layer: Linear) -> tuple[Pass, ...]:
    """Returns what the strategy gathers and reduces of a linear's weights, if anything."""
    if not context.traits.gathers_weights:
        return ()
    return (context.sharding.weights(context, layer.key, layer.weights),)


def _further_gradient(context: LayerContext, layer: Linear, enter: Pass) -> Pass:
    """Returns the input gradient of one more matrix that reads what ``enter`` brought.

    It is added to the others' by a kernel of its own, or read beside theirs by the kernel that follows; and reduced by
    itself unless the gathered input is a tensor that all keep (msp) or the framework reduces their sum (DTensor;
    Picotron picotron/tensor_parallel/tp_communications.py, linear_with_all_reduce: one all-reduce a linear).
    """
    preset, dtype = context.job.preset, context.job.precision.activation
    what = layer.key.served_by(Role.ACCUMULATE, f"{layer.name}.add_gradients")
    # "bias" reads one tensor: a fused kernel adds while it reads the first gradient anyway
    kernel = "bias" if preset.layers.fused_sums else "accumulate"
    added = memory_pass(what, Phase.INPUT_GRAD, kernel, layer.tokens, dtype, layer.inputs)
    if context.traits.shares_gathered_input or preset.tensor_parallel.dtensor:
        return Pass(backward=(added,))
    return Pass(backward=(*enter.backward, added))


def row_parallel(context: LayerContext, layer: Linear) -> Pass:
    """Returns a linear cut over tp by its inputs, with what the strategy communicates of its weights and output."""
    return sequence(
        *weight_collectives(context, layer),
        linear(context, layer),
        context.sharding.row_parallel_output(context, layer.key),
    )
