"""Hugging Face model types with routed experts and ordinary attention.

Source: transformers ``models/<type>/configuration_<type>.py`` and ``modeling_<type>.py``.
"""

from dataclasses import replace

from spec.mixers.attention import AttentionSpec, QkNormWeights
from spec.model import BlockRun, BlockSpec, ModelSpec, MoeSpec, NormKind
from spec.readers.huggingface.experts import (
    read_experts,
    read_layer_numbers,
    route_groups,
    routed_layers,
    sparse_blocks,
)
from spec.readers.huggingface.parts import (
    decoder,
    every,
    reaches,
    reaching,
    read_attention,
    read_layers,
    read_mlp,
    read_windows,
    runs_of,
    uniform,
)
from spec.section import Section


def mixtral(top: Section, name: str) -> ModelSpec:
    """Mixtral: every layer routed; ``sliding_window`` null or absent means full attention."""
    attention = replace(read_attention(top), window=top.maybe_integer("sliding_window"))
    return uniform(top, name, BlockSpec(mixer=attention, moe=_local_experts(top)))


def phimoe(top: Section, name: str) -> ModelSpec:
    """Phi-3.5-MoE: Mixtral with LayerNorm, and biases of attention and head where the config says so."""
    bias = top.flag("attention_bias", False)
    attention = read_attention(top, qkv_bias=bias, out_bias=bias)
    block = BlockSpec(
        mixer=replace(attention, window=top.maybe_integer("sliding_window")),
        moe=_local_experts(top),
        norm=NormKind.LAYER,
    )
    return replace(uniform(top, name, block), head_bias=top.flag("lm_head_bias", False))


def gpt_oss(top: Section, name: str) -> ModelSpec:
    """gpt-oss: windows in every other layer, sinks, biases everywhere, clamped experts."""
    bias = top.flag("attention_bias")
    attention = replace(read_attention(top, qkv_bias=bias, out_bias=bias), sinks=True)
    moe = replace(_local_experts(top), bias=True, router_bias=True, clamped=True)
    reach = reaches(top, read_layers(top), every(2, read_layers(top)))
    return uniform(top, name, BlockSpec(mixer=attention, moe=moe), reach)


def olmoe(top: Section, name: str) -> ModelSpec:
    """OLMoE: norms over all heads of queries and of keys, no shared expert."""
    bias = top.flag("attention_bias", False)
    attention = replace(
        read_attention(top, qkv_bias=bias, out_bias=bias),
        qk_norm=True,
        qk_norm_weights=QkNormWeights.ALL_HEADS,
    )
    moe = read_experts(top, "num_experts", "intermediate_size")
    return uniform(top, name, BlockSpec(mixer=attention, moe=moe))


def granitemoe(top: Section, name: str) -> ModelSpec:
    """Granite 3 MoE, with a shared expert of ``shared_intermediate_size`` in granitemoeshared."""
    bias = top.flag("attention_bias", False)
    shared = top.integer_or("shared_intermediate_size", 0, minimum=0)
    moe = replace(_local_experts(top), shared_ffn_hidden=shared, normalized=True)
    return uniform(top, name, BlockSpec(mixer=read_attention(top, qkv_bias=bias, out_bias=bias), moe=moe))


def minimax_m2(top: Section, name: str) -> ModelSpec:
    """MiniMax-M2: norms over all heads of queries and of keys, a sigmoid router with corrected scores."""
    attention = replace(read_attention(top), qk_norm=True, qk_norm_weights=QkNormWeights.ALL_HEADS)
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
    attention = read_attention(top, qkv_bias=top.flag("qkv_bias", True))
    return _sparse(top, name, attention, moe)


def qwen3_moe(top: Section, name: str) -> ModelSpec:
    """Qwen3-MoE: norms on query and key heads, no shared expert."""
    bias = top.flag("attention_bias", False)
    attention = replace(read_attention(top, qkv_bias=bias, out_bias=bias), qk_norm=True)
    return _sparse(top, name, attention, read_experts(top, "num_experts", "moe_intermediate_size"))


def glm4_moe(top: Section, name: str) -> ModelSpec:
    """GLM-4.5: biases on q, k and v, dense first layers, shared experts, a sigmoid router with corrected scores;
    ``num_nextn_predict_layers`` adds blocks of the last kind that predict further tokens."""
    attention = replace(
        read_attention(top, qkv_bias=top.flag("attention_bias", False)),
        qk_norm=top.flag("use_qk_norm", False),
    )
    groups, chosen = route_groups(top, "n_routed_experts")
    moe = read_experts(top, "n_routed_experts", "moe_intermediate_size")
    moe = replace(
        moe,
        shared_ffn_hidden=top.integer("n_shared_experts", minimum=0) * moe.expert_ffn_hidden,
        router_bias=True,
        score="sigmoid",
        route_scale=top.number_or("routed_scaling_factor", 1.0),
        route_groups=groups,
        route_chosen_groups=chosen,
    )
    first = top.integer("first_k_dense_replace", minimum=0)
    routed = [index >= first for index in range(read_layers(top))]
    runs = runs_of(sparse_blocks(attention, read_mlp(top), moe, routed))
    extra = top.integer_or("num_nextn_predict_layers", 0, minimum=0)
    if extra:
        runs = (*runs, BlockRun(block=BlockSpec(mixer=attention, moe=moe, mtp=True), count=extra))
    return decoder(top, name, runs)


def ernie4_5_moe(top: Section, name: str) -> ModelSpec:
    """ERNIE 4.5 with experts from ``moe_layer_start_index`` to ``moe_layer_end_index``, every ``moe_layer_interval``-th
    layer; corrected scores; ``use_bias`` covers attention, dense layers, shared experts and head."""
    layers = read_layers(top)
    top.only(
        "use_bias", (False,), "routed experts without biases beside shared ones with them are not priced"
    )
    moe = read_experts(top, "moe_num_experts", "moe_intermediate_size", topk_key="moe_k")
    shared = top.integer("moe_num_shared_experts", minimum=0)
    moe = replace(moe, shared_ffn_hidden=shared * moe.expert_ffn_hidden, router_bias=True)
    first, step = top.integer("moe_layer_start_index", minimum=0), top.integer("moe_layer_interval")
    last = top.integer("moe_layer_end_index", minimum=-1)
    last = layers - 1 if last == -1 else last
    routed = [(index + 1) % step == 0 and first <= index <= last for index in range(layers)]
    return decoder(top, name, runs_of(sparse_blocks(read_attention(top), read_mlp(top), moe, routed)))


def llama4(top: Section, name: str) -> ModelSpec:
    """Llama 4's text model: experts in every ``interleave_moe_layer_step``-th layer with a shared one of
    their width, dense layers of ``intermediate_size_mlp`` between; attention within chunks where positions
    rotate; norms of queries and keys without weights where ``use_qk_norm`` says so, in layers that rotate
    (all are counted)."""
    layers, bias = read_layers(top), top.flag("attention_bias", False)
    attention = replace(
        read_attention(top, qkv_bias=bias, out_bias=bias),
        qk_norm=top.flag("use_qk_norm", True),
        qk_norm_weights=QkNormWeights.NONE,
    )
    moe = _local_experts(top)
    moe = replace(moe, shared_ffn_hidden=moe.expert_ffn_hidden, score="sigmoid")
    step = top.integer_or("interleave_moe_layer_step", 1)
    listed = read_layer_numbers(top, "moe_layers") or range(step - 1, layers, step)
    blocks = sparse_blocks(
        attention,
        read_mlp(top, key="intermediate_size_mlp"),
        moe,
        [index in listed for index in range(layers)],
    )
    pattern = every(top.integer_or("no_rope_layer_interval", 4), layers, "chunked_attention")
    return decoder(top, name, reaching(blocks, reaches(top, layers, pattern)))


def _local_experts(top: Section) -> MoeSpec:
    return read_experts(top, "num_local_experts", "intermediate_size")


def _sparse(top: Section, name: str, attention: AttentionSpec, moe: MoeSpec) -> ModelSpec:
    layers = read_layers(top)
    routed = routed_layers(top, layers)
    mlp = None if all(routed) else read_mlp(top)
    blocks = sparse_blocks(attention, mlp, moe, routed)
    return decoder(top, name, reaching(blocks, read_windows(top, layers)))
