"""The expert part of a block: router, dispatch, grouped experts, combine, shared experts.

Groups follow Megatron-Core's folding (arXiv 2504.14960 sec. 3): experts are cut over ep ranks and each
expert's matrices over etp ranks, both laid over the ranks of tp x cp x dp.
"""

from dataclasses import replace

import numpy as np

from ops.context import LayerContext
from ops.experts.exchange import Exchange, all_to_all, fold
from ops.experts.mlp import expert_mlp
from ops.linear import linear
from ops.memory_bound import Kernel, kernel, memory_pass
from ops.mlp_block import feed_forward
from ops.op import BatchedGemm, Linear, Op, Pass, sequence
from ops.roles import Module, OpKey, Role
from spec.arrays import IntArray, ceil_div
from spec.dtypes import dtype_bytes
from spec.model import MlpSpec, MoeSpec


def expert_branch(context: LayerContext, moe: MoeSpec, *, keeps_input: bool) -> Pass:
    """Returns router, shared experts, and dispatch, experts and combine of an expert block; unless it ``keeps_input``,
    the mixer saves what they read."""
    # Each tp rank routes its own part of the tokens, whatever the strategy does with them in attention.
    own_rows = ceil_div(context.tokens, context.layout.tp)
    # Shared experts keep the router's input, but for a low-precision copy of their own.
    apart = not moe.shared_ffn_hidden or _keeps_own_input(context)
    pieces = [_router(context, moe, own_rows, keeps=keeps_input and apart)]
    if moe.shared_ffn_hidden:
        shared = MlpSpec(ffn_hidden=moe.shared_ffn_hidden, gated=moe.gated, bias=moe.bias)
        pieces.append(feed_forward(context, shared, Module.SHARED_EXPERTS, keeps_input=keeps_input))
        if moe.shared_gate:
            pieces.append(_shared_gate(context, own_rows))
    return sequence(*pieces, _experts(context, moe, own_rows))


def _keeps_own_input(context: LayerContext) -> bool:
    if not context.job.precision.low_precision_linear:
        return False
    from ops.low_precision import keeps_own_input

    return keeps_own_input(context)


def keep_shared_output(context: LayerContext, added: Pass) -> Pass:
    """Returns the second residual add where exchanges run beside another micro-batch: the shared experts' output,
    which it reads, was cut from its graph and stays until their backward (Megatron-LM d98e8a6
    ``models/common/utils.py``, detach: before_detached; ``fine_grained_callables.py``,
    submodule_pre_dispatch_forward)."""
    stays = context.activations(context.norm_rows, context.model.hidden) * (context.layout.ep > 1)
    (add, *others) = added.forward
    return replace(added, forward=(replace(add, saved_bytes=add.saved_bytes + stays), *others))


def _router(context: LayerContext, moe: MoeSpec, rows: IntArray, *, keeps: bool) -> Pass:
    """Returns the scores of every expert for every token and their normalised best.

    The product stays in 16 bits where fp8 recipes change others (Megatron-LM, moe_utils.py,
    RouterGatingLinearFunction); the norm's output it reads is saved here unless (not ``keeps``) the shared experts or
    the mixer save it anyway. One fused kernel picks and normalises in fp32 (moe_router_fusion), and saves the scores.
    Scores in fp32 take the forward nothing more.
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
        OpKey(Module.MOE, Role.TOP_K),
        "masked_softmax",
        rows,
        moe.num_experts,
        saved_bytes=4.0 * rows * moe.num_experts,
        dtype="fp32",
    )
    scores = linear(context, layer)
    in_fp32 = context.job.precision.router == "fp32"
    return sequence(_fp32_gradients(context, scores) if in_fp32 else scores, kernel(context, best))


def _shared_gate(context: LayerContext, rows: IntArray) -> Pass:
    """Returns a one-column gate on the shared experts' output (Qwen2-MoE)."""
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


def _experts(context: LayerContext, moe: MoeSpec, own_rows: IntArray) -> Pass:
    """Returns dispatch, the experts on what arrives, and combine; in their latent, if they have one."""
    if context.job.preset.layers.looped_experts:
        from ops.experts.loop import looped_experts

        return looped_experts(context, moe, own_rows)
    around = _exchange(context, moe, own_rows)
    width = moe.routed_hidden(context.model.hidden)
    return sequence(
        _latent(context, moe, Role.LATENT_DOWN, own_rows) if moe.latent_hidden else Pass(),
        around.dispatch,
        fold(context, around.rows, width, entering=True),
        around.sort,
        expert_mlp(context, moe, around.rows * context.layout.etp),
        around.unsort,
        fold(context, around.rows, width, entering=False),
        around.combine,
        _latent(context, moe, Role.LATENT_UP, own_rows) if moe.latent_hidden else Pass(),
    )


def _exchange(context: LayerContext, moe: MoeSpec, own_rows: IntArray) -> Exchange:
    """Returns the operations of the job's dispatcher around the experts for ``own_rows`` tokens per rank."""
    job = context.job
    if job.sends_tokens_once and job.capacity_factor(moe) is None:
        from ops.experts.dispatchers import send_tokens_once

        return send_tokens_once(context, moe, own_rows)
    if job.moe_dispatcher == "all_gather":
        from ops.experts.dispatchers import gather_tokens

        return gather_tokens(context, moe, own_rows)
    # With a capacity tokens travel by the all-to-all dispatcher whatever the job names: only that one pads.
    return all_to_all(context, moe, own_rows)


def _latent(context: LayerContext, moe: MoeSpec, role: Role, rows: IntArray) -> Pass:
    """Returns the product into the experts' latent, or the one out of it; every rank has both whole and works on its
    own tokens (Megatron-LM moe_layer.py, fc1_latent_proj and fc2_latent_proj: duplicated). The first reads what the
    router or the shared experts save; low-precision linears save a copy of their own each."""
    hidden, latent = context.model.hidden, moe.latent_hidden
    inputs, outputs = (hidden, latent) if role is Role.LATENT_DOWN else (latent, hidden)
    keeps = role is Role.LATENT_UP or context.job.precision.low_precision_linear
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


FP32_PRODUCTS = "tf32"


def _fp32_gradients(context: LayerContext, scores: Pass) -> Pass:
    """Returns the product ``scores`` of a router whose scores are fp32 (Megatron-Core, moe_router_dtype fp32), with
    its gradients; that of its result is fp32 already.

    ``megatron/core/transformer/moe/moe_utils.py`` (core 0.13 and later), RouterGatingLinearFunction: forward one
    product of 16-bit operands with an fp32 result; backward weight and input are copied to fp32, both products run on
    fp32 operands alone, that is in TF32 (Transformer Engine ``common/gemm/cublaslt_gemm.cu``:
    CUBLAS_COMPUTE_32F_FAST_TF32), and both results are copied back.
    """
    backward: list[Op] = []
    for op in scores.backward:
        if isinstance(op, BatchedGemm):
            backward += [
                _copy(context, op, "widen", op.k * op.n),
                replace(op, dtype=FP32_PRODUCTS),
                _copy(context, op, "narrow", op.m * op.n),
            ]
        else:
            backward.append(op)
    return Pass(forward=scores.forward, backward=tuple(backward))


def _copy(context: LayerContext, op: BatchedGemm, word: str, elements: IntArray) -> Op:
    """Returns ``elements`` brought to fp32 or back, as a copy within the activations' format of as many bytes."""
    own = context.job.precision.activation
    share = (dtype_bytes(own) + dtype_bytes(FP32_PRODUCTS)) / (2.0 * dtype_bytes(own))
    what = op.key.served_by(Role.CAST, f"{op.name}.{word}")
    return memory_pass(what, op.phase, "copy", np.ceil(elements * share).astype(np.int64), own)
