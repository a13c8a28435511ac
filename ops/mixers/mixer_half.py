"""The first half of a block: norm, what mixes its tokens, residual."""

from ops.context import LayerContext
from ops.memory_bound import norm, residual
from ops.mixers.registry import MIXERS
from ops.op import Piece, sequence
from ops.strategies.sharding import Sharding
from spec.arrays import ceil_div
from spec.model import BlockSpec


def mixer_half(context: LayerContext, sharding: Sharding, block: BlockSpec) -> Piece:
    """Everything from the first norm to the first residual add."""
    mixer = block.mixer
    rows = ceil_div(context.tokens, sharding.norm_shards(context.layout))
    return sequence(
        norm(context, f"{mixer.name}.norm", rows),
        MIXERS[type(mixer)].operations(context, sharding, mixer),
        residual(context, f"{mixer.name}.residual", rows),
    )
