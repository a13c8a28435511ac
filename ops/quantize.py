"""Casting what enters the products of a linear layer to 8 bits or fewer, recipe by recipe.

How often a 16-bit tensor is read and a narrow copy of it written, from the sources:

- Transformer Engine 2.x (``pytorch/module/linear.py``, ``layernorm_linear.py``, ``common/recipe``): every input and
  output gradient is written along rows for one product and along columns for the other. ``delayed`` scaling knows the
  scale beforehand, so a norm writes narrow numbers itself and only the second copy is made of them; ``current``
  scaling reads for the maximum first; ``block`` scaling (1 x 32 MXFP8, 1 x 128) finds it inside the pass. Inputs
  are kept narrow. Weights are cast once a step (``is_first_microbatch``) or, where nobody says which micro-batch it
  is, in every forward. Blackwell's products read either order, so that whole-tensor scales need one copy.
- torchao (``float8/float8_linear.py``), compiled: ``dynamic`` scaling of whole tensors and ``row`` scaling read for
  the maximum and read again to cast; inputs and weights are kept in 16 bits and cast again in the backward,
  ``row`` casting the gradient once along rows and once along columns. With scales of rows the products of the backward, which
  sum in full precision, are cuBLAS's of whole-tensor scales, and a pass of its own scales what they make (torchao pull request
  1325, issue 2184), but for a gradient that the activation's backward scales in passing. Under tensor parallelism
  each rank casts its part by an agreed scale of the whole tensor before it is gathered (``float8/float8_tensor_parallel.py``).
  Its MXFP8 (``prototype/mx_formats/mx_linear.py``, mx_mm; ``prototype/moe_training/mxfp8_grouped_mm.py``) keeps the same in 16 bits: each
  of the two orders of an input, a weight and a gradient is cast by a kernel of its own, along columns in the backward.

A pass is priced as a copy that moves as many bytes, or, from 16 bits to 8, by the kernels of ops.kernels that cast so
(``quantize``, ``quantize_transpose``) where both were measured; a search for the maximum before is a read.
"""

from dataclasses import dataclass, replace

import numpy as np

from ops.context import LayerContext
from ops.kernels import bytes_moved_per_element
from ops.op import KernelCalls, MemoryBound, Op, Phase
from ops.roles import Identity, Role
from spec.arrays import FloatArray, IntArray, ceil_div
from spec.dtypes import dtype_bytes
from spec.job import Precision


@dataclass(frozen=True, slots=True, kw_only=True)
class Passes:
    """16-bit reads, narrow writes and narrow reads of one tensor, by so many kernels that cast it."""

    reads: float = 0.0
    writes: float = 0.0
    narrow_reads: float = 0.0
    kernels: int = 1

    def bytes_per_element(self, wide: float, narrow: float) -> float:
        """Bytes through memory for one element."""
        return self.reads * wide + (self.writes + self.narrow_reads) * narrow


def cast_calls(
    passes: Passes, rows: IntArray, times: FloatArray, precision: Precision
) -> tuple[KernelCalls, ...]:
    """The kernels of casting ``rows`` from 16 bits to 8, ``times`` over; () for other formats and for what casts nothing.

    Two copies are one kernel's where the tensor is read for them once, beside a search for its maximum, else one's each."""
    widths = (dtype_bytes(precision.activation), dtype_bytes(precision.linear))
    if widths != (2.0, 1.0) or passes.narrow_reads or not passes.reads or not passes.writes:
        return ()
    apart = float(passes.kernels)
    kernel = "quantize" if passes.writes == apart else "quantize_transpose"
    searched: IntArray = np.ceil(rows * (passes.reads - apart) / 2.0).astype(np.int64)
    cast = KernelCalls(kernel=kernel, rows=rows, times=times * apart)
    return (cast, KernelCalls(kernel="copy", rows=searched, times=times)) if searched.any() else (cast,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Passes over an input (after a norm or not), over it again in the backward, over an output gradient and over a weight (in
    the backward again), whether the input is kept narrow, whether it and the output gradient are cast before they are gathered
    over tp, and whether what the products of the backward make is scaled after them. ``made_input`` and ``made_gradient`` hold
    where elementwise code makes the tensor for this product alone (None: as any other)."""

    input: Passes
    normed_input: Passes
    input_again: Passes = Passes()
    gradient: Passes
    weight: Passes
    weight_again: Passes = Passes()
    made_input: Passes | None = None
    made_gradient: Passes | None = None
    keeps_narrow: bool = True
    gathers_narrow: bool = True
    scales_gradients: bool = False


ONCE, SEARCHED = Passes(reads=1, writes=1), Passes(reads=2, writes=1)
BOTH, SEARCHED_BOTH = Passes(reads=1, writes=2), Passes(reads=2, writes=2)
APART = Passes(reads=3, writes=2, kernels=2)
BLOCKS = frozenset({"block", "mx"})
TURNED = Passes(narrow_reads=1, writes=1)  # a narrow copy brought into another order
ALONG_K = BLOCKS | {"row"}
"""Scales that belong to one order of a tensor, so that another order is cast with scales of its own."""


def _again(once: Passes, gradient: Passes) -> Recipe:
    """Inputs and weights kept in 16 bits and cast ``once`` in each pass (torchao)."""
    kept = Recipe(input=once, normed_input=once, gradient=gradient, weight=once, keeps_narrow=False)
    return replace(kept, input_again=once, weight_again=once)


DYNAMIC = _again(SEARCHED, SEARCHED_BOTH)
BY_ROWS = Passes(reads=4, writes=2, kernels=2)
RECIPES: dict[str, Recipe] = {
    # the norm writes 1 byte instead of 2; the second copy reads and writes 1
    "delayed": Recipe(input=BOTH, normed_input=Passes(writes=1), gradient=BOTH, weight=BOTH),
    "current": Recipe(
        input=SEARCHED_BOTH, normed_input=SEARCHED_BOTH, gradient=SEARCHED_BOTH, weight=SEARCHED_BOTH
    ),
    "block": Recipe(input=BOTH, normed_input=BOTH, gradient=BOTH, weight=BOTH),
    "dynamic": DYNAMIC,
    "row": replace(DYNAMIC, gradient=BY_ROWS, gathers_narrow=False, scales_gradients=True),
}
CAST_AGAIN = replace(_again(ONCE, Passes(reads=2, writes=2, kernels=2)), gathers_narrow=False)
"""torchao's MXFP8: dynamic scaling of blocks, whose scales nobody looks for first."""

NVFP4 = Recipe(input=APART, normed_input=APART, gradient=APART, weight=SEARCHED_BOTH)
"""A maximum first; columns turned by Hadamard matrices apart (TE 2.9 ``csrc/quantizer.cpp``, NVFP4Quantizer::quantize_impl)."""
FUSED = Recipe(
    input=ONCE,
    normed_input=Passes(),
    made_input=Passes(),
    input_again=TURNED,
    gradient=Passes(writes=2, narrow_reads=1),
    made_gradient=TURNED,
    weight=BOTH,
)
"""Delayed scaling where casts run inside the kernel that makes what they read (XLA priority_fusion.cc), and a product's other
order is turned when it is read (gemm_rewriter.cc). A kernel that writes narrow numbers alone is priced as if it wrote wide ones."""


def recipe_of(context: LayerContext) -> Recipe | None:
    """The job's recipe; None where products run in the activations' format."""
    precision = context.job.precision
    if not precision.narrows:
        return None
    fused = context.job.preset.layers.fused_casts and _scaling(precision) == "delayed"
    blocks = precision.scaling == "dynamic" and precision.scale_recipe in BLOCKS
    named = RECIPES[_scaling(precision)] if precision.linear != "fp4" else NVFP4
    named = FUSED if fused else CAST_AGAIN if blocks else named
    if precision.transposed_copies or precision.scale_recipe in ALONG_K:
        return named
    return replace(
        named,
        input=one_copy(named.input),
        normed_input=one_copy(named.normed_input),
        gradient=one_copy(named.gradient),
        weight=one_copy(named.weight),
    )


def _scaling(precision: Precision) -> str:
    return precision.scaling or ("block" if precision.scale_recipe in BLOCKS else "current")


def finds_scale_first(precision: Precision) -> bool:
    """Whether a scale of the whole tensor is looked for in it before it is cast (Transformer Engine ``csrc/quantizer.cpp``:
    Float8CurrentScalingQuantizer, NVFP4Quantizer; torchao: hp_tensor_to_float8_dynamic, whose maximum is DTensor's)."""
    looked_for = _scaling(precision) in ("current", "dynamic") and precision.scale_recipe not in BLOCKS
    return looked_for or precision.linear == "fp4"


def turned_after_gather(precision: Precision) -> Passes:
    """What brings a gathered tensor's copy along columns into order: a transposition of whole-tensor scales where products want
    both orders, parts of 1 x 128 and NVFP4 put side by side; MXFP8's lie in the rows' order."""
    wanted = precision.scale_recipe == "block" or (
        precision.transposed_copies and precision.scale_recipe not in BLOCKS
    )
    return TURNED if wanted else Passes()


def weight_casts(context: LayerContext, recipe: Recipe) -> tuple[Passes, Passes]:
    """Passes over a whole weight in the forward and in the backward. What travels in the format of its products has been cast
    in shards (ops.data_parallel: before the gather, or by the update), and only turned into the other order where
    products want it: once a step or in every forward where the recipe casts both orders at once (Transformer Engine
    ``float8_tensor.py``, _create_transpose; XLA gemm_rewriter.cc, TransposeMatrix), in the backward
    where it casts again there (torchao ``float8_ops.py``, float8_mm: the second operand becomes column-major)."""
    if not context.job.precision.gathers_narrow:
        return recipe.weight, recipe.weight_again
    turned = turned_after_gather(context.job.precision)
    return (Passes(), turned) if recipe.weight_again.writes else (turned, Passes())


def one_copy(passes: Passes) -> Passes:
    """What is left where products read either order: of a norm that writes narrow numbers, nothing."""
    return replace(passes, writes=min(passes.writes, 1.0) if passes.reads else 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Operands(Identity):
    """What one linear multiplies: rows of ``tokens``, a weight of ``inputs`` x ``outputs``. Its input and its output gradient
    are cast in ``parts`` of the tokens, a rank one, where they are gathered afterwards."""

    tokens: IntArray
    inputs: IntArray
    outputs: IntArray
    after_norm: bool
    shared_input: bool
    input_parts: IntArray
    gradient_parts: IntArray


def _input_and_gradient(recipe: Recipe, operands: Operands) -> tuple[Passes, Passes]:
    """Over a product's input and its output gradient. Elementwise code makes mlp.down's input for it alone, and gradients
    but those that the residual path carries on."""
    entering, leaving = recipe.normed_input if operands.after_norm else recipe.input, recipe.gradient
    if operands.role is Role.DOWN:
        entering = recipe.made_input or entering
    if operands.role not in (Role.OUT, Role.DOWN):
        leaving = recipe.made_gradient or leaving
    return entering, leaving


def casts(context: LayerContext, recipe: Recipe, operands: Operands) -> tuple[tuple[Op, ...], tuple[Op, ...]]:
    """Passes around the forward product and around the backward ones. An input that another linear has
    cast (``shared_input``) is not cast again."""
    t, i, o = operands.tokens, operands.inputs, operands.outputs
    entering, leaving = _input_and_gradient(recipe, operands)
    own = 0.0 if operands.shared_input else 1.0
    each = _weight_casts(context)
    precision = context.job.precision
    wide, narrow = dtype_bytes(precision.activation), dtype_bytes(precision.linear)
    turned = turned_after_gather(precision)
    weight, weight_again = weight_casts(context, recipe)

    def op(
        what: str, phase: Phase, moved_bytes: FloatArray, width: IntArray, calls: tuple[KernelCalls, ...] = ()
    ) -> MemoryBound:
        copied = bytes_moved_per_element("copy", backward=False, dtype=precision.activation)
        return MemoryBound(
            module=operands.module,
            role=Role.CAST,
            serves=operands.role,
            name=f"{operands.name}.{what}",
            phase=phase,
            kernel="copy",
            rows=np.ceil(moved_bytes / copied).astype(np.int64),
            width=width,
            dtype=precision.activation,
            stands_for=calls,
        )

    def moved(passes: Passes, rows: FloatArray) -> FloatArray:
        return rows * passes.bytes_per_element(wide, narrow)

    def of_part(passes: Passes) -> Passes:
        return passes if precision.scale_recipe in ALONG_K else one_copy(passes)

    def in_parts(passes: Passes, parts: IntArray) -> FloatArray:
        """Where each rank casts its own part for a gather, along rows alone if columns are turned behind it."""
        return np.where(parts > 1, moved(of_part(passes), np.ceil(t / parts)), moved(passes, t * 1.0))

    def calls(passes: Passes, parts: IntArray, once: float) -> tuple[KernelCalls, ...]:
        """The kernels of that; ``once`` 0: another linear has cast it."""
        whole = (parts == 1) * once
        return (
            *cast_calls(passes, t, whole, precision),
            *cast_calls(of_part(passes), ceil_div(t, parts), once - whole, precision),
        )

    def scaled(rows: FloatArray, wanted: bool) -> FloatArray:
        return rows * (2.0 * wide * (recipe.scales_gradients and wanted))

    def behind(parts: IntArray) -> FloatArray:
        return np.where(parts > 1, moved(turned, t * 1.0), 0.0)

    def weight_cast(phase: Phase, passes: Passes) -> MemoryBound:
        calls_of_it = cast_calls(passes, i, each, precision)
        return op("cast_weight", phase, moved(passes, i * each), o, calls_of_it)

    def part_cast(what: str, phase: Phase, passes: Passes, once: float = own) -> MemoryBound:
        """Of the input, unless another linear has cast it (``once`` 0), or of the output gradient."""
        entering = what == "cast_input"
        parts, width = (operands.input_parts, i) if entering else (operands.gradient_parts, o)
        return op(what, phase, in_parts(passes, parts) * once, width, calls(passes, parts, once))

    turned_input = behind(operands.input_parts) * own
    forward = (
        part_cast("cast_input", Phase.FORWARD, entering),
        weight_cast(Phase.FORWARD, weight),
    )
    backward = (
        part_cast("cast_gradient", Phase.INPUT_GRAD, leaving, 1.0),
        op("cast_turned_gradient", Phase.INPUT_GRAD, behind(operands.gradient_parts), o),
        weight_cast(Phase.INPUT_GRAD, weight_again),
        op("cast_turned_input", Phase.WEIGHT_GRAD, turned_input, i),
        part_cast("cast_input", Phase.WEIGHT_GRAD, recipe.input_again),
        op("scale_input_gradient", Phase.INPUT_GRAD, scaled(t * 1.0, operands.role is not Role.DOWN), i),
        op("scale_weight_gradient", Phase.WEIGHT_GRAD, scaled(i * 1.0, wanted=True), o),
    )
    return tuple(one for one in forward if one.rows.any()), tuple(one for one in backward if one.rows.any())


def _weight_casts(context: LayerContext) -> FloatArray:
    """Per forward: 1 where every forward casts, else the share of a step that one micro-batch is."""
    layout = context.layout
    if context.job.precision.casts_every_forward:
        return np.ones(len(layout))
    return np.minimum(layout.dp * layout.micro_batch / context.job.global_batch_sequences, 1.0)
