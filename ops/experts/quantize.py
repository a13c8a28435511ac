"""Casting what enters the experts' products to fp8 or fp4, one pass a tensor, as the job's recipe does.

Source: Transformer Engine 2.9 ``pytorch/module/grouped_linear.py`` (tex.split_quantize): as its other linears
(``ops.quantize``), without a norm that could write narrow numbers itself. Weights are cast once a step. Each expert's
rows are cast by kernels of their own, but for delayed scaling, which casts them all by one
(``pytorch/csrc/extensions/cast.cpp``, multi_tensor_quantize_impl); scales found from the whole tensor at hand take
three small kernels more (``csrc/quantizer.cpp``, Float8CurrentScalingQuantizer::quantize_impl, and
``common/recipe/current_scaling.cu``: the maximum set to zero, found, and turned into a scale). The
all-to-all dispatcher's rows are also copied with each expert's rows padded to the format's multiple, and
back (``fp8_padding.py``); HybridEP and DeepEP hand them over padded.

torchao (``prototype/moe_training/mxfp8_grouped_mm.py``, _MXFP8GroupedMM) casts all experts' rows by one
kernel, and in the backward the inputs and all weights again.
"""

from dataclasses import dataclass, replace

import numpy as np

from ops.context import LayerContext
from ops.experts.exchange import moved_rows
from ops.kernels import bytes_moved_per_element
from ops.memory_bound import Kernel, kernel
from ops.op import KernelCalls, Piece, sequence
from ops.quantize import Passes, cast_calls, recipe_of
from ops.roles import Module, Role
from spec.arrays import IntArray, ceil_div
from spec.dtypes import dtype_bytes


def kept_bytes(context: LayerContext) -> float:
    """Bytes of one element of a product's input as it is kept."""
    precision, recipe = context.job.precision, recipe_of(context)
    narrow = recipe is not None and recipe.keeps_narrow
    return dtype_bytes(precision.linear if narrow else precision.activation)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertRows:
    """``rows`` of ``width`` channels that ``experts`` of a rank share."""

    rows: IntArray
    width: IntArray
    experts: IntArray


def cast_input(context: LayerContext, product: Role, entering: ExpertRows) -> Piece:
    """The passes over a product's input; nothing where products run in the activations' format."""
    recipe = recipe_of(context)
    if recipe is None:
        return Piece()
    again = (
        _cast(context, product, entering, recipe.input_again).backward if recipe.input_again.writes else ()
    )
    return Piece(forward=_cast(context, product, entering, recipe.input).forward, backward=again)


def cast_weights(context: LayerContext, product: Role, weights: ExpertRows) -> Piece:
    """The passes over all of a rank's weights in every forward, and again in the backward, of recipes that
    keep no narrow copy; ``weights`` has the rows of one after the other. Others' once a step are left out."""
    recipe = recipe_of(context)
    if recipe is None or recipe.keeps_narrow:
        return Piece()
    first, again = (_cast(context, product, weights, one) for one in (recipe.weight, recipe.weight_again))
    return Piece(forward=first.forward, backward=again.backward)


def cast_gradient(context: LayerContext, product: Role, leaving: ExpertRows) -> Piece:
    """The passes over a product's output gradient, backward alone."""
    recipe = recipe_of(context)
    return Piece(backward=_cast(context, product, leaving, recipe.gradient).backward) if recipe else Piece()


SCALE_KERNELS = 3


def _cast(context: LayerContext, product: Role, shared: ExpertRows, passes: Passes) -> Piece:
    """For each expert (torchao: for all) a copy of as many rows as move the same bytes, and the kernels that
    find its scale.
    """
    precision, recipe = context.job.precision, recipe_of(context)
    together = precision.scaling == "delayed" or (recipe is not None and not recipe.keeps_narrow)
    moved = passes.bytes_per_element(dtype_bytes(precision.activation), dtype_bytes(precision.linear))
    copied = bytes_moved_per_element("copy", backward=False, dtype=precision.activation)
    apart = np.ones_like(shared.experts) if together else shared.experts
    rows = np.ceil(shared.rows * moved / copied / apart).astype(np.int64)
    each = ceil_div(shared.rows, apart)
    calls = cast_calls(passes, each, np.ones(len(each)), precision)
    piece = _repeated(_copy(context, product, "", rows, shared.width, calls), apart)
    if precision.scale_recipe != "tensor" or together:
        return piece
    one = np.ones_like(shared.rows)
    name = f"moe.{product.value}.scale"
    return sequence(_repeated(_copy(context, product, name, one, one), SCALE_KERNELS * apart), piece)


def _copy(
    context: LayerContext,
    product: Role,
    name: str,
    rows: IntArray,
    width: IntArray,
    calls: tuple[KernelCalls, ...] = (),
) -> Piece:
    return kernel(
        context,
        Kernel(
            module=Module.MOE,
            role=Role.CAST,
            serves=product,
            name=name,
            kernel="copy",
            rows=rows,
            width=width,
            saved_bytes=np.zeros(len(rows)),
            stands_for=calls,
        ),
    )


def _repeated(piece: Piece, times: IntArray) -> Piece:
    return Piece(
        forward=tuple(replace(op, repeat=times) for op in piece.forward),
        backward=tuple(replace(op, repeat=times) for op in piece.backward),
    )


def padded(context: LayerContext, name: str, rows: tuple[IntArray, IntArray], width: int) -> Piece:
    """``rows`` before and after copied to or from their padded places, where the dispatcher leaves that to the
    experts; nothing where they are of the wanted number already."""
    if recipe_of(context) is None or context.job.sends_tokens_once:
        return Piece()
    before, after = rows
    moves = before != after
    return moved_rows(context, Role.PAD, (before * moves, after * moves), width, name)
