"""The expert half of a block: router, dispatch, grouped experts, combine, shared experts.

Groups follow Megatron-Core's folding (arXiv 2504.14960 sec. 3): experts are cut over ep ranks and each
expert's matrices over etp ranks, both laid over the ranks of tp x cp x dp.
"""

from dataclasses import replace

import numpy as np

from ops.context import LayerContext
from ops.experts.exchange import exchange, fold
from ops.experts.mlp import expert_mlp
from ops.experts.wide_router import wide_gradients
from ops.linear import Linear, keeps_narrow_inputs, linear, shares_kept_inputs
from ops.memory_bound import Kernel, kernel, norm, residual
from ops.mlp_block import OUTPUT_NORM, Rows, feed_forward, keeps_input
from ops.op import Piece, sequence
from ops.quantize import recipe_of
from ops.roles import Module, Role
from ops.strategies.sharding import Sharding
from spec.arrays import IntArray, ceil_div
from spec.model import BlockSpec, MlpSpec, MoeSpec


def moe_half(context: LayerContext, sharding: Sharding, block: BlockSpec) -> Piece:
    """Everything from the second norm to the second residual add of an expert block."""
    moe = block.moe
    if moe is None:
        raise ValueError("a block without experts has no expert half")
    layout = context.layout
    norm_rows = ceil_div(context.tokens, sharding.norm_shards(layout))
    own_rows = ceil_div(context.tokens, layout.tp)
    place, keeps = block.norm_place, keeps_input(block)
    pieces = [norm(context, Module.MLP, norm_rows)] if place.leads_second else []
    # Shared experts keep the router's input, but for a narrow copy of their own.
    apart = not moe.shared_ffn_hidden or (keeps_narrow_inputs(context) and not shares_kept_inputs(context))
    pieces.append(_router(context, moe, own_rows, keeps=keeps and apart))
    if moe.shared_ffn_hidden:
        shared = MlpSpec(ffn_hidden=moe.shared_ffn_hidden, gated=moe.gated, bias=moe.bias)
        rows = Rows(
            gemm=ceil_div(context.tokens, sharding.gemm_shards(layout)),
            saved=ceil_div(context.tokens, sharding.saved_input_shards(layout)) * keeps,
        )
        pieces.append(feed_forward(context, sharding, shared, rows, Module.SHARED_EXPERTS))
        if moe.shared_gate:
            pieces.append(_shared_gate(context, own_rows))
    pieces.append(_experts(context, moe, own_rows))
    if place.follows:
        pieces.append(norm(context, Module.MLP, norm_rows, OUTPUT_NORM))
    return sequence(*pieces, _added(context, moe, norm_rows))


def _added(context: LayerContext, moe: MoeSpec, rows: IntArray) -> Piece:
    """The second residual add. Where exchanges run beside another micro-batch the shared experts' output,
    which it reads, was cut from its graph and stays until their backward (Megatron-LM d98e8a6
    ``models/common/utils.py``, detach: before_detached; ``fine_grained_callables.py``,
    submodule_pre_dispatch_forward)."""
    piece = residual(context, Module.MLP, rows)
    if not (context.job.overlap_expert_a2a and moe.shared_ffn_hidden):
        return piece
    stays = context.activations(rows, context.model.hidden) * (context.layout.ep > 1)
    (add, *others) = piece.forward
    return Piece(
        forward=(replace(add, saved_bytes=add.saved_bytes + stays), *others), backward=piece.backward
    )


def _router(context: LayerContext, moe: MoeSpec, rows: IntArray, *, keeps: bool) -> Piece:
    """Scores of every expert for every token and their normalised best.

    The product stays in 16 bits where fp8 recipes change others (Megatron-LM, moe_utils.py,
    RouterGatingLinearFunction); the norm's output it reads is kept here unless (not ``keeps``) the shared
    experts or the mixer keep it anyway. One fused kernel picks and normalises in fp32 (--moe-router-fusion),
    and keeps the scores. Scores in fp32 take the forward nothing more.
    """
    layer = Linear(
        module=Module.MOE,
        role=Role.ROUTER,
        tokens=rows,
        inputs=context.layout.constant(context.model.hidden),
        outputs=context.layout.constant(moe.num_experts),
        saved_bytes=context.activations(rows, context.model.hidden) * keeps,
        dtype=context.job.precision.compute,
    )
    best = Kernel(
        module=Module.MOE,
        role=Role.TOP_K,
        kernel="masked_softmax",
        rows=rows,
        width=moe.num_experts,
        saved_bytes=4.0 * rows * moe.num_experts,
        dtype="fp32",
    )
    scores = linear(context, layer)
    wide = context.job.precision.router == "fp32"
    return sequence(wide_gradients(context, scores) if wide else scores, kernel(context, best))


def _shared_gate(context: LayerContext, rows: IntArray) -> Piece:
    """A one-column gate on the shared experts' output (Qwen2-MoE)."""
    layer = Linear(
        module=Module.MOE,
        role=Role.SHARED_GATE,
        tokens=rows,
        inputs=context.layout.constant(context.model.hidden),
        outputs=context.layout.constant(1),
        saved_bytes=np.zeros(len(rows)),
        dtype=context.job.precision.compute,
    )
    return linear(context, layer)


def _experts(context: LayerContext, moe: MoeSpec, own_rows: IntArray) -> Piece:
    """Dispatch, the experts on what arrives, combine; in their latent, if they have one."""
    around = exchange(context, moe, own_rows)
    width = moe.routed_hidden(context.model.hidden)
    return sequence(
        _latent(context, moe, Role.LATENT_DOWN, own_rows) if moe.latent_hidden else Piece(),
        around.dispatch,
        fold(context, around.rows, width, entering=True),
        around.sort,
        expert_mlp(context, moe, around.rows * context.layout.etp),
        around.unsort,
        fold(context, around.rows, width, entering=False),
        around.combine,
        _latent(context, moe, Role.LATENT_UP, own_rows) if moe.latent_hidden else Piece(),
    )


def _latent(context: LayerContext, moe: MoeSpec, role: Role, rows: IntArray) -> Piece:
    """The product into the experts' latent, or the one out of it; every rank has both whole and works on its own
    tokens (Megatron-LM moe_layer.py, fc1_latent_proj and fc2_latent_proj: duplicated). The first reads what
    the router or the shared experts keep; where products are narrow each linear keeps its own copy."""
    hidden, latent = context.model.hidden, moe.latent_hidden
    inputs, outputs = (hidden, latent) if role is Role.LATENT_DOWN else (latent, hidden)
    keeps = role is Role.LATENT_UP or recipe_of(context) is not None
    layer = Linear(
        module=Module.MOE,
        role=role,
        tokens=rows,
        inputs=context.layout.constant(inputs),
        outputs=context.layout.constant(outputs),
        saved_bytes=context.activations(rows, inputs) * keeps,
        bias=moe.bias,
    )
    return linear(context, layer)
