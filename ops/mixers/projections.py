"""The linears in and out of a mixer, and the share of it that a rank holds."""

import numpy as np

from ops.context import LayerContext
from ops.linear import Linear, linear, summed_gradients
from ops.op import Piece, sequence
from ops.roles import OpKey
from ops.strategies.narrow_gather import cast_parts
from ops.strategies.sharding import Sharding
from spec.arrays import IntArray, ceil_div

KEPT_SHARE = {"": 1.0, "e5m6": 12 / 16}
"""Of the bytes of 16-bit activations: a sign, five bits of exponent and six of mantissa."""


def projected_heads(context: LayerContext, sharding: Sharding, heads: int) -> IntArray:
    """Heads whose projections one rank computes; fewer heads than ranks are replicated."""
    shards = sharding.weight_shards(context.layout)
    return np.maximum(ceil_div(context.layout.constant(heads), shards), 1)


def core_heads(context: LayerContext, heads: int) -> IntArray:
    """Heads of the core on one rank: cut over tp, and over cp where context parallelism exchanges."""
    layout = context.layout
    cut = layout.tp * layout.cp if context.exchanges_context else layout.tp
    return np.maximum(ceil_div(layout.constant(heads), cut), 1)


def core_length(context: LayerContext) -> IntArray:
    """Tokens of one sequence that the core of one rank holds at a time."""
    return context.layout.constant(context.job.seq_len) if context.exchanges_context else context.sequence


def into_mixer(
    context: LayerContext,
    sharding: Sharding,
    key: OpKey,
    outputs: IntArray,
    *,
    bias: bool = False,
    matrices: int = 1,
) -> Piece:
    """The linear from the hidden states, normed unless the block's norms stand elsewhere, cut over tp by its
    ``outputs`` on one rank.

    Its gradients are those of so many ``matrices``, one after another, each reduced by itself unless the framework
    reduces their sum (DTensor; Picotron picotron/tensor_parallel/tp_communications.py, linear_with_all_reduce: one
    all-reduce a linear). Assumption: their products take what one of all takes.
    """
    layout, hidden = context.layout, context.model.hidden
    saved_rows = ceil_div(context.tokens, sharding.saved_input_shards(layout))
    layer = Linear(
        module=key.module,
        role=key.role,
        tokens=ceil_div(context.tokens, sharding.gemm_shards(layout)),
        inputs=layout.constant(hidden),
        outputs=outputs,
        saved_bytes=context.activations(saved_rows, hidden),
        bias=bias,
        after_norm=context.norm_place.leads,
        input_parts=cast_parts(context, sharding, key),
    )
    enter = sharding.enter(context, key, hidden)
    at_once = sharding.traits.shares_gathered_input or context.job.preset.tensor_parallel.reduces_sums
    reduced = Piece() if at_once else Piece(backward=enter.backward)
    return sequence(
        enter,
        *(sequence(summed_gradients(context, layer), reduced) for _ in range(matrices - 1)),
        sharding.weights(context, key, layer.inputs * layer.outputs),
        linear(context, layer),
    )


def out_of_mixer(
    context: LayerContext,
    sharding: Sharding,
    key: OpKey,
    inputs: IntArray,
    *,
    bias: bool = False,
    kept_whole: bool = False,
) -> Piece:
    """The linear back to hidden states, cut over tp by its ``inputs`` on one rank, which the mixer may keep as well
    (``kept_whole``), then in the preset's format of it."""
    layout = context.layout
    rows = ceil_div(context.tokens, sharding.gemm_shards(layout))
    layer = Linear(
        module=key.module,
        role=key.role,
        tokens=rows,
        inputs=inputs,
        outputs=layout.constant(context.model.hidden),
        saved_bytes=context.activations(rows, inputs),
        bias=bias,
        kept_whole=kept_whole,
        kept_share=KEPT_SHARE[context.job.preset.layers.kept_attention],
        gradient_parts=cast_parts(context, sharding, key),
    )
    return sequence(
        sharding.weights(context, key, layer.inputs * layer.outputs),
        linear(context, layer),
        sharding.leave(context, key),
    )
