"""Hugging Face model types with routed experts and ordinary attention: Mixtral, Qwen2-MoE, Qwen3-MoE.

Source: transformers ``models/<type>/configuration_<type>.py`` and ``modeling_<type>.py``.
"""

from dataclasses import replace

from spec.mixers.attention import AttentionSpec
from spec.model import BlockRun, BlockSpec, ModelSpec, MoeSpec
from spec.readers.huggingface.dense import decoder, read_attention, read_mlp, read_windows, runs_of
from spec.readers.huggingface.facts import activation
from spec.section import MAX_LAYERS, Section


def mixtral(top: Section, name: str) -> ModelSpec:
    """Mixtral: every layer routed; ``sliding_window`` null or absent means full attention."""
    attention = replace(read_attention(top), window=top.maybe_integer("sliding_window"))
    moe = read_experts(top, "num_local_experts", "intermediate_size")
    layers = top.integer("num_hidden_layers", maximum=MAX_LAYERS)
    block = BlockSpec(mixer=attention, mlp=None, moe=moe)
    return decoder(top, name, (BlockRun(block=block, count=layers),))


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


def read_experts(top: Section, count_key: str, width_key: str) -> MoeSpec:
    """The routed experts; top-k is at most their number. ``norm_topk_prob`` is False where a type has it and its
    config does not say; Mixtral has none, and always divides."""
    count, topk = top.integer(count_key), top.integer("num_experts_per_tok")
    if topk > count:
        top.fail("num_experts_per_tok", f"at most {count_key} = {count}")
    return MoeSpec(
        num_experts=count,
        topk=topk,
        expert_ffn_hidden=top.integer(width_key),
        activation=activation(top),
        normalized=top.flag("norm_topk_prob", top.text("model_type") in ("mixtral", "deepseek_v3")),
    )


def route_groups(top: Section, count_key: str) -> tuple[int, int]:
    """Groups of experts, and of how many of them a token's experts are (``n_group``, ``topk_group``)."""
    count, topk = top.integer(count_key), top.integer("num_experts_per_tok")
    groups = top.integer_or("n_group", 1)
    chosen = top.integer_or("topk_group", groups)
    if chosen > groups or count % groups or count // groups * chosen < topk:
        top.fail("n_group", f"a divisor of {count} experts, with topk in topk_group of them")
    return groups, chosen


def routed_layers(top: Section, layers: int) -> list[bool]:
    """Layer i is routed unless listed in ``mlp_only_layers`` or off the ``decoder_sparse_step``."""
    step = top.integer_or("decoder_sparse_step", 1)
    dense_layers = top.values.get("mlp_only_layers") or []
    if not isinstance(dense_layers, list) or not all(type(index) is int for index in dense_layers):
        top.fail("mlp_only_layers", "a list of layer numbers")
    return [index not in dense_layers and (index + 1) % step == 0 for index in range(layers)]


def _sparse(top: Section, name: str, attention: AttentionSpec, moe: MoeSpec) -> ModelSpec:
    layers = top.integer("num_hidden_layers", maximum=MAX_LAYERS)
    routed = routed_layers(top, layers)
    mlp = None if all(routed) else read_mlp(top)
    blocks = [
        BlockSpec(
            mixer=replace(attention, window=window),
            mlp=None if is_routed else mlp,
            moe=moe if is_routed else None,
        )
        for window, is_routed in zip(read_windows(top, layers), routed, strict=True)
    ]
    return decoder(top, name, runs_of(blocks))
