"""Attention: projections, rotary, attention kernel, output."""

from dataclasses import replace

import numpy as np

from ops.context import LayerContext
from ops.head_exchange import HeadTensor, HeadTensors
from ops.linear import Linear, keeps_narrow_inputs, linear, shares_kept_inputs
from ops.memory_bound import Kernel, kernel
from ops.mixers.context_parallel import parts_of_sequence
from ops.mixers.copied_heads import (
    copied_heads,
    repeated_heads,
    repeats_keys,
    split_heads,
)
from ops.mixers.documents import documents_of, span
from ops.mixers.mixer_row import MixerRow
from ops.mixers.projections import core_heads, core_length, into_mixer, out_of_mixer, projected_heads
from ops.mixers.sinks import with_sinks
from ops.mixers.unfused_attention import joined_heads, score_kernels, score_saved_bytes, split_projection
from ops.narrow_attention import casts_around, is_narrow, kept_share
from ops.op import Attention, Phase, Piece, sequence
from ops.roles import Module, OpKey, Role
from ops.strategies.narrow_gather import cast_parts
from ops.strategies.sharding import Sharding
from spec.arrays import FloatArray, IntArray, ceil_div
from spec.mixers.attention import AttentionKind, AttentionSpec
from spec.model import PositionKind

# MLA's latents: the product that makes one and the product that reads it.
LATENTS = {"q": (Role.Q_DOWN, Role.Q_UP), "kv": (Role.KV_DOWN, Role.KV_UP)}


def _project(context: LayerContext, sharding: Sharding, attention: AttentionSpec) -> Piece:
    """Queries, keys and values, normed and rotated."""
    if attention.kind is AttentionKind.MLA:
        return _mla_projections(context, sharding, attention)
    return _projections(context, sharding, attention)


def _output(context: LayerContext, sharding: Sharding, attention: AttentionSpec) -> Piece:
    """The heads' outputs, gated where the layer gates them, times the output matrix."""
    inputs = projected_heads(context, sharding, attention.num_heads) * attention.v_dim
    key = OpKey(Module.ATTENTION, Role.OUT)
    kept = context.job.flash_attention
    product = out_of_mixer(context, sharding, key, inputs, bias=attention.out_bias, kept_whole=kept)
    return sequence(_gate(context, sharding, inputs), product) if attention.output_gate else product


def _gate(context: LayerContext, sharding: Sharding, width: IntArray) -> Piece:
    """Each channel times the sigmoid of its gate, as one kernel that keeps both (Megatron-LM attention.py,
    _apply_output_gate)."""
    rows = ceil_div(context.tokens, sharding.gemm_shards(context.layout))
    gated = Kernel(
        module=Module.ATTENTION,
        role=Role.OUTPUT_GATE,
        kernel="swiglu",
        rows=rows,
        width=width,
        saved_bytes=2.0 * context.activations(rows, width),
    )
    return kernel(context, gated)


def _exchanged(attention: AttentionSpec) -> HeadTensors:
    """Queries, keys and values, and the output."""
    queries, keys = attention.num_heads, attention.num_kv_heads
    return HeadTensors(
        module=Module.ATTENTION,
        into=(
            HeadTensor(name="q", heads=queries, dim=attention.qk_dim),
            HeadTensor(name="k", heads=keys, dim=attention.qk_dim),
            HeadTensor(name="v", heads=keys, dim=attention.v_dim),
        ),
        out=(HeadTensor(name="out", heads=queries, dim=attention.v_dim),),
    )


def _projections(context: LayerContext, sharding: Sharding, attention: AttentionSpec) -> Piece:
    """One fused query-key-value GEMM, q/k norms and rotary embedding."""
    gemm_rows = ceil_div(context.tokens, sharding.gemm_shards(context.layout))
    heads = projected_heads(context, sharding, attention.num_heads)
    kv_heads = projected_heads(context, sharding, attention.num_kv_heads)
    q_width = heads * attention.qk_dim
    k_width = kv_heads * attention.qk_dim
    gates = heads * attention.v_dim * attention.output_gate
    width = q_width + gates + k_width + kv_heads * attention.v_dim
    qkv = OpKey(Module.ATTENTION, Role.QKV)
    matrices = 1 if context.job.preset.layers.joined_qkv else 3
    pieces = [into_mixer(context, sharding, qkv, width, bias=attention.qkv_bias, matrices=matrices)]
    if not context.job.flash_attention:
        pieces.append(split_projection(context, attention, gemm_rows, width))
    elif context.job.preset.layers.copies_heads:
        pieces.append(copied_heads(context, attention, gemm_rows, (q_width + gates, width - q_width - gates)))
    elif context.job.preset.layers.splits_joined_qkv and context.model.position is PositionKind.ROTARY:
        pieces.append(split_heads(context, attention, gemm_rows, (heads, kv_heads)))
    if attention.qk_norm:
        pieces.append(_qk_norm(context, attention, gemm_rows, heads + kv_heads))
    if context.model.position is PositionKind.ROTARY:
        pieces.append(_rotary(context, gemm_rows, q_width + k_width))
    if repeats_keys(context, attention):
        pieces.append(repeated_heads(context, attention, gemm_rows, (heads, kv_heads)))
    return sequence(*pieces)


def _qk_norm(context: LayerContext, attention: AttentionSpec, rows: IntArray, heads: IntArray) -> Piece:
    """A norm over every query and key head; one over all heads at once moves the same bytes."""
    return kernel(
        context,
        Kernel(
            module=Module.ATTENTION,
            role=Role.NORM,
            serves=Role.QKV,
            name="attention.qk_norm",
            kernel=context.model.norm.kernel,
            rows=rows * heads,
            width=attention.qk_dim,
            saved_bytes=context.activations(rows * heads, attention.qk_dim),
            parameters=attention.qk_norm_parameters,
        ),
    )


def _rotary(context: LayerContext, rows: IntArray, width: IntArray) -> Piece:
    """Rotation of queries and keys; its backward needs only the angles. Where values are a view of the joined product,
    that stays whole beside what was rotated; the host may wait for the device first (Host.reads_positions)."""
    rotated = kernel(
        context,
        Kernel(
            module=Module.ATTENTION,
            role=Role.ROTARY,
            kernel="rotary_unfused" if "rotary" in context.job.unfused else "rotary",
            rows=rows,
            width=width,
            saved_bytes=context.activations(rows, width) * context.job.preset.layers.keeps_joined_qkv,
        ),
    )
    waits = context.job.preset.host.reads_positions
    forward = tuple(replace(op, synchronises=waits) for op in rotated.forward)
    return replace(rotated, forward=forward)


def _mla_projections(context: LayerContext, sharding: Sharding, attention: AttentionSpec) -> Piece:
    """DeepSeek-V2's low-rank projections (arXiv 2405.04434 sec. 2.1.2, eq. 9-19).

    The down projections are small and every rank computes them for its own tokens; the up
    projections are cut over heads.
    """
    layout = context.layout
    gemm_rows = ceil_div(context.tokens, sharding.gemm_shards(layout))
    saved_rows = ceil_div(context.tokens, sharding.saved_input_shards(layout))
    own_rows = ceil_div(context.tokens, np.maximum(sharding.norm_shards(layout), 1))
    heads = projected_heads(context, sharding, attention.num_heads)
    nope = attention.qk_dim - attention.rope_dim
    hidden = context.model.hidden
    own_input = context.activations(own_rows, hidden)
    pieces: list[Piece] = []

    def down(name: str, rank: int, extra: int, saved: FloatArray) -> list[Piece]:
        role, next_role = LATENTS[name]
        layer = Linear(
            module=Module.ATTENTION,
            role=role,
            tokens=own_rows,
            inputs=layout.constant(hidden),
            outputs=layout.constant(rank + extra),
            saved_bytes=saved,
        )
        latent_norm = Kernel(
            module=Module.ATTENTION,
            role=Role.NORM,
            serves=next_role,
            name=f"{Module.ATTENTION}.{name}_norm",
            kernel=context.model.norm.kernel,
            rows=own_rows,
            width=rank,
            saved_bytes=context.activations(own_rows, rank),
            parameters=rank,
        )
        return [
            sharding.weights(context, layer.key, layer.inputs * layer.outputs),
            linear(context, layer),
            kernel(context, latent_norm),
        ]

    def up(role: Role, inputs: int, outputs: IntArray, entering: int = 0) -> list[Piece]:
        layer = Linear(
            module=Module.ATTENTION,
            role=role,
            tokens=gemm_rows,
            inputs=layout.constant(inputs),
            outputs=outputs,
            saved_bytes=context.activations(saved_rows, inputs),
            input_parts=cast_parts(context, sharding, OpKey(Module.ATTENTION, role)),
        )
        return [
            sharding.enter(context, layer.key, entering or inputs),
            sharding.weights(context, layer.key, layer.inputs * layer.outputs),
            linear(context, layer),
        ]

    q_width = heads * attention.qk_dim
    if attention.q_lora_rank:
        pieces += down("q", attention.q_lora_rank, 0, own_input)
        pieces += up(Role.Q_UP, attention.q_lora_rank, q_width)
    else:
        pieces += up(Role.Q_UP, hidden, q_width)
    # Products that keep their inputs narrow each cast their own.
    shares = attention.q_lora_rank and not keeps_narrow_inputs(context)
    shared_input = 0.0 * own_input if shares else own_input
    pieces += down("kv", attention.kv_lora_rank, attention.rope_dim, shared_input)
    kv_entering = attention.kv_lora_rank + attention.rope_dim
    pieces += up(Role.KV_UP, attention.kv_lora_rank, heads * (nope + attention.v_dim), kv_entering)
    pieces.append(_rotary(context, gemm_rows, (heads + 1) * attention.rope_dim))
    return sequence(*pieces)


def _core(context: LayerContext, sharding: Sharding, attention: AttentionSpec) -> Piece:
    """The attention kernel over this rank's heads and the keys of the whole sequence.

    Saved: q, k, v and, with flash attention, one fp32 statistic per row and head (arXiv 2205.14135 sec. 3.1); without
    it table 2 of arXiv 2205.05198: the softmax output, and with dropout its mask and the dropped output.
    """
    layout, job = context.layout, context.job
    exchanged = context.exchanges_context
    heads = core_heads(context, attention.num_heads)
    latent = attention.kind is AttentionKind.MLA
    kv_heads = heads if latent else core_heads(context, attention.num_kv_heads)
    length = core_length(context)
    rows = layout.micro_batch * length
    read = heads if repeats_keys(context, attention) else kv_heads
    inputs = context.activations(rows, heads * attention.qk_dim + read * (attention.qk_dim + attention.v_dim))
    kv_len = layout.constant(job.seq_len)
    # Where an exchange follows, or a product keeps its input narrow, the kernel's own output and that input are two tensors.
    narrow = keeps_narrow_inputs(context) and not (shares_kept_inputs(context) or attention.output_gate)
    kept_narrow = (narrow and job.flash_attention) or is_narrow(context)
    apart = exchanged or (context.exchanges_heads | kept_narrow)
    own_output = context.activations(rows, heads * attention.v_dim) * apart
    saved = (inputs + own_output) * kept_share(context) + 4.0 * rows * heads
    if not job.flash_attention:
        scores = (rows * heads * kv_len).astype(np.float64)
        saved = inputs + own_output + score_saved_bytes(job, attention) * scores
    documents, document = documents_of(context, attention, length)
    forward = Attention(
        module=Module.ATTENTION,
        role=Role.CORE,
        phase=Phase.FORWARD,
        batch=layout.micro_batch * documents,
        q_len=document,
        kv_len=document,
        heads=heads,
        kv_heads=kv_heads,
        qk_dim=layout.constant(attention.qk_dim),
        v_dim=layout.constant(attention.v_dim),
        mask="window" if attention.window else "varlen" if span(job, attention) else "causal",
        window=layout.constant(attention.window or 0),
        kernel=job.attention_kernel if job.flash_attention else "core",
        dtype=job.precision.attention,
        saved_bytes=saved,
        input_bytes=inputs,
    )
    pieces = [_with_backward(forward), casts_around(context, inputs, own_output)]
    if attention.sinks:
        owned = projected_heads(context, sharding, attention.num_heads)
        pieces[0] = with_sinks(context, pieces[0], owned, rows * heads)
    if not exchanged:
        pieces.append(parts_of_sequence(context, attention, forward))
    if not job.flash_attention:
        pieces.append(score_kernels(context, attention, rows * heads, kv_len))
        pieces.append(joined_heads(context, rows, heads * attention.v_dim))
    return sequence(*pieces)


def _with_backward(forward: Attention) -> Piece:
    backward = replace(
        forward, phase=Phase.INPUT_GRAD, direction="backward", saved_bytes=0.0 * forward.saved_bytes
    )
    return Piece(forward=(forward,), backward=(backward,))


ATTENTION = MixerRow(
    module=Module.ATTENTION,
    project=_project,
    core=_core,
    output=_output,
    exchanged=_exchanged,
    context_parallel=frozenset({"ring", "all_gather", "all_to_all"}),
    whole_rows=lambda attention: attention.sinks,
)
