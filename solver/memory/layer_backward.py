"""What the backward of one layer holds for a moment beside what the forward kept."""

import numpy as np

from ops.context import LayerContext, Sharding
from ops.experts.exchange import routed_rows
from ops.low_precision import recipe_of
from solver.layers import LayerBytes
from spec.arrays import FloatArray, IntArray, ceil_div
from spec.dtypes import dtype_bytes
from spec.model import BlockSpec, MoeSpec


def working_bytes(
    context: LayerContext, sharding: Sharding, kinds: list[LayerBytes], row: IntArray
) -> FloatArray:
    """What a layer's backward holds for a moment: its output and that one's gradient, the gradients of its widest
    activations, and, before it is reduced, the whole gradient of a layer whose gradients are sharded."""
    layout, model = context.layout, context.model
    rows = ceil_div(context.tokens, sharding.gemm_shards(layout))
    gradients = 2.0 * context.activations(rows, model.hidden) + widest_bytes(context)
    cut = (layout.zero_stage >= 2) | (layout.wp > 1)
    layer = np.max([kind.parameters.total[row] for kind in kinds[:-2]], axis=0) * layout.wp
    return gradients + np.where(cut, layer * dtype_bytes(context.reduce_dtype), 0.0)


def widest_bytes(context: LayerContext) -> FloatArray:
    """Gradients of the widest activations of a layer, and narrow copies of that which products read narrow; cut over tp
    whether the weights are (mtp, msp, fsp) or the tokens (isp)."""
    widest = np.zeros(len(context.layout))
    for run in context.model.blocks:
        widest = np.maximum(widest, _widest(context, run.block))
    return widest


def frozen_input_gradients(inputs: FloatArray, layers: tuple[IntArray, ...]) -> FloatArray:
    """Gradients of the ``inputs`` of a stage's layers that hooks hold until its backward ends, but those of
    the last two layers worked on, which count with the work. FSDP1 hangs a hook on the inputs of a unit whose
    parameters are all frozen (torch/distributed/fsdp/_runtime_utils.py,
    _register_post_backward_reshard_only_hook), which holds their nodes of the graph (torch/autograd/graph.py,
    register_multi_grad_hook: grad_fns); a recomputed layer's input is a leaf (torch/utils/checkpoint.py,
    detach_variable), whose node holds it and its gradient."""
    count = np.sum(layers, axis=0)
    return np.asarray(inputs * np.maximum(count - 2, 0) / np.maximum(count, 1), dtype=np.float64)


def _widest(context: LayerContext, block: BlockSpec) -> FloatArray:
    """Bytes at the backward of a dense block's activation, beyond what the block keeps: gradients of gate and up, or of
    the one input; the gradient of its result has the result's place where the product behind it keeps that. Of a
    block without a feed-forward network those that its mixer's widest product writes."""
    if block.moe is not None:
        return _of_experts(context, block.moe)
    if block.mlp is not None:
        keeps_result = not context.job.adapter_rank or "down" in context.job.adapted
        parts = 2 if block.mlp.gated else 1
        wide = block.mlp.ffn_hidden * (parts + (not keeps_result))
        narrow = _narrow_gradient_bytes(context, context.tokens * block.mlp.ffn_hidden * parts)
        return np.asarray((context.activations(context.tokens, wide) + narrow) / context.layout.tp)
    if block.mixer is None:
        return np.zeros(len(context.layout))
    tensors = (
        tensor for module in block.mixer.modules(context.model.hidden, "") for tensor in module.tensors
    )
    wide = max(tensor.shape[0] for tensor in tensors)
    return context.activations(context.tokens, wide) / context.layout.tp


def _of_experts(context: LayerContext, moe: MoeSpec) -> FloatArray:
    """Bytes on a rank's routed rows, beyond what the block keeps. The gradient of the experts' result stands beside its
    narrow copies and the gradient of the activation's result (at the second product, which reads that result), or by
    itself in two orders where rows are sorted by expert; gradients of gate and up follow once it is gone (Megatron-LM
    ``moe/experts.py`` TEGroupedMLP, ``moe/token_dispatcher.py`` combine_preprocess; Transformer Engine
    ``module/grouped_linear.py``)."""
    layout, job = context.layout, context.job
    held = ceil_div(context.tokens, layout.tp)
    rows = routed_rows(context, moe, held) * layout.etp
    hidden, width = (
        moe.routed_hidden(context.model.hidden),
        ceil_div(layout.constant(moe.expert_ffn_hidden), layout.etp),
    )
    result, parts = context.activations(rows, hidden), 2 if moe.gated else 1
    second = result + _narrow_gradient_bytes(context, rows * hidden) + context.activations(rows, width)
    first = context.activations(rows, width * parts) + _narrow_gradient_bytes(context, rows * width * parts)
    # Dispatchers that send a token once hand rows over in the experts' order.
    turned = (
        (job.moe_dispatcher == "all_to_all") & (moe.num_experts > layout.ep) & (layout.ep * layout.etp > 1)
    )
    return np.asarray(np.maximum(np.maximum(first, second), np.where(turned, 2.0 * result, 0.0)))


def _narrow_gradient_bytes(context: LayerContext, elements: IntArray) -> FloatArray:
    """Bytes of the narrow copies of an output gradient of ``elements`` that both products of a backward read."""
    if not context.job.precision.narrows:
        return 0.0 * elements
    return elements * dtype_bytes(context.job.precision.linear) * recipe_of(context).gradient.writes
