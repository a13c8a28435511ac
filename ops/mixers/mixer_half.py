"""The first half of a block: norm, what mixes its tokens, residual."""

import numpy as np

from ops.context import LayerContext
from ops.head_exchange import HeadTensors, exchanged, over_cp
from ops.memory_bound import norm, residual
from ops.mixers.registry import MIXERS
from ops.op import Piece, sequence
from ops.strategies.sharding import Sharding
from spec.arrays import ceil_div
from spec.model import BlockSpec


def mixer_half(context: LayerContext, sharding: Sharding, block: BlockSpec) -> Piece:
    """Everything from the first norm, wherever it stands, to the first residual add; nothing where a block
    does not mix tokens.
    """
    mixer = block.mixer
    if mixer is None:
        return Piece()
    row = MIXERS[type(mixer)]
    rows = ceil_div(context.tokens, sharding.norm_shards(context.layout))
    tensors = row.exchanged(mixer)
    before, after = sharding.around_core(context, tensors)
    cp_before, cp_after = _around_core(context, tensors)
    place = block.norm_place
    return sequence(
        norm(context, row.module, rows) if place.leads else Piece(),
        row.project(context, sharding, mixer),
        before,
        cp_before,
        row.core(context, sharding, mixer),
        cp_after,
        after,
        row.output(context, sharding, mixer),
        norm(context, row.module, rows, f"{row.module}.output_norm") if place.follows else Piece(),
        residual(context, row.module, rows),
    )


def _around_core(context: LayerContext, tensors: HeadTensors) -> tuple[Piece, Piece]:
    """All-to-alls of context parallelism; a ring's messages stand beside its core's steps."""
    if not context.exchanges_context or not np.any(context.layout.cp > 1):
        return Piece(), Piece()
    return exchanged(context, tensors, over_cp(context))
