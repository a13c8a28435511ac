"""DeepSeek-V2 and V3, and Kimi K2 of V3's structure, as Hugging Face describes them: latent attention, shared
experts, dense first layers, multi-token prediction.

Source: ``configuration_deepseek.py`` and ``modeling_deepseek.py`` beside the weights; DeepSeek-V2
(arXiv 2405.04434), DeepSeek-V3 (arXiv 2412.19437).
"""

from dataclasses import replace

from spec.mixers.attention import AttentionKind, AttentionSpec
from spec.model import BlockRun, BlockSpec, ModelSpec, MoeSpec
from spec.readers.huggingface.experts import read_experts, route_groups
from spec.readers.huggingface.parts import decoder, read_mlp, runs_of
from spec.section import MAX_LAYERS, Section


def deepseek(top: Section, name: str) -> ModelSpec:
    """DeepSeek-V2 and V3, Kimi K2: latent attention; layer i is routed from ``first_k_dense_replace`` on, where
    ``moe_layer_freq`` divides i.

    ``num_nextn_predict_layers`` adds that many blocks of the last kind marked as multi-token
    prediction.
    """
    layers = top.integer("num_hidden_layers", maximum=MAX_LAYERS)
    attention = _latent_attention(top)
    dense = BlockSpec(mixer=attention, mlp=read_mlp(top))
    first, every = top.integer_or("first_k_dense_replace", 0, minimum=0), top.integer_or("moe_layer_freq", 1)
    blocks = [dense] * layers
    if top.has("n_routed_experts"):
        routed = BlockSpec(mixer=attention, mlp=None, moe=_experts(top))
        blocks = [routed if index >= first and index % every == 0 else dense for index in range(layers)]
    runs = runs_of(blocks)
    extra = top.integer_or("num_nextn_predict_layers", 0, minimum=0)
    if extra:
        runs = (*runs, BlockRun(block=replace(blocks[-1], mtp=True), count=extra))
    return decoder(top, name, runs)


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
        q_lora_rank=top.integer_or("q_lora_rank", 0),
        kv_lora_rank=top.integer("kv_lora_rank"),
    )


def _experts(top: Section) -> MoeSpec:
    """Routed experts, ``n_shared_experts`` of the same width, V3's router correction bias, and the groups of
    experts that limit a token (``n_group``, ``topk_group``; a greedy top-k knows none)."""
    moe = read_experts(top, "n_routed_experts", "moe_intermediate_size")
    shared = top.integer_or("n_shared_experts", 0, minimum=0)
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
        route_scale=top.number_or("routed_scaling_factor", 2.5 if third else 1.0),
    )
