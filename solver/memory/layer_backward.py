"""What the backward of one layer holds for a moment beside what the forward kept."""

import numpy as np

from ops.context import LayerContext
from ops.strategies.sharding import Sharding
from solver.layers.layer_bytes import LayerBytes
from spec.arrays import FloatArray, IntArray, ceil_div
from spec.dtypes import dtype_bytes
from spec.model import BlockSpec


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
    """The widest activations of a layer; cut over tp whether the weights are (mtp, msp, fsp) or the tokens (isp)."""
    keeps_result = not context.job.adapter_rank or "down" in context.job.adapted
    widths = [_widest(run.block, context.model.hidden, keeps_result) for run in context.model.blocks]
    return context.activations(context.tokens, max(widths, default=0)) / context.layout.tp


def frozen_input_gradients(inputs: FloatArray, layers: tuple[IntArray, ...]) -> FloatArray:
    """Gradients of the ``inputs`` of a stage's layers that hooks hold until its backward ends, but those of the last two
    layers worked on, which count with the work. FSDP1 hangs a hook on the inputs of a unit whose parameters are all
    frozen (torch/distributed/fsdp/_runtime_utils.py, _register_post_backward_reshard_only_hook), which holds their
    nodes of the graph (torch/autograd/graph.py, register_multi_grad_hook: grad_fns); a recomputed layer's input is a
    leaf (torch/utils/checkpoint.py, detach_variable), whose node holds it and its gradient."""
    count = np.sum(layers, axis=0)
    return np.asarray(inputs * np.maximum(count - 2, 0) / np.maximum(count, 1), dtype=np.float64)


def _widest(block: BlockSpec, hidden: int, keeps_result: bool) -> int:
    """Channels of gradients at the backward of a dense block's activation, beyond what the block keeps: of gate and up,
    or of the one input; the gradient of its result has the result's place where the product behind it keeps that.
    Of a block without a feed-forward network those that its mixer's widest product writes."""
    if block.mlp is not None:
        return block.mlp.ffn_hidden * ((2 if block.mlp.gated else 1) + (not keeps_result))
    if block.moe is not None or block.mixer is None:
        return 0
    tensors = (tensor for module in block.mixer.modules(hidden, "") for tensor in module.tensors)
    return max(tensor.shape[0] for tensor in tensors)
