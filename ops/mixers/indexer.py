"""The lightning indexer of DeepSeek's sparse attention, and the attention over the keys, or entries, that it selects.

Source: arXiv 2512.02556 sec. 2.1, eqs. 1 to 4: the indexer scores every key for every query, its input is detached, and it
learns from the attention over the selected keys. Megatron-LM d98e8a6 core/transformer/experimental_attention_variant:
dsa.py (DSAIndexer: projections whole on every rank of tp, of gathered tokens; scores in 16 bits; KL divergence),
ops/tilelang_dsa.py (scores in blocks of queries, the target summed over tp) and ops/sparse_mla.py (latents as the one key
of all heads).
"""

from dataclasses import dataclass, replace

import numpy as np

from ops.context import LayerContext
from ops.linear import linear, weight_collectives
from ops.memory_bound import Kernel, kernel, memory_pass
from ops.mixers.mixer import core_heads
from ops.op import Attention, Axis, Linear, Pass, Phase, collective, sequence
from ops.roles import Module, OpKey, Role
from spec.arrays import BoolArray, IntArray, ceil_div
from spec.collectives import Collective
from spec.mixers.attention import AttentionKind, AttentionSpec

FP32_BYTES = 4.0
INDEX_BYTES = 4.0
BLOCK_QUERIES = 8192
"""Queries whose scores a rank holds at a time: dsa.py, fused_indexer_block_size."""
TARGET_PASSES = 2
"""ops/tilelang_dsa.py, _compute_topk_target_chunk_sum: once for the softmax's sum, once for the probabilities."""


def index_projections(context: LayerContext, attention: AttentionSpec) -> Pass:
    """Returns the indexer's queries, and its key and the weights of its heads, which read one input. Nothing goes back
    through them: their input is detached."""
    rows = context.gemm_rows
    heads, dim, hidden = attention.index_heads, attention.index_dim, context.model.hidden
    # what other products saved of an input is the rank's own tokens alone where tokens are cut
    kept = rows > context.norm_rows
    key = OpKey(Module.ATTENTION, Role.INDEX_K)
    enter = context.sharding.column_parallel_input(context, key, hidden + attention.q_lora_rank)
    norm = Kernel(
        key.served_by(Role.NORM, "attention.index_norm"),
        "layernorm",
        rows,
        dim,
        saved_bytes=context.activations(rows, dim),
        parameters=2 * dim,
    )
    rotary = Kernel(
        key.served_by(Role.ROTARY, "attention.index_rotary"), "rotary", rows, (heads + 1) * attention.rope_dim
    )
    entry = Pass(forward=enter.forward)
    if not attention.q_lora_rank:
        # queries of the hidden states, behind a norm of their own, which keeps the product's input too
        named = OpKey(Module.ATTENTION, Role.NORM, Role.INDEX_Q).named("attention.index_q_norm")
        both = 2 * context.activations(rows, hidden)
        normed = Kernel(named, "layernorm", rows, hidden, saved_bytes=both, parameters=2 * hidden)
        entry = sequence(entry, kernel(context, normed))
    return sequence(
        entry,
        detached_linear(context, Role.INDEX_Q, attention.q_lora_rank or hidden, heads * dim, kept),
        detached_linear(context, Role.INDEX_K, hidden, dim + heads, kept),
        kernel(context, norm),
        kernel(context, rotary) if attention.rope_dim else Pass(),
    )


def detached_linear(context: LayerContext, role: Role, inputs: int, outputs: int, kept: BoolArray) -> Pass:
    """Returns a product whole on every rank, of an input that is saved where it is ``kept`` and has no gradient."""
    layer = Linear(
        module=Module.ATTENTION,
        role=role,
        tokens=context.gemm_rows,
        inputs=context.layout.constant(inputs),
        outputs=context.layout.constant(outputs),
        saved_bytes=context.activations(context.gemm_rows, inputs) * kept,
    )
    product = sequence(*weight_collectives(context, layer), linear(context, layer))
    return replace(product, backward=tuple(op for op in product.backward if op.phase is not Phase.INPUT_GRAD))


@dataclass(frozen=True, slots=True, kw_only=True)
class Index:
    """``heads`` of ``dim`` channels score an entry for every ``rate`` tokens before a query, and select ``topk``, for
    attention of ``num_heads`` heads whose keys have ``channels``."""

    heads: int
    dim: int
    topk: int
    num_heads: int
    channels: int
    rate: int = 1


def mean_keys(length: IntArray, rate: int, most: IntArray | int | None = None) -> IntArray:
    """Returns the entries of ``rate`` tokens that end before or with a query, at ``most`` so many, as a mean over a sequence,
    rounded up: sum_i min(floor(i / rate), most) / length (DeepSeek-V4's causal rule, modeling_deepseek_v4.py, causal_threshold)."""
    entries = length // rate
    reached = entries if most is None else np.minimum(entries, most)
    # whole groups of rate queries see 0, 1, 2, ... entries, until all that may be; the last group may be cut
    below = rate * (reached * (reached - 1) // 2)
    return np.maximum(ceil_div(below + (length + 1 - reached * rate) * reached, length), 1)


def selection(context: LayerContext, index: Index) -> Pass:
    """Returns the scores of all entries, the selected ones, and the loss that teaches the indexer.

    Assumption: scores, the target of the loss and their gradients take what attention of as many FLOPs takes (one
    product of d channels as two of d / 2), causal halves left out; selecting reads every score once.
    """
    layout, job = context.layout, context.job
    length = context.core_sequence
    rows, entries = layout.micro_batch * length, np.maximum(length // index.rate, 1)
    heads, dim, channels = index.heads, index.dim, index.channels
    topk = np.minimum(entries, index.topk)
    whole = index.rate == 1
    scores = Attention(
        module=Module.ATTENTION,
        role=Role.INDEX_SCORES,
        phase=Phase.FORWARD,
        batch=layout.micro_batch,
        q_len=length,
        kv_len=length if whole else mean_keys(length, index.rate),
        heads=layout.constant(heads),
        kv_heads=layout.constant(1),
        qk_dim=layout.constant(dim // 2),
        v_dim=layout.constant(dim - dim // 2),
        mask="causal" if whole else "full",
        kernel=job.attention_kernel if job.flash_attention else "core",
        dtype=job.precision.attention,
        saved_bytes=context.activations(rows, heads * dim + dim + heads),
        transient_bytes=FP32_BYTES * layout.micro_batch * np.minimum(length, BLOCK_QUERIES) * entries,
    )
    select = OpKey(Module.ATTENTION, Role.TOP_K)
    best = memory_pass(select, Phase.FORWARD, "copy", rows, "fp32", entries)
    # of the selected entries alone
    chosen = {"mask": "window", "window": topk} if whole else {"kv_len": mean_keys(length, index.rate, topk)}
    target = replace(
        scores,
        role=Role.INDEX_LOSS,
        name="attention.index_loss",
        heads=core_heads(context, index.num_heads),
        qk_dim=layout.constant(channels // 2),
        v_dim=layout.constant(channels - channels // 2),
        repeat=TARGET_PASSES,
        # the gradient of each selected score
        saved_bytes=FP32_BYTES * rows * topk,
        transient_bytes=0.0 * scores.saved_bytes,
        **chosen,
    )
    summed = collective(
        OpKey(Module.ATTENTION, Role.REDUCE, Role.INDEX_LOSS),
        Phase.FORWARD,
        Collective.ALL_REDUCE,
        Axis.TP,
        FP32_BYTES * rows * topk,
        "fp32",
    )
    gradient = replace(
        scores,
        phase=Phase.WEIGHT_GRAD,
        direction="backward",
        saved_bytes=0.0 * scores.saved_bytes,
        transient_bytes=0.0 * scores.saved_bytes,
        **chosen,
    )
    return Pass(forward=(scores, best, target, summed), backward=(gradient,))


def absorbed(attention: AttentionSpec) -> AttentionSpec:
    """Returns the attention of queries to latents: one key of latent and rotated channels for all heads, whose latent
    part is the value, as a window of as many keys as are selected. The up projection of keys and values is multiplied
    into queries and outputs, which takes its FLOPs."""
    return replace(
        attention,
        kind=AttentionKind.GQA,
        num_kv_heads=1,
        qk_dim=attention.kv_lora_rank + attention.rope_dim,
        v_dim=attention.kv_lora_rank,
        window=attention.index_topk,
        index_heads=0,
        index_dim=0,
        index_topk=0,
    )


def sparse_core(context: LayerContext, attention: AttentionSpec, dense: Pass) -> Pass:
    """Returns the selection, and the ``dense`` core of absorbed attention with what it saves more: the queries' channels
    before they met the up projection, outputs before it, and the selected keys' numbers."""
    rows = context.layout.micro_batch * context.core_sequence
    heads = core_heads(context, attention.num_heads)
    nope = attention.qk_dim - attention.rope_dim
    more = context.activations(rows, heads * (nope + attention.kv_lora_rank))
    if attention.index_heads:
        more = more + INDEX_BYTES * rows * np.minimum(context.core_sequence, attention.index_topk)
    first, *others = dense.forward
    core = replace(dense, forward=(replace(first, saved_bytes=first.saved_bytes + more), *others))
    if not attention.index_heads:
        return core
    index = Index(
        heads=attention.index_heads,
        dim=attention.index_dim,
        topk=attention.index_topk,
        num_heads=attention.num_heads,
        channels=attention.kv_lora_rank + attention.rope_dim,
    )
    return sequence(selection(context, index), core)
