"""Casting what enters the experts' products to fp8 or fp4, one pass a tensor.

Source: Transformer Engine 2.x ``pytorch/module/grouped_linear.py`` (tex.split_quantize) and its recipes: a
16-bit tensor is read once and written in 8 bits twice, along rows for this product and along columns for
the weight gradient; a scale for the whole tensor takes one more read for its maximum first (current scaling).
Weights are cast once a step. The all-to-all dispatcher's rows are also copied with each expert's rows padded
to the format's multiple, and back (``fp8_padding.py``); HybridEP and DeepEP hand them over padded.
"""

import numpy as np

from ops.context import LayerContext
from ops.expert_exchange import moved_rows
from ops.memory_bound import Kernel, kernel
from ops.op import Piece
from spec.arrays import IntArray
from spec.dtypes import dtype_bytes


def narrow(context: LayerContext) -> bool:
    """Whether products run in fewer bits than activations are kept in."""
    precision = context.job.precision
    return dtype_bytes(precision.linear) < dtype_bytes(precision.activation)


def cast_input(context: LayerContext, name: str, rows: IntArray, width: IntArray) -> Piece:
    """The pass over a product's input, forward alone; nothing where products run in the activations' format."""
    return Piece(forward=_cast(context, name, rows, width).forward)


def cast_gradient(context: LayerContext, name: str, rows: IntArray, width: IntArray) -> Piece:
    """The pass over a product's output gradient, backward alone."""
    return Piece(backward=_cast(context, name, rows, width).backward)


def _cast(context: LayerContext, name: str, rows: IntArray, width: IntArray) -> Piece:
    """Read once, written twice in half the bytes: what a copy moves. The search for the maximum reads
    once more: half a copy."""
    if not narrow(context):
        return Piece()
    searched = context.job.precision.scale_recipe != "block"
    passes = (rows * 3 + 1) // 2 if searched else rows
    return kernel(
        context,
        Kernel(name=name, kernel="copy", rows=passes, width=width, saved_bytes=np.zeros(len(rows))),
    )


def padded(context: LayerContext, name: str, rows: IntArray) -> Piece:
    """Rows copied to or from their padded places, where the dispatcher leaves that to the experts."""
    if not narrow(context) or context.job.moe_dispatcher == "deduplicated":
        return Piece()
    return moved_rows(context, name, rows, rows)
