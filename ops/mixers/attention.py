"""Attention: projections, rotary, attention kernel, output."""

from dataclasses import replace

import numpy as np

from ops.context import HeadTensor, HeadTensors, LayerContext
from ops.linear import column_parallel, linear, weight_collectives
from ops.memory_bound import Kernel, kernel
from ops.mixers.attention_kernels import (
    copy_heads,
    join_heads,
    repeat_heads,
    repeats_keys,
    score_kernels,
    score_saved_bytes,
    split_heads,
    split_projection,
)
from ops.mixers.mixer import MixerRow, core_heads, into_mixer, out_of_mixer, projected_heads
from ops.op import Attention, Linear, Pass, Phase, sequence
from ops.roles import Module, OpKey, Role
from spec.arrays import BoolArray, FloatArray, IntArray, ceil_div
from spec.mixers.attention import WITH_BIAS, AttentionKind, AttentionSpec
from spec.model import PositionKind

# MLA's latents: the product that makes one and the product that reads it.
LATENTS = {"q": (Role.Q_DOWN, Role.Q_UP), "kv": (Role.KV_DOWN, Role.KV_UP)}


def output(context: LayerContext, attention: AttentionSpec) -> Pass:
    """Returns the heads' outputs, gated where the layer gates them, times the output matrix."""
    inputs = projected_heads(context, attention.num_heads) * attention.v_dim
    key = OpKey(Module.ATTENTION, Role.OUT)
    saved_elsewhere = context.job.flash_attention
    product = out_of_mixer(context, key, inputs, bias=attention.out_bias, saved_elsewhere=saved_elsewhere)
    if attention.differential:
        product = sequence(_difference(context, attention, inputs), product)
    if attention.inner_norm:
        product = sequence(_inner_norm(context, inputs, attention.inner_norm), product)
    return sequence(_gate(context, attention, inputs), product) if attention.gates else product


def _difference(context: LayerContext, attention: AttentionSpec, width: IntArray) -> Pass:
    """Returns transformers models/diffllama/modeling_diffllama.py: both calls' outputs joined in one tensor, one half less the other's
    share, and a norm of each pair of heads, which keeps its input; the share is one number."""
    rows, key = context.gemm_rows, OpKey(Module.ATTENTION, Role.OUT)
    joined = Kernel(key.served_by(Role.COPY, "attention.join_calls"), "copy", rows, 2 * width)
    less = Kernel(
        key.served_by(Role.JOIN_HEADS, "attention.difference"), "add", rows, width, parameters=4 * attention.qk_dim
    )
    pairs = np.maximum(width // (2 * attention.v_dim), 1)
    normed = Kernel(
        key.served_by(Role.NORM, "attention.pair_norm"),
        context.model.norm.kernel,
        rows * pairs,
        2 * attention.v_dim,
        saved_bytes=context.activations(rows, width),
    )
    return sequence(*(kernel(context, each) for each in (joined, less, normed)))


def _inner_norm(context: LayerContext, width: IntArray, vectors: int) -> Pass:
    """Returns a norm over the heads' outputs on a rank, whose weights are cut as the heads are."""
    rows = context.gemm_rows
    what = OpKey(Module.ATTENTION, Role.NORM, Role.OUT).named("attention.inner_norm")
    saved = context.activations(rows, width)
    return kernel(
        context, Kernel(what, context.model.norm.kernel, rows, width, saved_bytes=saved, parameters=vectors * width)
    )


def _gate(context: LayerContext, attention: AttentionSpec, width: IntArray) -> Pass:
    """Returns each channel times the sigmoid of its gate, as one kernel that keeps both (Megatron-LM attention.py,
    _apply_output_gate); gates of whole heads are few beside the channels, which are read and written like a norm's."""
    rows = context.gemm_rows
    gates = width // attention.v_dim * (attention.gates // attention.num_heads)
    gated = Kernel(
        OpKey(Module.ATTENTION, Role.OUTPUT_GATE),
        "swiglu" if attention.output_gate else "gelu",
        rows,
        width,
        saved_bytes=context.activations(rows, width + gates),
        parameters=width // attention.v_dim * attention.gate_bias,
    )
    return kernel(context, gated)


def core_tensors(attention: AttentionSpec) -> HeadTensors:
    """Returns queries, keys and values, and the output."""
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


def projections(context: LayerContext, attention: AttentionSpec) -> Pass:
    """Returns one fused query-key-value GEMM (or MLA's low-rank ones), q/k norms and rotary embedding."""
    if attention.kind is AttentionKind.MLA:
        return _mla_projections(context, attention)
    gemm_rows = context.gemm_rows
    heads = projected_heads(context, attention.num_heads)
    kv_heads = projected_heads(context, attention.num_kv_heads)
    q_width = heads * attention.qk_dim
    k_width = kv_heads * attention.qk_dim
    # an output gate is a further part of the query's projection
    gates = heads * (attention.gates // attention.num_heads)
    width = q_width + gates + k_width + kv_heads * attention.v_dim * (not attention.keys_as_values)
    qkv = OpKey(Module.ATTENTION, Role.QKV)
    matrices = 1 if context.job.preset.layers.joined_qkv else 3
    pieces = [into_mixer(context, qkv, width, bias=attention.qkv_bias, matrices=matrices)]
    # How frameworks bring the product's result into heads: copies without a flash kernel (Megatron-LM v2), copies
    # before one (nanotron), or views, of which Transformer Engine copies some.
    if not context.job.flash_attention:
        pieces.append(split_projection(context, attention, gemm_rows, width))
    elif context.job.preset.layers.copies_heads:
        pieces.append(copy_heads(context, attention, gemm_rows, (q_width + gates, width - q_width - gates)))
    elif context.job.preset.layers.splits_joined_qkv and context.model.position is PositionKind.ROTARY:
        pieces.append(split_heads(context, attention, gemm_rows, (heads, kv_heads)))
    if attention.qk_norm:
        normed = heads + kv_heads * (1 + attention.value_norm)
        pieces.append(_qk_norm(context, attention, gemm_rows, normed))
    if context.model.position is PositionKind.ROTARY:
        pieces.append(_rotary(context, gemm_rows, q_width + k_width))
    if context.job.preset.layers.repeats_keys and repeats_keys(context, attention):
        pieces.append(repeat_heads(context, attention, gemm_rows, (heads, kv_heads)))
    return sequence(*pieces)


def _qk_norm(context: LayerContext, attention: AttentionSpec, rows: IntArray, heads: IntArray) -> Pass:
    """Returns a norm over every query and key head; one over all heads at once moves the same bytes."""
    return kernel(
        context,
        Kernel(
            OpKey(Module.ATTENTION, Role.NORM, Role.QKV).named("attention.qk_norm"),
            "layernorm" if attention.qk_norm_weights in WITH_BIAS else context.model.norm.kernel,
            rows * heads,
            attention.qk_dim,
            saved_bytes=context.activations(rows * heads, attention.qk_dim),
            parameters=attention.qk_norm_parameters,
        ),
    )


def _rotary(context: LayerContext, rows: IntArray, width: IntArray) -> Pass:
    """Returns the rotation of queries and keys; its backward needs only the angles. Where values are a view of the
    joined product, that stays whole beside what was rotated; the host may wait for the device first
    (Host.reads_positions)."""
    rotated = kernel(
        context,
        Kernel(
            OpKey(Module.ATTENTION, Role.ROTARY),
            "rotary_unfused" if "rotary" in context.job.unfused else "rotary",
            rows,
            width,
            saved_bytes=context.activations(rows, width) * context.job.preset.layers.keeps_joined_qkv,
        ),
    )
    waits = context.job.preset.host.reads_positions
    forward = tuple(replace(op, synchronises=waits) for op in rotated.forward)
    return replace(rotated, forward=forward)


def _mla_projections(context: LayerContext, attention: AttentionSpec) -> Pass:
    """Returns DeepSeek-V2's low-rank projections (arXiv 2405.04434 sec. 2.1.2, eq. 9-19).

    The down projections are small and every rank computes them for its own tokens; the up
    projections are cut over heads.
    """
    layout, rows, own_rows = context.layout, context.gemm_rows, context.norm_rows
    heads = projected_heads(context, attention.num_heads)
    nope = attention.qk_dim - attention.rope_dim
    hidden = context.model.hidden
    own_input = context.activations(own_rows, hidden)

    def down(name: str, rank: int, extra: int, saved: FloatArray) -> Pass:
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
            OpKey(Module.ATTENTION, Role.NORM, next_role).named(f"{Module.ATTENTION}.{name}_norm"),
            context.model.norm.kernel,
            own_rows,
            rank,
            saved_bytes=context.activations(own_rows, rank),
            parameters=rank,
        )
        return sequence(*weight_collectives(context, layer), linear(context, layer), kernel(context, latent_norm))

    def up(role: Role, inputs: int, outputs: IntArray, entering: int) -> Pass:
        layer = Linear(
            module=Module.ATTENTION,
            role=role,
            tokens=rows,
            inputs=layout.constant(inputs),
            outputs=outputs,
            saved_bytes=context.activations(context.saved_rows, inputs),
            gathered="input",
        )
        return column_parallel(context, layer, width=entering)

    # Both down projections read one input, of which low-precision products each keep their own copy.
    q_rank, kv_rank = attention.q_lora_rank, attention.kv_lora_rank
    shares = bool(q_rank)
    if shares and context.job.precision.low_precision_linear:
        from ops.low_precision import keeps_low_precision

        shares = not keeps_low_precision(context)
    q_inputs = q_rank or hidden
    rotates = context.model.position is PositionKind.ROTARY and attention.rope_dim
    index = Pass()
    if attention.index_heads:
        from ops.mixers.indexer import index_projections

        index = index_projections(context, attention)
    q_outputs = heads * attention.qk_dim
    joined = Pass()
    if attention.latent_gates:
        q_inputs, q_outputs = 2 * q_rank, q_outputs + heads * attention.v_dim
        copied = OpKey(Module.ATTENTION, Role.COPY, Role.Q_UP).named("attention.join_latents")
        joined = kernel(context, Kernel(copied, "copy", own_rows, q_inputs))
    return sequence(
        down("q", q_rank, 0, own_input) if q_rank else Pass(),
        joined,
        up(Role.Q_UP, q_inputs, q_outputs, q_inputs),
        down("kv", kv_rank, attention.rope_dim, 0.0 * own_input if shares else own_input),
        up(Role.KV_UP, kv_rank, heads * (nope + attention.v_dim), kv_rank + attention.rope_dim),
        _rope_key_norm(context, attention) if attention.rope_key_norm else Pass(),
        _rotary(context, rows, (heads + 1) * attention.rope_dim) if rotates else Pass(),
        _position_scale(context, attention, heads) if attention.position_scale else Pass(),
        index,
        _latent_gates(context, attention, heads) if attention.gates and not attention.latent_gates else Pass(),
    )


def _rope_key_norm(context: LayerContext, attention: AttentionSpec) -> Pass:
    """Returns the norm of the key that all heads share, over a rank's own tokens."""
    rows, width = context.norm_rows, attention.rope_dim
    what = OpKey(Module.ATTENTION, Role.NORM, Role.ROTARY).named("attention.rope_key_norm")
    saved = context.activations(rows, width)
    return kernel(context, Kernel(what, context.model.norm.kernel, rows, width, saved_bytes=saved, parameters=width))


def _position_scale(context: LayerContext, attention: AttentionSpec, heads: IntArray) -> Pass:
    """Returns queries times a number for each position and head, which keeps them (transformers
    models/mistral_large4/modeling_mistral_large4.py, MistralLarge4TextSoftmaxScaling); an indexer's queries, which are few, pass too."""
    rows, width = context.gemm_rows, heads * attention.qk_dim + attention.index_heads * attention.index_dim
    what = OpKey(Module.ATTENTION, Role.ACTIVATION, Role.Q_UP).named("attention.position_scale")
    parameters = 2 * (heads + attention.index_heads)
    saved = context.activations(rows, heads * attention.qk_dim)
    return kernel(context, Kernel(what, "gelu", rows, width, saved_bytes=saved, parameters=parameters))


def _latent_gates(context: LayerContext, attention: AttentionSpec, heads: IntArray) -> Pass:
    """Returns the product that gates the outputs of latent attention: of the hidden states, which the down projections keep."""
    layer = Linear(
        module=Module.ATTENTION,
        role=Role.GATE,
        tokens=context.gemm_rows,
        inputs=context.layout.constant(context.model.hidden),
        outputs=heads * (attention.gates // attention.num_heads),
        saved_bytes=0.0 * context.gemm_rows,
        gathered="input",
    )
    return column_parallel(context, layer)


def core(context: LayerContext, attention: AttentionSpec) -> Pass:
    """Returns the attention kernel over this rank's heads and the keys of the whole sequence.

    Saved: q, k, v and, with flash attention, one fp32 statistic per row and head (arXiv 2205.14135 sec. 3.1); without
    it table 2 of arXiv 2205.05198: the softmax output, and with dropout its mask and the dropped output.
    """
    if attention.index_topk:
        from ops.mixers.indexer import absorbed, sparse_core

        return sparse_core(context, attention, core(context, absorbed(attention)))
    layout, job = context.layout, context.job
    low_precision = job.precision.low_precision_attention
    heads, length = core_heads(context, attention.num_heads), context.core_sequence
    rows, kv_heads = layout.micro_batch * length, heads
    if attention.kind is not AttentionKind.MLA:
        kv_heads = core_heads(context, attention.num_kv_heads)
    # MLA and repeated keys have a key for every query head.
    read = heads if job.preset.layers.repeats_keys and repeats_keys(context, attention) else kv_heads
    inputs = context.activations(rows, heads * attention.qk_dim + read * (attention.qk_dim + attention.v_dim))
    outputs = context.activations(rows, heads * attention.v_dim) * _keeps_output(context, attention)
    if job.flash_attention:
        saved = inputs + outputs
        if low_precision:
            from ops.low_precision import attention_saved_share

            saved = saved * attention_saved_share(context)
        saved = saved + 4.0 * rows * heads
    else:
        # s x s scores for each head: the one term that grows with the square of the sequence
        num_scores = (rows * heads * layout.constant(job.seq_len)).astype(np.float64)
        saved = inputs + outputs + score_saved_bytes(job, attention) * num_scores
    forward = Attention(
        module=Module.ATTENTION,
        role=Role.CORE,
        phase=Phase.FORWARD,
        batch=layout.micro_batch,
        q_len=length,
        kv_len=length,
        heads=heads,
        kv_heads=kv_heads,
        qk_dim=layout.constant(attention.qk_dim),
        v_dim=layout.constant(attention.v_dim),
        mask="window" if attention.window else "causal",
        window=layout.constant(attention.window or 0),
        kernel=job.attention_kernel if job.flash_attention else "core",
        dtype=job.precision.attention,
        saved_bytes=saved,
        input_bytes=inputs,
    )
    if job.flash_attention and (job.document_tokens or attention.chunk):
        forward = _within_documents(context, forward, attention)
    if attention.differential:
        forward = _called_twice(context, attention, forward, rows)
    backward = replace(forward, phase=Phase.INPUT_GRAD, direction="backward", saved_bytes=0.0 * saved)
    pieces = [Pass(forward=(forward,), backward=(backward,))]
    if attention.sinks:
        owned = projected_heads(context, attention.num_heads)
        pieces[0] = _with_sinks(context, pieces[0], owned, rows * heads)
    if low_precision:
        from ops.low_precision import attention_casts

        pieces.append(attention_casts(context, inputs, outputs))
    if not context.exchanges_context and (layout.cp > 1).any():
        from ops.mixers.context_parallel import parts_of_sequence

        pieces.append(parts_of_sequence(context, attention, forward))
    if not job.flash_attention:
        scores = score_kernels(context, attention, rows * heads, layout.constant(job.seq_len))
        pieces += [scores, join_heads(context, rows, heads * attention.v_dim)]
    return sequence(*pieces)


def _called_twice(context: LayerContext, attention: AttentionSpec, call: Attention, rows: IntArray) -> Attention:
    """Returns the call and another over the other half of the values, which keeps what it gives, and values that both repeat for all
    keys."""
    width = (call.heads + call.kv_heads) * attention.v_dim
    again = context.activations(rows, width) + 4.0 * rows * call.heads
    return replace(call, repeat=2, saved_bytes=call.saved_bytes + again)


def _keeps_output(context: LayerContext, attention: AttentionSpec) -> BoolArray | bool:
    """Returns the rows in which the kernel's own output and what the next product reads are two tensors: where an
    exchange follows, or a product of another precision."""
    layout, job = context.layout, context.job
    apart: BoolArray | bool = context.exchanges_context or job.precision.low_precision_attention
    if context.traits.exchanges_heads:
        apart = apart | (layout.tp > 1)
    if job.precision.low_precision_linear and job.flash_attention and not attention.gates:
        from ops.low_precision import keeps_own_input

        apart = apart | keeps_own_input(context)
    return apart


def _within_documents(context: LayerContext, call: Attention, attention: AttentionSpec) -> Attention:
    """Returns the call within documents, or within chunks where those are shorter: their mask is block-diagonal
    (flash-attn, flash_attn_varlen_func: cu_seqlens). A ring hands on whole blocks of keys, so under it a sequence
    counts as one."""
    job, length = context.job, call.q_len
    tokens = min(span for span in (job.document_tokens, attention.chunk, job.seq_len) if span)
    if tokens >= job.seq_len:
        return call
    # A call of a batch of shorter sequences: the same tokens, fewer pairs.
    whole = (context.layout.cp > 1) & (not context.exchanges_context)
    document = np.where(whole, length, np.minimum(length, tokens))
    batch = call.batch * ceil_div(length, document)
    mask = call.mask if call.mask == "window" else "varlen"
    return replace(call, batch=batch, q_len=document, kv_len=document, mask=mask)


# Two fp32 numbers in elements of 16 bits.
READ_OF_A_ROW = 4


def _with_sinks(context: LayerContext, core: Pass, owned: IntArray, rows: IntArray) -> Pass:
    """Returns ``core`` that owns ``owned`` attention sinks on a rank, with their gradient over ``rows`` of scores: a
    logit of each head that no key belongs to, in the denominator of every row's softmax (gpt-oss).

    A flash kernel starts its denominator with it and does nothing more; backward the logits' gradient ``-sum exp(sink
    - log-sum-exp) dO.O`` is a kernel of its own over two fp32 numbers of every row and head (cuDNN's frontend, SDPA
    backward: dsink; Transformer Engine takes cuDNN for sinks, ``dot_product_attention/utils.py``,
    get_attention_backend: no FlashAttention, and of context parallelism all-to-all alone). Without a flash
    kernel they are one column more of the scores, put beside them, and the softmax is PyTorch's (Megatron-Core
    ``fusions/fused_softmax.py``, SoftmaxOne and is_kernel_available).
    """
    what = OpKey(Module.ATTENTION, Role.STATISTICS, Role.CORE).named("attention.core.sinks")
    gradient = kernel(context, Kernel(what, "bias", rows, READ_OF_A_ROW))
    owner, *others = core.forward
    return Pass(
        forward=(replace(owner, parameters=owner.parameters + owned), *others),
        backward=core.backward + gradient.backward,
    )


def refused_exchanges(attention: AttentionSpec) -> frozenset[str]:
    """Returns the kinds of context parallelism that cannot cut its sequences: a selection needs every key of a sequence,
    and all of its own heads; sinks all keys of a head at once."""
    if attention.index_topk:
        return CONTEXT_PARALLEL
    return CONTEXT_PARALLEL - {"all_to_all"} if attention.sinks else frozenset()


CONTEXT_PARALLEL = frozenset({"ring", "all_gather", "all_to_all"})
ATTENTION = MixerRow(
    module=Module.ATTENTION,
    projections=projections,
    core=core,
    output=output,
    core_tensors=core_tensors,
    context_parallel=CONTEXT_PARALLEL,
    refuses=refused_exchanges,
)
