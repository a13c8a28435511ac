"""Hugging Face model types with routed experts and ordinary attention.

Source: transformers ``models/<type>/configuration_<type>.py`` and ``modeling_<type>.py``.
"""

from dataclasses import replace

from spec.mixers.attention import AttentionKind, AttentionSpec, QkNormWeights
from spec.model import BlockSpec, ModelSpec, MoeSpec, NormKind
from spec.readers.huggingface.parts import (
    decoder,
    every,
    predicting,
    reaches,
    reaching,
    read_attention,
    read_experts,
    read_layer_numbers,
    read_layers,
    read_mlp,
    read_windows,
    route_groups,
    routed_layers,
    runs_of,
    sparse_blocks,
    uniform,
)
from spec.section import MAX_LAYERS, Section


def mixtral(top: Section, name: str) -> ModelSpec:
    """Mixtral: every layer routed; ``sliding_window`` null or absent means full attention."""
    attention = replace(read_attention(top, bias=False), window=top.integer("sliding_window", None))
    return uniform(top, name, BlockSpec(mixer=attention, moe=_local_experts(top)))


def phimoe(top: Section, name: str) -> ModelSpec:
    """Phi-3.5-MoE: Mixtral with LayerNorm, and biases of attention and head where the config says so."""
    block = BlockSpec(
        mixer=replace(read_attention(top), window=top.integer("sliding_window", None)),
        moe=_local_experts(top),
        norm=NormKind.LAYER,
    )
    return replace(uniform(top, name, block), head_bias=top.flag("lm_head_bias", False))


def gpt_oss(top: Section, name: str) -> ModelSpec:
    """gpt-oss: windows in every other layer, sinks, biases everywhere, clamped experts."""
    attention = replace(read_attention(top, bias=top.flag("attention_bias")), sinks=True)
    moe = replace(_local_experts(top), bias=True, router_bias=True, clamped=True)
    reach = reaches(top, read_layers(top), every(2, read_layers(top)))
    return uniform(top, name, BlockSpec(mixer=attention, moe=moe), reach)


def olmoe(top: Section, name: str) -> ModelSpec:
    """OLMoE: norms over all heads of queries and of keys, no shared expert."""
    attention = replace(read_attention(top), qk_norm=True, qk_norm_weights=QkNormWeights.ALL_HEADS)
    moe = read_experts(top, "num_experts", "intermediate_size")
    return uniform(top, name, BlockSpec(mixer=attention, moe=moe))


def granitemoe(top: Section, name: str) -> ModelSpec:
    """Granite 3 MoE, with a shared expert of ``shared_intermediate_size`` in granitemoeshared."""
    shared = top.integer("shared_intermediate_size", 0, minimum=0)
    moe = replace(_local_experts(top), shared_ffn_hidden=shared, normalized=True)
    return uniform(top, name, BlockSpec(mixer=read_attention(top), moe=moe))


def minimax_m2(top: Section, name: str) -> ModelSpec:
    """MiniMax-M2: norms over all heads of queries and of keys, a sigmoid router with corrected scores."""
    attention = read_attention(top, bias=False)
    attention = replace(attention, qk_norm=True, qk_norm_weights=QkNormWeights.ALL_HEADS)
    moe = replace(_local_experts(top), router_bias=True, score="sigmoid")
    return uniform(top, name, BlockSpec(mixer=attention, moe=moe))


def qwen2_moe(top: Section, name: str) -> ModelSpec:
    """Qwen1.5-MoE and Qwen2-MoE: biases on q, k and v, one shared expert behind a gate."""
    shared = top.integer("shared_expert_intermediate_size")
    moe = replace(
        read_experts(top, "num_experts", "moe_intermediate_size"),
        shared_ffn_hidden=shared,
        shared_gate=True,
    )
    attention = read_attention(top, bias=top.flag("qkv_bias", True), out_bias=False)
    return _sparse(top, name, attention, moe)


def qwen3_moe(top: Section, name: str) -> ModelSpec:
    """Qwen3-MoE: norms on query and key heads, no shared expert."""
    attention = replace(read_attention(top), qk_norm=True)
    return _sparse(top, name, attention, read_experts(top, "num_experts", "moe_intermediate_size"))


def glm4_moe(top: Section, name: str) -> ModelSpec:
    """GLM-4.5: biases on q, k and v, dense first layers, shared experts, a sigmoid router with corrected scores;
    ``num_nextn_predict_layers`` adds blocks of the last kind that predict further tokens."""
    attention = replace(read_attention(top, out_bias=False), qk_norm=top.flag("use_qk_norm", False))
    groups, chosen = route_groups(top, "n_routed_experts")
    moe = read_experts(top, "n_routed_experts", "moe_intermediate_size")
    moe = replace(
        moe,
        shared_ffn_hidden=top.integer("n_shared_experts", minimum=0) * moe.expert_ffn_hidden,
        router_bias=True,
        score="sigmoid",
        route_scale=top.number("routed_scaling_factor", 1.0),
        route_groups=groups,
        route_chosen_groups=chosen,
    )
    first = top.integer("first_k_dense_replace", minimum=0)
    routed = [index >= first for index in range(read_layers(top))]
    blocks = sparse_blocks(attention, read_mlp(top), moe, routed)
    return decoder(top, name, predicting(top, blocks, BlockSpec(mixer=attention, moe=moe)))


def ernie4_5_moe(top: Section, name: str) -> ModelSpec:
    """ERNIE 4.5 with experts from ``moe_layer_start_index`` to ``moe_layer_end_index``, every ``moe_layer_interval``-th
    layer; corrected scores; ``use_bias`` covers attention, dense layers, shared experts and head."""
    layers = read_layers(top)
    top.only("use_bias", (False,), "routed experts without biases beside shared ones with them are not priced")
    moe = read_experts(top, "moe_num_experts", "moe_intermediate_size", topk_key="moe_k")
    shared = top.integer("moe_num_shared_experts", minimum=0)
    moe = replace(moe, shared_ffn_hidden=shared * moe.expert_ffn_hidden, router_bias=True)
    first, step = top.integer("moe_layer_start_index", minimum=0), top.integer("moe_layer_interval")
    last = top.integer("moe_layer_end_index", minimum=-1)
    last = layers - 1 if last == -1 else last
    routed = [(index + 1) % step == 0 and first <= index <= last for index in range(layers)]
    return decoder(top, name, runs_of(sparse_blocks(read_attention(top, bias=False), read_mlp(top), moe, routed)))


def llama4(top: Section, name: str) -> ModelSpec:
    """Llama 4's text model: experts in every ``interleave_moe_layer_step``-th layer with a shared one of
    their width, dense layers of ``intermediate_size_mlp`` between; attention within chunks where positions
    rotate; norms of queries and keys without weights where ``use_qk_norm`` says so, in layers that rotate
    (all are counted)."""
    layers = read_layers(top)
    attention = replace(
        read_attention(top),
        qk_norm=top.flag("use_qk_norm", True),
        qk_norm_weights=QkNormWeights.NONE,
    )
    moe = _local_experts(top)
    moe = replace(moe, shared_ffn_hidden=moe.expert_ffn_hidden, score="sigmoid")
    step = top.integer("interleave_moe_layer_step", 1)
    listed = read_layer_numbers(top, "moe_layers") or range(step - 1, layers, step)
    blocks = sparse_blocks(
        attention,
        read_mlp(top, key="intermediate_size_mlp"),
        moe,
        [index in listed for index in range(layers)],
    )
    pattern = every(top.integer("no_rope_layer_interval", 4), layers, "chunked_attention")
    return decoder(top, name, reaching(blocks, reaches(top, layers, pattern)))


def _local_experts(top: Section) -> MoeSpec:
    return read_experts(top, "num_local_experts", "intermediate_size")


def _sparse(top: Section, name: str, attention: AttentionSpec, moe: MoeSpec) -> ModelSpec:
    layers = read_layers(top)
    routed = routed_layers(top, layers)
    mlp = None if all(routed) else read_mlp(top)
    blocks = sparse_blocks(attention, mlp, moe, routed)
    return decoder(top, name, reaching(blocks, read_windows(top, layers)))


# DeepSeek-V2 and V3, and Kimi K2 of V3's structure, as Hugging Face describes them: latent attention, shared
# experts, dense first layers, multi-token prediction.
#
# Source: ``configuration_deepseek.py`` and ``modeling_deepseek.py`` beside the weights; DeepSeek-V2
# (arXiv 2405.04434), DeepSeek-V3 (arXiv 2412.19437).


def deepseek(top: Section, name: str) -> ModelSpec:
    """DeepSeek-V2 and V3, Kimi K2: latent attention; layer i is routed from ``first_k_dense_replace`` on, where
    ``moe_layer_freq`` divides i.

    ``num_nextn_predict_layers`` adds that many blocks of the last kind marked as multi-token
    prediction.
    """
    layers = top.integer("num_hidden_layers", maximum=MAX_LAYERS)
    attention = _latent_attention(top)
    dense = BlockSpec(mixer=attention, mlp=read_mlp(top))
    first, every = top.integer("first_k_dense_replace", 0, minimum=0), top.integer("moe_layer_freq", 1)
    blocks = [dense] * layers
    if top.has("n_routed_experts"):
        routed = BlockSpec(mixer=attention, mlp=None, moe=_latent_experts(top))
        blocks = [routed if index >= first and index % every == 0 else dense for index in range(layers)]
    return decoder(top, name, predicting(top, blocks, blocks[-1]))


def _latent_attention(top: Section) -> AttentionSpec:
    """MLA (arXiv 2405.04434 sec. 2.1); ``q_lora_rank`` null projects queries directly."""
    heads, rope = top.integer("num_attention_heads"), top.integer("qk_rope_head_dim")
    bias = top.flag("attention_bias", False)
    if bias:
        top.fail("attention_bias", "false: biases of latent attention are not priced")
    return AttentionSpec(
        kind=AttentionKind.MLA,
        num_heads=heads,
        num_kv_heads=heads,
        qk_dim=top.integer("qk_nope_head_dim") + rope,
        v_dim=top.integer("v_head_dim"),
        rope_dim=rope,
        q_lora_rank=top.integer("q_lora_rank", 0),
        kv_lora_rank=top.integer("kv_lora_rank"),
    )


def _latent_experts(top: Section) -> MoeSpec:
    """Routed experts, ``n_shared_experts`` of the same width, V3's router correction bias, and the groups of
    experts that limit a token (``n_group``, ``topk_group``; a greedy top-k knows none)."""
    moe = read_experts(top, "n_routed_experts", "moe_intermediate_size")
    shared = top.integer("n_shared_experts", 0, minimum=0)
    third = top.text("model_type") in ("deepseek_v3", "kimi_k2")
    method = top.text("topk_method", "noaux_tc" if third else "greedy")
    groups, chosen = route_groups(top, "n_routed_experts")
    limited = method != "greedy"
    return replace(
        moe,
        route_groups=groups if limited else 1,
        route_chosen_groups=chosen if limited else 1,
        shared_ffn_hidden=shared * moe.expert_ffn_hidden,
        router_bias=method == "noaux_tc",
        score=top.choice("scoring_func", ("softmax", "sigmoid"), "sigmoid" if third else "softmax"),
        route_scale=top.number("routed_scaling_factor", 2.5 if third else 1.0),
    )
