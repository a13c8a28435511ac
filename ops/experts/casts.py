"""Casting what enters the experts' products to fp8 or fp4, one pass a tensor, as the job's recipe does.

Source: Transformer Engine 2.9 ``pytorch/module/grouped_linear.py`` (tex.split_quantize): as its other linears
(``ops.low_precision``), without a norm that could write 8-bit numbers itself. Weights are cast once a step. Each expert's
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
from ops.experts.exchange import move_rows
from ops.low_precision import Passes, cast_calls, recipe_of
from ops.memory_bound import Kernel, bytes_moved_per_element, kernel
from ops.op import Linear, Pass, sequence
from ops.roles import Module, OpKey, Role
from spec.arrays import IntArray, ceil_div
from spec.dtypes import dtype_bytes
from spec.model import MoeSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertRows:
    """``rows`` of ``width`` channels that ``experts`` of a rank share, of the product ``role``."""

    role: Role
    rows: IntArray
    width: IntArray
    experts: IntArray


def saved_input_bytes(context: LayerContext) -> float:
    """Returns the bytes of one element of a product's input as it is saved."""
    precision = context.job.precision
    return dtype_bytes(precision.linear if recipe_of(context).saves_cast_input else precision.activation)


def cast_experts(context: LayerContext, layer: Linear, experts: IntArray, products: Pass) -> Pass:
    """Returns the ``products`` of a rank's ``experts`` with the casts of their inputs, weights and output gradients."""
    recipe = recipe_of(context)
    entering = ExpertRows(role=layer.role, rows=layer.tokens, width=layer.inputs, experts=experts)
    leaving = replace(entering, width=layer.outputs)
    weights = replace(leaving, rows=experts * layer.inputs)
    # A recipe that saved the 16-bit input casts it again for the weight gradient.
    again = _cast(context, entering, recipe.input_again).backward if recipe.input_again.writes else ()
    inputs = Pass(forward=_cast(context, entering, recipe.input).forward, backward=again)
    gradient = Pass(backward=_cast(context, leaving, recipe.gradient).backward)
    if recipe.saves_cast_input:
        # Weights are cast once a step, which is left out.
        return sequence(inputs, products, gradient)
    # Every forward casts all of a rank's weights, and every backward again.
    cast, recast = (_cast(context, weights, one) for one in (recipe.weight, recipe.weight_again))
    return sequence(inputs, Pass(forward=cast.forward, backward=recast.backward), products, gradient)


SCALE_KERNELS = 3


def _cast(context: LayerContext, shared: ExpertRows, passes: Passes) -> Pass:
    """Returns, for each expert (torchao: for all), a copy of as many rows as move the same bytes, and the kernels
    that find its scale."""
    precision, recipe = context.job.precision, recipe_of(context)
    what = OpKey(Module.MOE, Role.CAST, shared.role)
    together = precision.scaling == "delayed" or not recipe.saves_cast_input
    moved = passes.bytes_per_element(dtype_bytes(precision.activation), dtype_bytes(precision.linear))
    copied = bytes_moved_per_element("copy", backward=False, dtype=precision.activation)
    apart = np.ones_like(shared.experts) if together else shared.experts
    rows = np.ceil(shared.rows * moved / copied / apart).astype(np.int64)
    each = ceil_div(shared.rows, apart)
    calls = cast_calls(passes, each, np.ones(len(each)), precision)
    piece = _repeat(kernel(context, Kernel(what.named(""), "copy", rows, shared.width, stands_for=calls)), apart)
    if precision.scale_recipe != "tensor" or together:
        return piece
    one = np.ones_like(shared.rows)
    scale = kernel(context, Kernel(what.named(f"moe.{shared.role.value}.scale"), "copy", one, one))
    return sequence(_repeat(scale, SCALE_KERNELS * apart), piece)


def _repeat(piece: Pass, times: IntArray) -> Pass:
    return Pass(
        forward=tuple(replace(op, repeat=times) for op in piece.forward),
        backward=tuple(replace(op, repeat=times) for op in piece.backward),
    )


def padded_rows(context: LayerContext, moe: MoeSpec, rows: IntArray, experts: IntArray) -> IntArray:
    """Returns the ``rows`` of a rank's ``experts`` with each expert's padded to the multiple that its products'
    format wants.

    Transformer Engine ``pytorch/module/fp8_padding.py``: 32 rows for MXFP8, 16 for other 8-bit and 4-bit formats. An
    expert that drops nothing gets any number of rows, so half a multiple less a half is added on average; with a
    capacity all have the same number.
    """
    precision = context.job.precision
    multiple = MXFP8_ROWS if precision.scale_recipe == "mx" else LOW_PRECISION_ROWS
    if context.job.capacity_factor(moe) is not None:
        return np.asarray(ceil_div(rows, multiple * experts) * multiple * experts, dtype=np.int64)
    return np.asarray(rows + ceil_div(experts * (multiple - 1), 2), dtype=np.int64)


MXFP8_ROWS, LOW_PRECISION_ROWS = 32, 16


def padding(context: LayerContext, name: str, rows: tuple[IntArray, IntArray], width: int) -> Pass:
    """Returns ``rows`` before and after copied to or from their padded places, where the dispatcher leaves that to the
    experts; nothing where they are of the wanted number already."""
    if context.job.sends_tokens_once:
        return Pass()
    before, after = rows
    moves = before != after
    return move_rows(context, Role.PAD, (before * moves, after * moves), width, name)
