"""Casting what enters the products of a linear layer to 8 bits or fewer, recipe by recipe.

How often a 16-bit tensor is read and a low-precision copy of it written, from the sources:

- Transformer Engine 2.x (``pytorch/module/linear.py``, ``layernorm_linear.py``, ``common/recipe``): every input and
  output gradient is written along rows for one product and along columns for the other. ``delayed`` scaling knows the
  scale beforehand, so a norm writes 8-bit numbers itself and only the second copy is made of them; ``current``
  scaling reads for the maximum first; ``block`` scaling (1 x 32 MXFP8, 1 x 128) finds it inside the pass. Inputs
  are saved in 8 bits. Weights are cast once a step (``is_first_microbatch``) or, where the framework does not say which
  micro-batch it is, in every forward. Blackwell's products read either order, so that whole-tensor scales need one copy.
- torchao (``float8/float8_linear.py``), compiled: ``dynamic`` scaling of whole tensors and ``row`` scaling read for
  the maximum and read again to cast; inputs and weights are kept in 16 bits and cast again in the backward,
  ``row`` casting the gradient once along rows and once along columns. With scales of rows the products of the backward, which
  sum in full precision, are cuBLAS's of whole-tensor scales, and a pass of its own scales what they make (torchao pull request
  1325, issue 2184), but for a gradient that the activation's backward scales in passing. Under tensor parallelism
  each rank casts its part by an agreed scale of the whole tensor before it is gathered (``float8/float8_tensor_parallel.py``).
  Its MXFP8 (``prototype/mx_formats/mx_linear.py``, mx_mm; ``prototype/moe_training/mxfp8_grouped_mm.py``) keeps the same in 16 bits: each
  of the two orders of an input, a weight and a gradient is cast by a kernel of its own, along columns in the backward.

A pass is priced as a copy that moves as many bytes, or, from 16 bits to 8, by the kernels of ops.memory_bound that cast so
(``quantize``, ``quantize_transpose``) where both were measured; a search for the maximum before is a read.
"""

from dataclasses import dataclass, replace

import numpy as np

from ops.context import LayerContext
from ops.memory_bound import bytes_moved_per_element, memory_pass
from ops.op import (
    BLOCK_SCALES,
    Axis,
    Comm,
    KernelCalls,
    Lane,
    Linear,
    MemoryBound,
    Op,
    Ops,
    Pass,
    Phase,
    Pieces,
    collective,
)
from ops.roles import Identity, Module, OpKey, Role
from spec.arrays import FloatArray, IntArray, ceil_div
from spec.collectives import Collective
from spec.dtypes import dtype_bytes
from spec.job import Precision


@dataclass(frozen=True, slots=True, kw_only=True)
class Passes:
    """High-precision reads, low-precision writes and low-precision reads of one tensor, by so many ``kernels`` that
    cast it; each counts whole passes over the tensor."""

    reads: float = 0.0
    writes: float = 0.0
    low_precision_reads: float = 0.0
    kernels: int = 1

    def bytes_per_element(self, high_bytes: float, low_bytes: float) -> float:
        """Returns the bytes through memory for one element."""
        return self.reads * high_bytes + (self.writes + self.low_precision_reads) * low_bytes


def cast_calls(passes: Passes, rows: IntArray, times: FloatArray, precision: Precision) -> tuple[KernelCalls, ...]:
    """Returns the kernels that cast ``rows`` from 16 bits to 8, ``times`` over; () for other formats and for what
    casts nothing.

    Two copies come from one kernel where the tensor is read once for both, apart from a search for its maximum; else
    from one kernel each.
    """
    widths = (dtype_bytes(precision.activation), dtype_bytes(precision.linear))
    if widths != (2.0, 1.0) or passes.low_precision_reads or not passes.reads or not passes.writes:
        return ()
    apart = float(passes.kernels)
    kernel = "quantize" if passes.writes == apart else "quantize_transpose"
    # reads beyond one a kernel are searches for the maximum; a copy reads and writes, so it moves twice as much
    searched: IntArray = np.ceil(rows * (passes.reads - apart) / 2.0).astype(np.int64)
    cast = KernelCalls(kernel=kernel, rows=rows, times=times * apart)
    return (cast, KernelCalls(kernel="copy", rows=searched, times=times)) if searched.any() else (cast,)


@dataclass(frozen=True, slots=True, kw_only=True)
class CastRecipe:
    """Passes of a recipe over each tensor of a linear: its ``input`` (``normed_input`` where a norm makes it), the
    input again in the backward, its output ``gradient`` and its ``weight``, and that again in the backward.

    ``fused_input`` and ``fused_gradient`` hold where elementwise code makes the tensor for this product alone (None:
    as any other). ``saves_cast_input``: what is saved for the backward is the cast input, else the 16-bit one.
    ``casts_before_gather``: inputs and output gradients are cast before they are gathered over tp.
    ``scales_gradients``: what the products of the backward make is scaled by a pass after them.
    """

    input: Passes
    normed_input: Passes
    input_again: Passes = Passes()
    gradient: Passes
    weight: Passes
    weight_again: Passes = Passes()
    fused_input: Passes | None = None
    fused_gradient: Passes | None = None
    saves_cast_input: bool = True
    casts_before_gather: bool = True
    scales_gradients: bool = False


# Passes are named by what they read and write: ONCE one copy; SEARCHED a read for the maximum before; BOTH copies
# along rows and along columns in one kernel; APART one kernel for each of the two.
ONCE, SEARCHED = Passes(reads=1, writes=1), Passes(reads=2, writes=1)
BOTH, SEARCHED_BOTH = Passes(reads=1, writes=2), Passes(reads=2, writes=2)
APART = Passes(reads=3, writes=2, kernels=2)
TRANSPOSED = Passes(low_precision_reads=1, writes=1)  # a low-precision copy brought into another order
ALONG_K = BLOCK_SCALES | {"row"}
"""Scales that belong to one order of a tensor, so that another order is cast with scales of its own."""


def _again(once: Passes, gradient: Passes) -> CastRecipe:
    """Returns a recipe that saves inputs and weights in 16 bits and casts them ``once`` in each pass (torchao)."""
    recipe = CastRecipe(input=once, normed_input=once, gradient=gradient, weight=once, saves_cast_input=False)
    return replace(recipe, input_again=once, weight_again=once)


DYNAMIC = _again(SEARCHED, SEARCHED_BOTH)
BY_ROWS = Passes(reads=4, writes=2, kernels=2)
RECIPES: dict[str, CastRecipe] = {
    # the norm writes 1 byte instead of 2; the second copy reads and writes 1
    "delayed": CastRecipe(input=BOTH, normed_input=Passes(writes=1), gradient=BOTH, weight=BOTH),
    "current": CastRecipe(
        input=SEARCHED_BOTH, normed_input=SEARCHED_BOTH, gradient=SEARCHED_BOTH, weight=SEARCHED_BOTH
    ),
    "block": CastRecipe(input=BOTH, normed_input=BOTH, gradient=BOTH, weight=BOTH),
    "dynamic": DYNAMIC,
    "row": replace(DYNAMIC, gradient=BY_ROWS, casts_before_gather=False, scales_gradients=True),
}
CAST_AGAIN = replace(_again(ONCE, Passes(reads=2, writes=2, kernels=2)), casts_before_gather=False)
"""torchao's MXFP8: dynamic scaling of blocks, whose scales need no search before the cast."""

NVFP4 = CastRecipe(input=APART, normed_input=APART, gradient=APART, weight=SEARCHED_BOTH)
"""A maximum first; columns turned by Hadamard matrices apart (TE 2.9 ``csrc/quantizer.cpp``, NVFP4Quantizer::quantize_impl)."""
FUSED = CastRecipe(
    input=ONCE,
    normed_input=Passes(),
    fused_input=Passes(),
    input_again=TRANSPOSED,
    gradient=Passes(writes=2, low_precision_reads=1),
    fused_gradient=TRANSPOSED,
    weight=BOTH,
)
"""Delayed scaling where casts run inside the kernel that makes what they read (XLA priority_fusion.cc), and a product's other
order is turned when it is read (gemm_rewriter.cc). A kernel that writes 8-bit numbers alone is priced as if it wrote 16-bit ones."""


def recipe_of(context: LayerContext) -> CastRecipe:
    """Returns the recipe of a job whose products run in a lower precision than its activations."""
    precision = context.job.precision
    fused = context.job.preset.layers.fused_casts and _scaling(precision) == "delayed"
    blocks = precision.scaling == "dynamic" and precision.scale_recipe in BLOCK_SCALES
    # Special cases first by how code is compiled (XLA fuses casts), then by who scales blocks (torchao casts again).
    named = RECIPES[_scaling(precision)] if precision.linear != "fp4" else NVFP4
    named = FUSED if fused else CAST_AGAIN if blocks else named
    if precision.transposed_copies or precision.scale_recipe in ALONG_K:
        # Products that read either order want one copy, unless scales belong to an order.
        return named
    return replace(
        named,
        input=one_copy(named.input),
        normed_input=one_copy(named.normed_input),
        gradient=one_copy(named.gradient),
        weight=one_copy(named.weight),
    )


def _scaling(precision: Precision) -> str:
    return precision.scaling or ("block" if precision.scale_recipe in BLOCK_SCALES else "current")


def finds_scale_first(precision: Precision) -> bool:
    """Returns whether a scale of the whole tensor is looked for in it before it is cast (Transformer Engine
    ``csrc/quantizer.cpp``: Float8CurrentScalingQuantizer, NVFP4Quantizer; torchao: hp_tensor_to_float8_dynamic, whose
    maximum is DTensor's)."""
    looked_for = _scaling(precision) in ("current", "dynamic") and precision.scale_recipe not in BLOCK_SCALES
    return looked_for or precision.linear == "fp4"


def transpose_after_gather(precision: Precision) -> Passes:
    """Returns the passes that bring a gathered tensor's copy along columns into order: a transposition of
    whole-tensor scales where products want both orders, parts of 1 x 128 and NVFP4 put side by side; MXFP8's lie in
    the rows' order."""
    wanted = precision.scale_recipe == "block" or (
        precision.transposed_copies and precision.scale_recipe not in BLOCK_SCALES
    )
    return TRANSPOSED if wanted else Passes()


def weight_casts(context: LayerContext, recipe: CastRecipe) -> tuple[Passes, Passes]:
    """Returns the passes over a whole weight in the forward and in the backward.

    A weight that travels in the format of its products was cast in shards (ops.data_parallel: before the gather, or
    by the update), and is only transposed where products want both orders: once a step or in every forward where the
    recipe casts both orders at once (Transformer Engine ``float8_tensor.py``, _create_transpose; XLA
    gemm_rewriter.cc, TransposeMatrix), in the backward where it casts again there (torchao ``float8_ops.py``,
    float8_mm: the second operand becomes column-major).
    """
    if not context.job.precision.gathers_low_precision:
        return recipe.weight, recipe.weight_again
    turned = transpose_after_gather(context.job.precision)
    return (Passes(), turned) if recipe.weight_again.writes else (turned, Passes())


def one_copy(passes: Passes) -> Passes:
    """Returns the passes left where products read either order: of a norm that writes 8-bit numbers, nothing."""
    return replace(passes, writes=min(passes.writes, 1.0) if passes.reads else 0.0)


def cast_linear(context: LayerContext, layer: Linear, products: Pass) -> Pass:
    """Returns a linear's ``products`` with the casts of the job's recipe, which may save inputs and weights in the
    products' format."""
    recipe, precision = recipe_of(context), context.job.precision
    share = dtype_bytes(precision.linear) / dtype_bytes(precision.activation) if recipe.saves_cast_input else 1.0
    if layer.saved_elsewhere and shares_saved_inputs(context):
        # Attention saves its output anyway, so the product saves no second copy of it.
        share = layer.saved_share
    (product, *others) = products.forward
    product = replace(product, saved_bytes=layer.saved_bytes * share)
    products = with_weight_copies(context, replace(products, forward=(product, *others)))
    before, behind = _casts(context, recipe, layer)
    return Pass(forward=(*before, *products.forward), backward=(*behind, *products.backward))


def keeps_low_precision(context: LayerContext) -> bool:
    """Returns whether products keep their inputs in their own, lower precision."""
    return recipe_of(context).saves_cast_input


def shares_saved_inputs(context: LayerContext) -> bool:
    """Returns whether a low-precision product keeps an input that another operation keeps whole as that one does
    (Megatron-LM d98e8a6 ``attention.py``, ``multi_latent_attention.py`` and ``shared_experts.py``: "the
    output of the fused core_attn is saved by itself, and linear_proj also saves the quantized tensor of this
    output", so save_original_input, but not under delayed scaling)."""
    shares = context.job.preset.layers.shares_saved_inputs
    return keeps_low_precision(context) and shares and context.job.precision.scaling != "delayed"


def keeps_own_input(context: LayerContext) -> bool:
    """Returns whether a product keeps a low-precision copy of an input that another operation keeps too."""
    return keeps_low_precision(context) and not shares_saved_inputs(context)


def with_weight_copies(context: LayerContext, products: Pass) -> Pass:
    """Returns products whose low-precision weights stay from step to step, or from each forward that casts them to its
    backward: one copy along rows, and one along columns where products want both orders (Transformer Engine
    ``pytorch/module/base.py``, get_weight_workspace; ``linear.py``, prepare_for_saving); none for recipes that cast
    again in the backward (torchao), and one less where the weight itself is stored so."""
    recipe, precision = recipe_of(context), context.job.precision
    width = dtype_bytes(precision.linear)
    copies = recipe.weight.writes if recipe.saves_cast_input else 0.0
    stored = 1.0 if dtype_bytes(precision.parameter) <= width else 0.0
    forward = []
    for op in products.forward:
        # Transformer Engine caches the cast weight for all micro-batches of a step; a recipe that casts in every
        # forward saves it from there to the backward instead.
        copy_bytes = op.parameters * width * max(copies - stored, 0.0)
        if precision.casts_every_forward:
            forward.append(replace(op, saved_bytes=op.saved_bytes + copy_bytes))
        else:
            forward.append(replace(op, cached_bytes=copy_bytes))
    return replace(products, forward=tuple(forward))


def _input_and_gradient(recipe: CastRecipe, layer: Linear) -> tuple[Passes, Passes]:
    """Returns the passes over a product's input and over its output gradient. Elementwise code makes mlp.down's input
    for it alone, and the gradients of all products but those that the residual path hands on."""
    entering, leaving = recipe.normed_input if layer.after_norm else recipe.input, recipe.gradient
    if layer.role is Role.DOWN:
        entering = recipe.fused_input or entering
    if layer.role not in (Role.OUT, Role.DOWN):
        leaving = recipe.fused_gradient or leaving
    return entering, leaving


def _casts(context: LayerContext, recipe: CastRecipe, layer: Linear) -> tuple[tuple[Op, ...], tuple[Op, ...]]:
    """Returns the passes before the forward product and before the backward ones. An input that another linear has
    cast, since it saves it, is not cast again."""
    t, i, o = layer.tokens, layer.inputs, layer.outputs
    entering, leaving = _input_and_gradient(recipe, layer)
    # Two linears that read one input cast it once: the one that saves it pays.
    own = float(layer.saved_bytes.any())
    parts_of = {tensor: _cast_parts(context, layer, tensor) for tensor in ("input", "gradient")}
    input_parts, gradient_parts = parts_of["input"], parts_of["gradient"]
    # a weight that is cast once a step costs a micro-batch its share
    each = _weight_casts(context)
    precision = context.job.precision
    high_bytes, low_bytes = dtype_bytes(precision.activation), dtype_bytes(precision.linear)
    turned = transpose_after_gather(precision)
    weight, weight_again = weight_casts(context, recipe)

    def op(
        what: str, phase: Phase, moved_bytes: FloatArray, width: IntArray, calls: tuple[KernelCalls, ...] = ()
    ) -> MemoryBound:
        copied = bytes_moved_per_element("copy", backward=False, dtype=precision.activation)
        return MemoryBound(
            module=layer.module,
            role=Role.CAST,
            serves=layer.role,
            name=f"{layer.name}.{what}",
            phase=phase,
            kernel="copy",
            rows=np.ceil(moved_bytes / copied).astype(np.int64),
            width=width,
            dtype=precision.activation,
            stands_for=calls,
        )

    def bytes_of(passes: Passes, rows: FloatArray) -> FloatArray:
        return rows * passes.bytes_per_element(high_bytes, low_bytes)

    def of_part(passes: Passes) -> Passes:
        return passes if precision.scale_recipe in ALONG_K else one_copy(passes)

    def in_parts(passes: Passes, parts: IntArray) -> FloatArray:
        """Returns the bytes of the casts where each rank casts its own part before the gather: along rows alone if
        columns are transposed after it."""
        return np.where(parts > 1, bytes_of(of_part(passes), np.ceil(t / parts)), bytes_of(passes, t * 1.0))

    def calls(passes: Passes, parts: IntArray, once: float) -> tuple[KernelCalls, ...]:
        """Returns the kernels of the same casts; ``once`` 0: another linear has cast the tensor."""
        whole = (parts == 1) * once
        return (
            *cast_calls(passes, t, whole, precision),
            *cast_calls(of_part(passes), ceil_div(t, parts), once - whole, precision),
        )

    def scaling_bytes(rows: FloatArray, wanted: bool) -> FloatArray:
        return rows * (2.0 * high_bytes * (recipe.scales_gradients and wanted))

    def behind(parts: IntArray) -> FloatArray:
        return np.where(parts > 1, bytes_of(turned, t * 1.0), 0.0)

    def weight_cast(phase: Phase, passes: Passes) -> MemoryBound:
        calls_of_it = cast_calls(passes, i, each, precision)
        return op("cast_weight", phase, bytes_of(passes, i * each), o, calls_of_it)

    def part_cast(what: str, phase: Phase, passes: Passes, once: float = own) -> MemoryBound:
        """Returns the cast of the input, unless another linear has cast it (``once`` 0), or of the output gradient."""
        entering = what == "cast_input"
        parts, width = (input_parts, i) if entering else (gradient_parts, o)
        return op(what, phase, in_parts(passes, parts) * once, width, calls(passes, parts, once))

    turned_input = behind(input_parts) * own
    forward = (part_cast("cast_input", Phase.FORWARD, entering), weight_cast(Phase.FORWARD, weight))
    backward = (
        part_cast("cast_gradient", Phase.INPUT_GRAD, leaving, 1.0),
        op("cast_turned_gradient", Phase.INPUT_GRAD, behind(gradient_parts), o),
        weight_cast(Phase.INPUT_GRAD, weight_again),
        op("cast_turned_input", Phase.WEIGHT_GRAD, turned_input, i),
        part_cast("cast_input", Phase.WEIGHT_GRAD, recipe.input_again),
        op("scale_input_gradient", Phase.INPUT_GRAD, scaling_bytes(t * 1.0, layer.role is not Role.DOWN), i),
        op("scale_weight_gradient", Phase.WEIGHT_GRAD, scaling_bytes(i * 1.0, wanted=True), o),
    )
    return tuple(one for one in forward if one.rows.any()), tuple(one for one in backward if one.rows.any())


def _weight_casts(context: LayerContext) -> FloatArray:
    """Returns how often a forward casts its weights: 1 where every forward does, else the share of a step that one
    micro-batch is."""
    layout = context.layout
    if context.job.precision.casts_every_forward:
        return np.ones(len(layout))
    return np.minimum(layout.dp * layout.micro_batch / context.job.global_batch_sequences, 1.0)


# What is cast around an attention kernel that reads 8 bits.
#
# Transformer Engine, ``pytorch/attention/dot_product_attention/backends.py`` of 2.x, FusedAttnFunc: forward
# ``combine_and_quantize`` of q, k and v, backward the output's gradient (dO_quantizer). With a scale known beforehand
# ("delayed") the kernel writes its output and the three gradients in 8 bits, and ``dequantize`` and
# ``combine_and_dequantize`` bring them back; with one found from the tensor ("current") each is read for its maximum
# first and the kernel writes 16 bits. For its backward it keeps q, k, v and the output in 8 bits (``save_for_backward``).
#
# A pass is priced as a copy that moves as many bytes; kernels of few tensors at once as one.


def attention_saved_share(context: LayerContext) -> float:
    """Returns the bytes of what the kernel saves for its backward over those of the same tensors as layers hand them
    on."""
    precision = context.job.precision
    return dtype_bytes(precision.attention) / dtype_bytes(precision.activation)


def attention_casts(context: LayerContext, read_bytes: FloatArray, output_bytes: FloatArray) -> Pass:
    """Returns the passes over q, k and v (``read_bytes`` as layers hand them on) and over the output
    (``output_bytes``), forward and backward; float64 arrays of a row each."""
    precision = context.job.precision
    high_bytes, low_bytes = dtype_bytes(precision.activation), dtype_bytes(precision.attention)
    searched = finds_scale_first(precision)
    # Bytes through memory for a byte of the tensor: read and write for the cast, one read more for the maximum.
    cast = (high_bytes + low_bytes + high_bytes * searched) / high_bytes
    back = (low_bytes + high_bytes) / high_bytes if precision.scaling == "delayed" else 0.0

    def cast_pass(what: str, phase: Phase, moved_bytes: FloatArray) -> MemoryBound:
        copied = bytes_moved_per_element("copy", backward=False, dtype=precision.activation)
        named = Identity(module=Module.ATTENTION, role=Role.CAST, serves=Role.CORE, name=f"attention.core.{what}")
        rows = np.ceil(moved_bytes / copied).astype(np.int64)
        return memory_pass(named, phase, "copy", rows, precision.activation)

    return Pass(
        forward=(
            cast_pass("cast_inputs", Phase.FORWARD, read_bytes * cast),
            cast_pass("cast_output", Phase.FORWARD, output_bytes * back),
        ),
        backward=(
            cast_pass("cast_gradient", Phase.INPUT_GRAD, output_bytes * cast),
            cast_pass("cast_input_gradients", Phase.INPUT_GRAD, read_bytes * back),
        ),
    )


# Tokens gathered over tp in the few bits that products multiply them in.
#
# Source: Transformer Engine, ``pytorch/module/layernorm_linear.py`` and ``linear.py`` (an input is cast before
# its gather; in the backward the saved 8-bit input is gathered again), ``module/base.py``
# grad_output_preprocess (an output gradient is cast before its gather) and ``pytorch/distributed.py``
# gather_along_first_dim, by recipe:
#
# - whole-tensor scales (``delayed``, ``current``; _all_gather_fp8): the copy along rows, also where columns are wanted,
#   which are turned after the gather. Ranks must agree on the scale: ``current`` scaling reduces the maximum over tp first
#   (set_quantizer_amax_reduction_group), delayed scaling those of all tensors once a step;
# - scales of blocks (1 x 128, 1 x 32 MXFP8, 1 x 16 NVFP4): the copy that is wanted with its scales, of an output
#   gradient both; those along columns of 1 x 128 and NVFP4 arrive part by part and are put in order (swap_first_dims).
#
# What is reduced travels in the activations' format, and so do torchao's gathers, which cast behind them.
# Shared experts that run beside the exchange of tokens are gathered before they are cast (Megatron-LM
# ``moe/shared_experts.py``, pre_forward_comm).

SCALE_BYTES = {"tensor": 0.0, "row": 0.0, "block": 4 / 128, "mx": 1 / 32}
"""Of an element's scale, one for a row or the tensor aside: 4 bytes for 128 (Float8BlockScaling), 1 for 32 (MXFP8)."""
FP4_SCALE_BYTES = 1 / 16
"""NVFP4: 1 byte for 16."""


def scale_bytes(precision: Precision) -> float:
    """Returns the bytes of scales that travel with an element of a low-precision tensor."""
    return FP4_SCALE_BYTES if precision.linear == "fp4" else SCALE_BYTES[precision.scale_recipe or "tensor"]


def gathers_low_precision(context: LayerContext, linear: OpKey) -> bool:
    """Returns whether what ``linear`` reads is cast before it is gathered."""
    if not recipe_of(context).casts_before_gather or linear.module is Module.HEAD:
        return False
    return not (linear.module is Module.SHARED_EXPERTS and context.job.overlap_shared_experts)


def _cast_parts(context: LayerContext, layer: Linear, tensor: str) -> IntArray:
    """Returns the parts of the ``tensor`` of a linear ("input" or "gradient") that ranks cast, one each, before it is
    gathered; else 1."""
    if layer.gathered != tensor or not gathers_low_precision(context, layer.key):
        return context.layout.constant(1)
    shards, layout = context.sharding, context.layout
    parts: IntArray = layout.tp_if(shards.traits.cuts_tokens) // layout.tp_if(not shards.traits.cuts_matrices)
    return parts


def low_precision_gather(context: LayerContext, gather: Comm, linear: OpKey) -> Comm:
    """Returns a gather of one copy of an input or an output gradient of ``linear``, with its scales."""
    if not gathers_low_precision(context, linear):
        return gather
    precision = context.job.precision
    share = (dtype_bytes(precision.linear) + scale_bytes(precision)) / dtype_bytes(precision.activation)
    tp = context.layout.tp
    size: IntArray = (ceil_div(np.ceil(gather.size_bytes * share).astype(np.int64), tp) * tp).astype(np.int64)
    return replace(gather, size_bytes=size, dtype=precision.linear)


def other_order(context: LayerContext, gather: Comm, linear: OpKey) -> Ops:
    """Returns the gather of an output gradient's copy along columns, where that has scales of its own. It is waited
    for with the other copy, or, where that one travels in pieces, runs whole beside the input gradient, by copy
    engines (linear.py, bulk_overlap_ag_with_external_gemm)."""
    if not gathers_low_precision(context, linear) or context.job.precision.scale_recipe not in BLOCK_SCALES:
        return ()
    name = f"{gather.name}_columns"
    if gather.pieces is None:
        return (replace(gather, name=name),)
    whole = Pieces(count=context.layout.constant(1), last_waits=True, thread_blocks=0)
    return (replace(gather, name=name, lane=Lane.OVERLAP, overlap_phase=Phase.INPUT_GRAD, pieces=whole),)


def agreed_scale(context: LayerContext, linear: OpKey, phase: Phase) -> Ops:
    """Returns the reduction of the maximum that ranks agree on before they cast what they gather: an fp32 number of
    each order."""
    if not gathers_low_precision(context, linear) or not finds_scale_first(context.job.precision):
        return ()
    what = linear.served_by(Role.REDUCE, f"{linear.module}.{linear.role}.amax")
    # NVFP4 has a maximum for rows and one for columns, which Hadamard matrices have turned
    orders = 2 if context.job.precision.linear == "fp4" else 1
    return (collective(what, phase, Collective.ALL_REDUCE, Axis.TP, context.layout.constant(4 * orders), "fp32"),)
