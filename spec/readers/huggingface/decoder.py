"""A decoder of layers that mix tokens and feed forward, read by the row of its type (spec.readers.huggingface.type_facts).

Read from top to bottom: the model, which layers it has, one layer, attention, experts.
"""

from collections.abc import Callable
from dataclasses import replace

from spec.mixers.attention import AttentionKind, AttentionSpec, QkNormWeights
from spec.mixers.gated_delta import GatedDeltaSpec
from spec.mixers.lightning import LightningSpec
from spec.mixers.mixer import Mixer
from spec.mixers.rg_lru import RgLruSpec
from spec.mixers.short_convolution import ShortConvolutionSpec
from spec.model import BlockRun, BlockSpec, MlpSpec, ModelSpec, MoeSpec, NormKind, NormPlace, PositionKind
from spec.readers.huggingface.parts import activation, norm_epsilon, predicting, read_layer_numbers, read_layers, rope
from spec.readers.huggingface.type_facts import Choice, TypeFacts
from spec.section import REQUIRED, Section

FULL, WINDOW, CHUNK, LINEAR = "full_attention", "sliding_attention", "chunked_attention", "linear_attention"
"""Kinds of layers, by the names that transformers has for them."""
SAME_KINDS = {
    "attention": FULL,
    "indexed_attention": FULL,
    "global": FULL,
    "local": WINDOW,
    "conv": LINEAR,
    "reference_sliding_attention": WINDOW,
}


def read_decoder(top: Section, facts: TypeFacts, name: str) -> ModelSpec:
    """Returns the model of a config: an embedding, layers, perhaps some that predict further tokens, and a head."""
    layers = read_layers(top)
    kinds, routed = _layer_kinds(top, facts, layers), _routed_layers(top, facts, layers)
    blocks = [
        _block(_layer_section(top, facts, kind, index), facts, kind, is_routed)
        for index, (kind, is_routed) in enumerate(zip(kinds, routed, strict=True))
    ]
    predicts = _block(top, facts, FULL if kinds[-1] == LINEAR else kinds[-1], routed[-1])
    return model_of(top, facts, name, predicting(top, blocks, predicts))


def model_of(top: Section, facts: TypeFacts, name: str, runs: tuple[BlockRun, ...]) -> ModelSpec:
    """Returns the model around these runs of layers."""
    position = PositionKind.NONE if _chosen(top, facts.alibi) else PositionKind(facts.position)
    return ModelSpec(
        name=name,
        hidden=top.integer("hidden_size"),
        vocab=top.integer("vocab_size"),
        blocks=runs,
        source=f"{top.where} ({top.text('model_type')})",
        tied_embeddings=top.flag("tie_word_embeddings", False),
        position=position,
        max_positions=top.integer("max_position_embeddings", 0) + facts.extra_positions,
        norm=NormKind(facts.norm),
        head_bias=_chosen(top, facts.head_bias),
        embedding_norm=facts.embedding_norm,
        final_norm=facts.final_norm,
        rope_scales=top.integer("rope_scales", 0, minimum=0),
        residual_streams=top.integer(facts.residual_streams) if facts.residual_streams else 1,
        mixed_streams=facts.mixed_streams,
        extra_embedding_rows=top.integer("extra_embedding_rows", 0, minimum=0),
        logit_softcap=top.has("final_logit_softcapping"),
        rope=rope(top) if position is PositionKind.ROTARY else None,
        norm_epsilon=norm_epsilon(top),
        model_type=top.text("model_type"),
    )


def _chosen(top: Section, choice: Choice) -> bool:
    return top.flag(choice, False) if isinstance(choice, str) else choice


# Which layers a model has.


def _layer_kinds(top: Section, facts: TypeFacts, layers: int) -> list[str]:
    """Returns the kind of every layer: as ``layer_types`` lists them, or by the type's pattern."""
    pattern = list(facts.pattern)
    if facts.period:
        pattern = [pattern[0]] * (top.integer(facts.period) - 1) + [FULL]
    full_first = top.integer(facts.full_first, 0, minimum=0) if isinstance(facts.full_first, str) else facts.full_first
    default = [FULL if index < full_first else pattern[index % len(pattern)] for index in range(layers)]
    if facts.full_last:
        default[-1] = FULL
    kinds = [SAME_KINDS.get(word, word) for word in top.texts("layer_types")] or default
    readable = (FULL, WINDOW, CHUNK, *([LINEAR] if facts.linear else []))
    if len(kinds) != layers or not set(kinds) <= set(readable):
        top.fail("layer_types", f"a list of {layers} texts out of {', '.join(readable)}")
    return kinds


def _routed_layers(top: Section, facts: TypeFacts, layers: int) -> list[bool]:
    """Returns whether each layer routes: as ``mlp_layer_types`` says, or from ``first_k_dense_replace`` to
    ``moe_layer_end_index``, where ``moe_layer_freq`` divides its number and ``decoder_sparse_step`` the next, unless
    ``mlp_only_layers`` has it."""
    if not facts.experts or not top.has("num_experts"):
        return [False] * layers
    listed = top.texts("mlp_layer_types", ("dense", "sparse"))
    if listed:
        if len(listed) != layers:
            top.fail("mlp_layer_types", f"a list of {layers} texts, dense or sparse")
        return [word == "sparse" for word in listed]
    for key in ("moe_layers", "moe_layers_enum"):
        if top.has(key):
            chosen = read_layer_numbers(top, key)
            return [index in chosen for index in range(layers)]
    first, last = (top.integer(key, default, minimum=-1) for key, default in EDGES)
    freq, step = (top.integer(key, 1) for key in ("moe_layer_freq", "decoder_sparse_step"))
    dense = read_layer_numbers(top, "mlp_only_layers")
    return [
        first <= index <= (layers if last == -1 else last)
        and index % freq == 0
        and (index + 1) % step == 0
        and index not in dense
        for index in range(layers)
    ]


EDGES = (("first_k_dense_replace", 0), ("moe_layer_end_index", -1))


def _layer_section(top: Section, facts: TypeFacts, kind: str, index: int) -> Section:
    """Returns the keys of one layer, with what differs there."""
    changes: dict[str, object] = {**facts.changes.get(kind, {}), **facts.changes.get(index, {})}
    return replace(top, values={**top.values, **changes}) if changes else top


# One layer.


def _block(top: Section, facts: TypeFacts, kind: str, routed: bool) -> BlockSpec:
    place = facts.linear_norm_place if kind == LINEAR and facts.linear_norm_place else facts.norm_place
    mixer: Mixer = LINEAR_MIXERS[facts.linear](top) if kind == LINEAR else _attention(top, facts, kind)
    rank = top.integer(facts.norm_gate_rank) if facts.norm_gate_rank else 0
    return BlockSpec(
        mixer=mixer,
        mlp=None if routed else _mlp(top, facts),
        moe=read_experts(top, facts) if routed else None,
        norm=NormKind(facts.norm),
        norm_place=NormPlace(place),
        parallel_residual=_chosen(top, facts.parallel_residual),
        condition_rank=facts.condition_rank,
        first_gate_rank=rank,
        second_gate_rank=rank * routed,
    )


def _mlp(top: Section, facts: TypeFacts) -> MlpSpec:
    times = top.integer(facts.ffn_multiple) if isinstance(facts.ffn_multiple, str) else facts.ffn_multiple
    width = top.integer("intermediate_size", times * top.integer("hidden_size") if times else REQUIRED)
    return MlpSpec(
        ffn_hidden=width,
        gated=facts.gated,
        bias=_chosen(top, facts.mlp_bias),
        activation=activation(top),
        inner_norm=NormKind(facts.norm).vectors * bool(facts.inner_norm),
    )


# Attention.


def _attention(top: Section, facts: TypeFacts, kind: str) -> AttentionSpec:
    windowed = not facts.window_flag or top.flag(facts.window_flag, False)
    return replace(
        latent_attention(top, facts) if facts.latent else read_attention(top, facts),
        window=top.integer("sliding_window", None) if kind == WINDOW and windowed else None,
        chunk=top.integer("attention_chunk_size", None) if kind == CHUNK else None,
        sinks=facts.sinks if isinstance(facts.sinks, bool) else facts.sinks == kind,
        softcap=top.has("attn_logit_softcapping"),
        alibi=_chosen(top, facts.alibi),
        output_gate=facts.output_gate == "channel",
        head_gate=facts.output_gate == "head",
        gate_bias=facts.gate_bias,
        value_norm=facts.value_norm,
        keys_as_values=_chosen(top, facts.keys_as_values),
        inner_norm=NormKind(facts.norm).vectors * (facts.inner_norm == "both"),
        rope_key_norm=facts.rope_key_norm,
        differential=facts.differential,
        latent_gates=facts.latent_gates,
        position_scale=facts.position_scale,
    )


def read_attention(top: Section, facts: TypeFacts) -> AttentionSpec:
    """Returns multi-head or grouped-query attention from the usual keys."""
    heads, hidden = top.integer("num_attention_heads"), top.integer("hidden_size")
    kv_heads = top.integer("num_key_value_heads", heads)
    if heads % kv_heads:
        top.fail("num_key_value_heads", f"a divisor of num_attention_heads = {heads}")
    if not top.has("head_dim") and hidden % heads:
        top.fail("num_attention_heads", f"a divisor of hidden_size = {hidden}, or give head_dim")
    width = top.integer("head_dim", hidden // heads)
    bias = _chosen(top, facts.qkv_bias)
    return AttentionSpec(
        kind=AttentionKind.MHA if kv_heads == heads else AttentionKind.GQA,
        num_heads=heads,
        num_kv_heads=kv_heads,
        qk_dim=width,
        v_dim=top.integer("v_head_dim", width),
        qkv_bias=bias,
        out_bias=bias if facts.out_bias == "" else _chosen(top, facts.out_bias),
        qk_norm=bool(facts.qk_norm) and (not facts.qk_norm_flag or top.flag(facts.qk_norm_flag, False)),
        qk_norm_weights=QkNormWeights(facts.qk_norm or QkNormWeights.HEAD),
    )


def latent_attention(top: Section, facts: TypeFacts) -> AttentionSpec:
    """Returns MLA (arXiv 2405.04434 sec. 2.1); ``q_lora_rank`` null projects queries directly. An indexer selects keys
    (arXiv 2512.02556 sec. 2.1); ``index_n_heads`` is 0 in layers that take the selection of the one before."""
    heads, rope_dim = top.integer("num_attention_heads"), top.integer("qk_rope_head_dim", minimum=0)
    top.only("attention_bias", (False,), "biases of latent attention are not priced")
    return AttentionSpec(
        kind=AttentionKind.MLA,
        num_heads=heads,
        num_kv_heads=heads,
        qk_dim=top.integer("qk_nope_head_dim") + rope_dim,
        v_dim=top.integer("v_head_dim"),
        rope_dim=rope_dim,
        q_lora_rank=top.integer("q_lora_rank", 0),
        kv_lora_rank=top.integer("kv_lora_rank"),
        index_topk=top.integer("index_topk", minimum=0) if facts.indexed else 0,
        index_heads=top.integer("index_n_heads", minimum=0) if facts.indexed else 0,
        index_dim=top.integer("index_head_dim", minimum=0) if facts.indexed else 0,
    )


def _gated_delta(top: Section) -> GatedDeltaSpec:
    mixer = GatedDeltaSpec(
        num_key_heads=top.integer("linear_num_key_heads"),
        num_value_heads=top.integer("linear_num_value_heads"),
        key_dim=top.integer("linear_key_head_dim"),
        value_dim=top.integer("linear_value_head_dim"),
        conv_kernel=top.integer("linear_conv_kernel_dim"),
    )
    if mixer.num_value_heads % mixer.num_key_heads:
        top.fail("linear_num_key_heads", f"a divisor of linear_num_value_heads = {mixer.num_value_heads}")
    return mixer


def _channel_delta(top: Section) -> GatedDeltaSpec:
    heads, width = top.integer("linear_num_heads"), top.integer("linear_head_dim")
    return GatedDeltaSpec(
        num_key_heads=heads,
        num_value_heads=heads,
        key_dim=width,
        value_dim=width,
        conv_kernel=top.integer("linear_conv_kernel_dim"),
        channel_decay=True,
        gate_rank=top.integer("linear_gate_rank", 0, minimum=0),
    )


def _short_convolution(top: Section) -> ShortConvolutionSpec:
    channels, taps = top.integer("hidden_size"), top.integer("conv_L_cache")
    return ShortConvolutionSpec(channels=channels, conv_kernel=taps, bias=top.flag("conv_bias", False))


def _lightning(top: Section) -> LightningSpec:
    heads, hidden = top.integer("num_attention_heads"), top.integer("hidden_size")
    width = top.integer("head_dim", max(hidden // heads, 1))
    return LightningSpec(num_heads=heads, head_dim=width, chunk_size=top.integer("block_size"))


def _rg_lru(top: Section) -> RgLruSpec:
    blocks, width = top.integer("num_attention_heads"), top.integer("lru_width", top.integer("hidden_size"))
    if width % blocks:
        top.fail("lru_width", f"a multiple of num_attention_heads = {blocks}")
    return RgLruSpec(num_blocks=blocks, block_width=width // blocks, conv_kernel=top.integer("conv1d_width"))


LINEAR_MIXERS: dict[str, Callable[[Section], Mixer]] = {
    "gated_delta": _gated_delta,
    "channel_delta": _channel_delta,
    "lightning": _lightning,
    "rg_lru": _rg_lru,
    "short_convolution": _short_convolution,
}


# Experts.


def read_experts(top: Section, facts: TypeFacts) -> MoeSpec:
    """Returns routed experts and shared ones. Scores are corrected where ``topk_method`` is noaux_tc; a greedy top-k
    knows no groups (``n_group``, ``topk_group``)."""
    count, topk, width = (top.integer(key) for key in ("num_experts", "num_experts_per_tok", facts.expert_width))
    if topk > count:
        top.fail("num_experts_per_tok", f"at most num_experts = {count}")
    method = top.text("topk_method", "noaux_tc" if facts.router_bias else "greedy")
    groups, chosen = _route_groups(top, count, topk)
    limited = method != "greedy"
    return MoeSpec(
        num_experts=count,
        topk=topk,
        expert_ffn_hidden=width,
        gated=facts.gated,
        bias=facts.expert_bias,
        shared_ffn_hidden=_shared_width(top, facts, width),
        shared_gate=facts.shared_gate,
        router_bias=method == "noaux_tc",
        clamped=facts.clamped,
        output_norm=facts.expert_norm,
        route_groups=groups if limited else 1,
        route_chosen_groups=chosen if limited else 1,
        activation=activation(top),
        score=top.choice("scoring_func", ("softmax", "sigmoid", "sqrtsoftplus"), facts.score),
        normalized=top.flag("norm_topk_prob", facts.normalized),
        route_scale=top.number("routed_scaling_factor", 1.0),
    )


def _shared_width(top: Section, facts: TypeFacts, width: int) -> int:
    if facts.shared == "count":
        return width * top.integer("n_shared_experts", 0, minimum=0)
    if facts.shared == "width":
        return top.integer("shared_expert_intermediate_size", minimum=0)
    return width if facts.shared == "equal" else 0


def _route_groups(top: Section, count: int, topk: int) -> tuple[int, int]:
    """Returns groups of experts, and of how many of them a token's experts are."""
    groups = top.integer("n_group", 1)
    chosen = top.integer("topk_group", groups)
    if chosen > groups or count % groups or count // groups * chosen < topk:
        top.fail("n_group", f"a divisor of {count} experts, with topk in topk_group of them")
    return groups, chosen
