"""A linear layer as its three matrix products, each with its own shape."""

from dataclasses import dataclass, replace

import numpy as np

from ops.context import LayerContext
from ops.memory_bound import memory_pass
from ops.op import BatchedGemm, GroupedGemm, Op, Owner, Phase, Piece
from ops.quantize import Operands, casts, recipe_of
from ops.roles import Identity, Role
from spec.arrays import FloatArray, IntArray, ceil_div
from spec.dtypes import dtype_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear(Identity):
    """``tokens`` x ``inputs`` times ``inputs`` x ``outputs`` on one rank.

    ``saved_bytes`` is what stays of its input for the weight gradient, in the activations' format, and 0
    where another linear keeps it; ``dtype`` what it multiplies in, "" for the job's; ``after_norm`` a norm
    hands it its input. Ranks cast ``parts`` of its input and of its output gradient before these are gathered. An input
    ``kept_whole`` by another operation too may be kept once, then as ``kept_share`` of its bytes.
    """

    tokens: IntArray
    inputs: IntArray
    outputs: IntArray
    saved_bytes: FloatArray
    bias: bool = False
    dtype: str = ""
    after_norm: bool = False
    kept_whole: bool = False
    kept_share: float = 1.0
    input_parts: IntArray | int = 1
    gradient_parts: IntArray | int = 1


def linear(context: LayerContext, layer: Linear) -> Piece:
    """The products, with the casts to a narrower format that the job's recipe makes."""
    recipe = None if layer.dtype else recipe_of(context)
    if recipe is None:
        return products(context, layer, layer.saved_bytes)
    operands = Operands(
        module=layer.module,
        role=layer.role,
        name=layer.name,
        tokens=layer.tokens,
        inputs=layer.inputs,
        outputs=layer.outputs,
        after_norm=layer.after_norm,
        shared_input=not layer.saved_bytes.any(),
        input_parts=np.ones_like(layer.tokens) * layer.input_parts,
        gradient_parts=np.ones_like(layer.tokens) * layer.gradient_parts,
    )
    before, behind = casts(context, recipe, operands)
    precision = context.job.precision
    share = dtype_bytes(precision.linear) / dtype_bytes(precision.activation) if recipe.keeps_narrow else 1.0
    if layer.kept_whole and shares_kept_inputs(context):
        share = layer.kept_share
    piece = _with_weight_copies(context, products(context, layer, layer.saved_bytes * share))
    return Piece(forward=(*before, *piece.forward), backward=(*behind, *piece.backward))


def keeps_narrow_inputs(context: LayerContext) -> bool:
    """Whether products keep their inputs in their own, narrower format."""
    recipe = recipe_of(context)
    return recipe is not None and recipe.keeps_narrow


def shares_kept_inputs(context: LayerContext) -> bool:
    """Whether a narrow product keeps an input that another operation keeps whole as that one does
    (Megatron-LM d98e8a6 ``attention.py``, ``multi_latent_attention.py`` and ``shared_experts.py``: "the
    output of the fused core_attn is saved by itself, and linear_proj also saves the quantized tensor of this
    output", so save_original_input, but not under delayed scaling)."""
    shares = context.job.preset.layers.shares_kept_inputs
    return keeps_narrow_inputs(context) and shares and context.job.precision.scaling != "delayed"


def _with_weight_copies(context: LayerContext, piece: Piece) -> Piece:
    """Narrow weights stay from step to step, or from each forward that casts them to its backward."""
    forward = []
    for op in piece.forward:
        copies = narrow_weight_bytes(context, op.parameters)
        if context.job.precision.casts_every_forward:
            forward.append(replace(op, saved_bytes=op.saved_bytes + copies))
        else:
            forward.append(replace(op, cached_bytes=copies))
    return Piece(forward=tuple(forward), backward=piece.backward)


def narrow_weight_bytes(context: LayerContext, elements: IntArray) -> FloatArray:
    """Bytes of the narrow copies of a weight of ``elements`` that last until its backward; 0 for recipes that cast
    it again there (torchao), and less the weight itself where it is stored narrow.

    Transformer Engine (``pytorch/module/base.py``, get_weight_workspace; ``linear.py``, prepare_for_saving): one along
    rows, and one along columns where products want both orders.
    """
    recipe, precision = recipe_of(context), context.job.precision
    width = dtype_bytes(precision.linear)
    copies = recipe.weight.writes if recipe is not None and recipe.keeps_narrow else 0.0
    stored = 1.0 if dtype_bytes(precision.parameter) <= width else 0.0
    return elements * width * max(copies - stored, 0.0)


def products(context: LayerContext, layer: Linear, saved_bytes: FloatArray) -> Piece:
    """Forward NT (t, i, o), input gradient NN (t, o, i), weight gradient TN (o, t, i)."""
    precision = context.job.precision
    one = np.ones_like(layer.tokens)
    held = ceil_div((layer.inputs + int(layer.bias)) * layer.outputs, context.layout.wp)

    def gemm(phase: Phase, shape: tuple[IntArray, IntArray, IntArray], layout: str) -> BatchedGemm:
        m, k, n = shape
        forward = phase is Phase.FORWARD
        return BatchedGemm(
            module=layer.module,
            role=layer.role,
            name=layer.name,
            phase=phase,
            batch=one,
            m=m,
            k=k,
            n=n,
            layout=layout,
            dtype=layer.dtype or precision.linear,
            scale_recipe="" if layer.dtype else precision.scale_recipe,
            bias=layer.bias and forward,
            saved_bytes=saved_bytes if forward else 0.0 * saved_bytes,
            parameters=held if forward else 0 * one,
            owner=context.traits.copies.linear_owner,
        )

    t, i, o = layer.tokens, layer.inputs, layer.outputs
    backward: list[Op] = [
        gemm(Phase.INPUT_GRAD, (t, o, i), "NN"),
        gemm(Phase.WEIGHT_GRAD, (o, t, i), "TN"),
    ]
    backward.extend(_accumulated(context, layer, i))
    if layer.bias:
        what = Identity(module=layer.module, role=Role.BIAS, serves=layer.role, name=f"{layer.name}.bias")
        backward.append(memory_pass(what, Phase.WEIGHT_GRAD, "bias", t, precision.activation, o))
    return Piece(forward=(gemm(Phase.FORWARD, (t, i, o), "NT"),), backward=tuple(backward))


def _accumulated(context: LayerContext, layer: Linear, rows: IntArray) -> list[Op]:
    """The weight gradient of this micro-batch, ``rows`` x outputs, added to that of earlier ones."""
    if not context.job.preset.data_parallel.accumulation:
        return []
    what = Identity(
        module=layer.module, role=Role.ACCUMULATE, serves=layer.role, name=f"{layer.name}.accumulate"
    )
    kernel, dtype = context.job.preset.data_parallel.accumulation, context.job.precision.activation
    return [memory_pass(what, Phase.WEIGHT_GRAD, kernel, rows, dtype, layer.outputs)]


def grouped_linear(context: LayerContext, layer: Linear, groups: IntArray) -> Piece:
    """The same for ``groups`` experts that share ``tokens`` rows; weights belong to the experts."""
    precision = context.job.precision

    def gemm(phase: Phase, shape: tuple[IntArray, IntArray, IntArray], layout: str) -> GroupedGemm:
        m, k, n = shape
        forward = phase is Phase.FORWARD
        return GroupedGemm(
            module=layer.module,
            role=layer.role,
            name=layer.name,
            phase=phase,
            groups=groups,
            m=m,
            k=k,
            n=n,
            layout=layout,
            dtype=precision.linear,
            scale_recipe=precision.scale_recipe,
            saved_bytes=layer.saved_bytes if forward else 0.0 * layer.saved_bytes,
            parameters=groups * (layer.inputs + int(layer.bias)) * layer.outputs if forward else 0 * groups,
            owner=Owner.EXPERT,
            one_kernel=context.job.preset.layers.grouped_kernel or rows_on_device(context),
        )

    t, i, o = layer.tokens, layer.inputs, layer.outputs
    piece = Piece(
        forward=(gemm(Phase.FORWARD, (t, i, o), "NT"),),
        backward=(
            gemm(Phase.INPUT_GRAD, (t, o, i), "NN"),
            gemm(Phase.WEIGHT_GRAD, (t, i, o), "TN"),
            *_accumulated(context, layer, groups * i),
        ),
    )
    return _with_weight_copies(context, piece)


def rows_on_device(context: LayerContext) -> bool:
    """Whether only the device knows each expert's rows: a graph of the whole iteration, which no host
    interrupts, of experts that drop no tokens. Megatron-LM d98e8a6 ``transformer_config.py``:
    moe_expert_rank_capacity_factor "requires use_transformer_engine_op_fuser=True or
    moe_use_grouped_tensor=True", one product of Transformer Engine 2.x (d0067d0)
    ``pytorch/ops/fused/grouped_mlp.py`` for all experts, or general_grouped_gemm_for_grouped_tensor."""
    routed = [run.block.moe for run in context.model.blocks if run.block.moe is not None]
    drops = any(context.job.capacity_factor(moe) is not None for moe in routed)
    return "full_iteration" in context.job.cuda_graphs and not drops


def summed_gradients(context: LayerContext, layer: Linear) -> Piece:
    """The input gradient of one more linear with the same input: added to the others' by a kernel of its own,
    or read beside theirs by the kernel that follows."""
    what = Identity(
        module=layer.module, role=Role.ACCUMULATE, serves=layer.role, name=f"{layer.name}.add_gradients"
    )
    kernel = "bias" if context.job.preset.layers.fused_sums else "accumulate"
    dtype = context.job.precision.activation
    added = memory_pass(what, Phase.INPUT_GRAD, kernel, layer.tokens, dtype, layer.inputs)
    return Piece(backward=(added,))
