"""Attention: projections, rotary, attention kernel, output."""

from dataclasses import replace

import numpy as np

from ops.context import LayerContext
from ops.linear import Linear, linear
from ops.memory_bound import Kernel, kernel
from ops.mixers.context_parallel import exchanges, ring_steps
from ops.mixers.mixer_row import MixerRow
from ops.mixers.unfused_attention import joined_heads, score_kernels, score_saved_bytes, split_projection
from ops.op import Attention, Phase, Piece, sequence
from ops.strategies.sharding import Sharding
from spec.arrays import FloatArray, IntArray, ceil_div
from spec.mixers.attention import AttentionKind, AttentionSpec
from spec.model import PositionKind


def local_heads(sharding: Sharding, context: LayerContext, heads: int) -> IntArray:
    """Heads whose projections one rank computes; fewer heads than ranks are replicated."""
    shards = sharding.weight_shards(context.layout)
    return np.maximum(ceil_div(context.layout.constant(heads), shards), 1)


def attention_operations(context: LayerContext, sharding: Sharding, attention: AttentionSpec) -> Piece:
    """From the projection of queries, keys and values to that of the output."""
    layout = context.layout
    gemm_rows = ceil_div(context.tokens, sharding.gemm_shards(layout))
    saved_rows = ceil_div(context.tokens, sharding.saved_input_shards(layout))
    heads = local_heads(sharding, context, attention.num_heads)
    project = _mla_projections if attention.kind is AttentionKind.MLA else _projections
    before, after = sharding.around_attention(context, attention)
    cp_before, cp_after = exchanges(context, attention)
    hidden = context.model.hidden
    out_inputs = heads * attention.v_dim
    out = Linear(
        name="attention.out",
        tokens=gemm_rows,
        inputs=out_inputs,
        outputs=layout.constant(hidden),
        saved_bytes=context.activations(gemm_rows, out_inputs),
        bias=attention.out_bias,
    )
    return sequence(
        project(context, sharding, attention, (gemm_rows, saved_rows)),
        before,
        cp_before,
        attention_core(context, attention),
        cp_after,
        after,
        sharding.weights(context, out.name, out.inputs * out.outputs),
        linear(context, out),
        sharding.leave(context, out.name),
    )


def _projections(
    context: LayerContext, sharding: Sharding, attention: AttentionSpec, rows: tuple[IntArray, IntArray]
) -> Piece:
    """One fused query-key-value GEMM, q/k norms and rotary embedding."""
    gemm_rows, saved_rows = rows
    heads = local_heads(sharding, context, attention.num_heads)
    kv_heads = local_heads(sharding, context, attention.num_kv_heads)
    q_width = heads * attention.qk_dim
    k_width = kv_heads * attention.qk_dim
    hidden = context.model.hidden
    qkv = Linear(
        name="attention.qkv",
        tokens=gemm_rows,
        inputs=context.layout.constant(hidden),
        outputs=q_width + k_width + kv_heads * attention.v_dim,
        saved_bytes=context.activations(saved_rows, hidden),
        bias=attention.qkv_bias,
        after_norm=True,
    )
    pieces = [
        sharding.enter(context, qkv.name, hidden),
        sharding.weights(context, qkv.name, qkv.inputs * qkv.outputs),
        linear(context, qkv),
    ]
    if not context.job.flash_attention:
        pieces.append(split_projection(context, attention, gemm_rows, qkv.outputs))
    if attention.qk_norm:
        pieces.append(_qk_norm(context, attention, gemm_rows, heads + kv_heads))
    if context.model.position is PositionKind.ROTARY:
        pieces.append(_rotary(context, gemm_rows, q_width + k_width))
    return sequence(*pieces)


def _qk_norm(context: LayerContext, attention: AttentionSpec, rows: IntArray, heads: IntArray) -> Piece:
    """A norm over every query and key head, with one weight vector for queries and one for keys."""
    return kernel(
        context,
        Kernel(
            name="attention.qk_norm",
            kernel=context.model.norm.value,
            rows=rows * heads,
            width=attention.qk_dim,
            saved_bytes=context.activations(rows * heads, attention.qk_dim),
            parameters=2 * attention.qk_dim,
        ),
    )


def _rotary(context: LayerContext, rows: IntArray, width: IntArray) -> Piece:
    """Rotation of queries and keys; its backward needs only the angles."""
    return kernel(
        context,
        Kernel(
            name="attention.rotary",
            kernel="rotary_unfused" if "rotary" in context.job.unfused else "rotary",
            rows=rows,
            width=width,
            saved_bytes=0.0 * rows,
        ),
    )


def _mla_projections(
    context: LayerContext, sharding: Sharding, attention: AttentionSpec, rows: tuple[IntArray, IntArray]
) -> Piece:
    """DeepSeek-V2's low-rank projections (arXiv 2405.04434 sec. 2.1.2, eq. 9-19).

    The down projections are small and every rank computes them for its own tokens; the up
    projections are cut over heads.
    """
    gemm_rows, saved_rows = rows
    layout = context.layout
    own_rows = ceil_div(context.tokens, np.maximum(sharding.norm_shards(layout), 1))
    heads = local_heads(sharding, context, attention.num_heads)
    nope = attention.qk_dim - attention.rope_dim
    hidden = context.model.hidden
    own_input = context.activations(own_rows, hidden)
    pieces: list[Piece] = []

    def down(name: str, rank: int, extra: int, saved: FloatArray) -> list[Piece]:
        layer = Linear(
            name=f"attention.{name}_down",
            tokens=own_rows,
            inputs=layout.constant(hidden),
            outputs=layout.constant(rank + extra),
            saved_bytes=saved,
        )
        latent_norm = Kernel(
            name=f"attention.{name}_norm",
            kernel=context.model.norm.value,
            rows=own_rows,
            width=rank,
            saved_bytes=context.activations(own_rows, rank),
            parameters=rank,
        )
        return [
            sharding.weights(context, layer.name, layer.inputs * layer.outputs),
            linear(context, layer),
            kernel(context, latent_norm),
        ]

    def up(name: str, inputs: int, outputs: IntArray, entering: int = 0) -> list[Piece]:
        layer = Linear(
            name=f"attention.{name}_up",
            tokens=gemm_rows,
            inputs=layout.constant(inputs),
            outputs=outputs,
            saved_bytes=context.activations(saved_rows, inputs),
        )
        return [
            sharding.enter(context, layer.name, entering or inputs),
            sharding.weights(context, layer.name, layer.inputs * layer.outputs),
            linear(context, layer),
        ]

    q_width = heads * attention.qk_dim
    if attention.q_lora_rank:
        pieces += down("q", attention.q_lora_rank, 0, own_input)
        pieces += up("q", attention.q_lora_rank, q_width)
    else:
        pieces += up("q", hidden, q_width)
    shared_input = 0.0 * own_input if attention.q_lora_rank else own_input
    pieces += down("kv", attention.kv_lora_rank, attention.rope_dim, shared_input)
    kv_entering = attention.kv_lora_rank + attention.rope_dim
    pieces += up("kv", attention.kv_lora_rank, heads * (nope + attention.v_dim), kv_entering)
    pieces.append(_rotary(context, gemm_rows, (heads + 1) * attention.rope_dim))
    return sequence(*pieces)


def attention_core(context: LayerContext, attention: AttentionSpec) -> Piece:
    """The attention kernel over this rank's heads and the keys of the whole sequence.

    Saved: q, k, v and, with flash attention, one fp32 statistic per row and head (arXiv 2205.14135
    sec. 3.1); without it table 2 of arXiv 2205.05198: the softmax output, and with dropout its mask and
    the dropped output.
    """
    layout, job = context.layout, context.job
    exchanged = job.context_parallel == "all_to_all"
    cut = layout.tp * layout.cp if exchanged else layout.tp
    heads = np.maximum(ceil_div(layout.constant(attention.num_heads), cut), 1)
    kv_heads = np.maximum(ceil_div(layout.constant(attention.num_kv_heads), cut), 1)
    if attention.kind is AttentionKind.MLA:
        kv_heads = heads
    length = layout.constant(job.seq_len) if exchanged else context.sequence
    rows = layout.micro_batch * length
    inputs = context.activations(
        rows, heads * attention.qk_dim + kv_heads * (attention.qk_dim + attention.v_dim)
    )
    kv_len = layout.constant(job.seq_len)
    # Where an exchange follows, the kernel's own output and the next linear's input are two tensors.
    own_output = context.activations(rows, heads * attention.v_dim) * (exchanged or context.exchanges_heads)
    saved = inputs + own_output + 4.0 * rows * heads
    if not job.flash_attention:
        saved = inputs + own_output + score_saved_bytes(job) * (rows * heads * kv_len).astype(np.float64)
    forward = Attention(
        name="attention.core",
        phase=Phase.FORWARD,
        batch=layout.micro_batch,
        q_len=length,
        kv_len=length,
        heads=heads,
        kv_heads=kv_heads,
        qk_dim=attention.qk_dim,
        v_dim=attention.v_dim,
        mask="window" if attention.window else "causal",
        window=attention.window or 0,
        kernel=job.attention_kernel if job.flash_attention else "core",
        dtype=job.precision.attention,
        saved_bytes=saved,
        input_bytes=inputs,
    )
    pieces = [_with_backward(forward)]
    if not exchanged:
        pieces.append(ring_steps(context, attention, forward))
    if not job.flash_attention:
        pieces.append(score_kernels(context, rows * heads, kv_len))
        pieces.append(joined_heads(context, rows, heads * attention.v_dim))
    return sequence(*pieces)


def _with_backward(forward: Attention) -> Piece:
    backward = replace(
        forward, phase=Phase.INPUT_GRAD, direction="backward", saved_bytes=0.0 * forward.saved_bytes
    )
    return Piece(forward=(forward,), backward=(backward,))


ATTENTION = MixerRow(operations=attention_operations, context_parallel=frozenset({"ring", "all_to_all"}))
