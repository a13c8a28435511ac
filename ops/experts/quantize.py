"""Casting what enters the experts' products to fp8 or fp4, one pass a tensor, as the job's recipe does.

Source: Transformer Engine 2.x ``pytorch/module/grouped_linear.py`` (tex.split_quantize): as its other linears
(``ops.quantize``), without a norm that could write narrow numbers itself. Weights are cast once a step. The
all-to-all dispatcher's rows are also copied with each expert's rows padded to the format's multiple, and
back (``fp8_padding.py``); HybridEP and DeepEP hand them over padded.
"""

import numpy as np

from ops.context import LayerContext
from ops.experts.exchange import moved_rows
from ops.kernels import bytes_moved_per_element
from ops.memory_bound import Kernel, kernel
from ops.op import Piece
from ops.quantize import Passes, recipe_of
from ops.roles import Module, Role
from spec.arrays import IntArray
from spec.dtypes import dtype_bytes


def kept_bytes(context: LayerContext) -> float:
    """Bytes of one element of a product's input as it is kept."""
    precision, recipe = context.job.precision, recipe_of(context)
    narrow = recipe is not None and recipe.keeps_narrow
    return dtype_bytes(precision.linear if narrow else precision.activation)


def cast_input(context: LayerContext, product: Role, rows: IntArray, width: IntArray) -> Piece:
    """The pass over a product's input, forward alone; nothing where products run in the activations' format."""
    recipe = recipe_of(context)
    return Piece(forward=_cast(context, product, rows, width, recipe.input).forward) if recipe else Piece()


def cast_gradient(context: LayerContext, product: Role, rows: IntArray, width: IntArray) -> Piece:
    """The pass over a product's output gradient, backward alone."""
    recipe = recipe_of(context)
    return (
        Piece(backward=_cast(context, product, rows, width, recipe.gradient).backward) if recipe else Piece()
    )


def _cast(context: LayerContext, product: Role, rows: IntArray, width: IntArray, passes: Passes) -> Piece:
    """A copy of as many rows as move the same bytes."""
    precision = context.job.precision
    moved = passes.bytes_per_element(dtype_bytes(precision.activation), dtype_bytes(precision.linear))
    copied = bytes_moved_per_element("copy", backward=False, dtype=precision.activation)
    return kernel(
        context,
        Kernel(
            module=Module.MOE,
            role=Role.CAST,
            serves=product,
            kernel="copy",
            rows=np.ceil(rows * moved / copied).astype(np.int64),
            width=width,
            saved_bytes=np.zeros(len(rows)),
        ),
    )


def padded(context: LayerContext, name: str, rows: IntArray, width: int) -> Piece:
    """Rows copied to or from their padded places, where the dispatcher leaves that to the experts."""
    if recipe_of(context) is None or context.job.moe_dispatcher == "deduplicated":
        return Piece()
    return moved_rows(context, Role.PAD, (rows, rows), width, name)
