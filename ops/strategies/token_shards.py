"""What strategies share that cut tokens over tp everywhere but in the attention kernel, and no matrix product.

All-to-alls around attention exchange tokens for heads (DeepSpeed-Ulysses, arXiv 2309.14509 sec. 3.1-3.2).
"""

from ops.context import LayerContext
from ops.head_exchange import HeadTensors, exchanged, over_tp
from ops.layout import Layout
from ops.op import Piece
from ops.roles import OpKey
from spec.arrays import IntArray


class TokenShards:
    """Tokens cut over tp; each rank multiplies its own by whole matrices."""

    __slots__ = ()

    def weight_shards(self, layout: Layout) -> IntArray:
        """Matrices are computed whole."""
        return layout.constant(1)

    def norm_shards(self, layout: Layout) -> IntArray:
        """tp."""
        return layout.tp

    def gemm_shards(self, layout: Layout) -> IntArray:
        """tp."""
        return layout.tp

    def saved_input_shards(self, layout: Layout) -> IntArray:
        """Inputs are shards from the start."""
        return layout.tp

    def lookup_shards(self, layout: Layout) -> IntArray:
        """A rank's own tokens."""
        return layout.tp

    def enter(self, context: LayerContext, linear: OpKey, width: int) -> Piece:
        """Nothing: the tokens a rank holds are the tokens it multiplies."""
        return Piece()

    def leave(self, context: LayerContext, linear: OpKey) -> Piece:
        """Nothing."""
        return Piece()

    def around_core(self, context: LayerContext, tensors: HeadTensors) -> tuple[Piece, Piece]:
        """From token shards to head shards and back: around attention four all-to-alls in each pass."""
        return exchanged(context, tensors, over_tp(context))
