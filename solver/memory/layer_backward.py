"""What the backward of one layer holds for a moment beside what the forward kept."""

import numpy as np

from ops.context import LayerContext
from ops.strategies.sharding import Sharding
from solver.times.layer_times import LayerBytes
from spec.arrays import FloatArray, IntArray, ceil_div
from spec.dtypes import dtype_bytes
from spec.model import BlockSpec


def working_bytes(
    context: LayerContext, sharding: Sharding, kinds: list[LayerBytes], row: IntArray
) -> FloatArray:
    """What a layer's backward holds for a moment: two hidden-sized gradients, the gradients of its widest
    activations, and, before it is reduced, the whole gradient of a layer whose gradients are sharded."""
    layout, model = context.layout, context.model
    widths = [_widest(run.block, model.hidden) for run in model.blocks]
    # This work is cut over tp whether the weights are (mtp, msp, fsp) or the tokens (isp).
    wide = context.activations(context.tokens, max(widths, default=0)) / layout.tp
    rows = ceil_div(context.tokens, sharding.gemm_shards(layout))
    gradients = 2.0 * context.activations(rows, model.hidden) + wide
    cut = (layout.zero_stage >= 2) | (layout.wp > 1)
    layer = np.max([kind.parameters.total[row] for kind in kinds[:-2]], axis=0) * layout.wp
    return gradients + np.where(cut, layer * dtype_bytes(context.reduce_dtype), 0.0)


def _widest(block: BlockSpec, hidden: int) -> int:
    """Channels of the widest activations of a dense block; of one without a feed-forward network those that its
    mixer's widest product writes."""
    if block.mlp is not None:
        return block.mlp.ffn_hidden * (3 if block.mlp.gated else 2)
    if block.moe is not None or block.mixer is None:
        return 0
    tensors = (tensor for module in block.mixer.modules(hidden, "") for tensor in module.tensors)
    return max(tensor.shape[0] for tensor in tensors)
