"""One layer with the flags in place of what its preset says: heads, latent attention, feed-forward, experts."""

from dataclasses import dataclass, replace

from spec.mixers.attention import AttentionKind, AttentionSpec
from spec.mixers.mixer import Mixer
from spec.model import BlockSpec, MlpSpec, MoeSpec
from workload.aicb.generate.dimensions import default_width
from workload.aicb.generate.shape_flags import ShapeFlags, refuse

LATENT_FLAGS = ("q_lora_rank", "kv_lora_rank", "qk_nope_dim", "qk_rope_dim", "v_head_dim")


@dataclass(frozen=True, slots=True)
class Resized:
    """The hidden size, and whether it is another than the preset's."""

    hidden: int
    changed: bool


def sized_block(flags: ShapeFlags, block: BlockSpec, size: Resized, *, mixed: bool) -> BlockSpec:
    """``block`` of a preset in a model of another size; ``mixed``: some layers of the model have experts.
    Raises ConfigError for flags that the layer cannot take."""
    mixer = _mixer(flags, block.mixer, size)
    if block.moe is not None:
        return replace(block, mixer=mixer, moe=_experts(flags, block.moe))
    # With one width given that of an expert is meant, as in AICB: the dense layers keep theirs.
    width = None if mixed and flags.moe_ffn_hidden_size is None else flags.ffn_hidden_size
    return replace(block, mixer=mixer, mlp=block.mlp and _dense(flags, block.mlp, width, size))


def experts_of(flags: ShapeFlags, mlp: MlpSpec, size: Resized) -> MoeSpec:
    """Experts each of which is the dense layer ``mlp``."""
    if (flags.num_experts or 0) < 2:
        raise refuse("num_experts", flags.num_experts, "--moe_enable needs 2 experts or more")
    one = _dense(flags, mlp, flags.expert_width, size)
    return MoeSpec(
        num_experts=flags.num_experts or 0,
        topk=1,
        expert_ffn_hidden=one.ffn_hidden,
        gated=one.gated,
        bias=one.bias,
    )


def _mixer(flags: ShapeFlags, mixer: Mixer | None, size: Resized) -> Mixer | None:
    """Attention with the heads and ranks typed; any other kind stays as its config has it."""
    if isinstance(mixer, AttentionSpec):
        return _attention(flags, mixer, size)
    if mixer is None:
        return None
    for name in ("num_attention_heads", "num_query_groups", *LATENT_FLAGS):
        if getattr(flags, name) is not None:
            raise refuse(name, getattr(flags, name), f"layers of attention; these are of {mixer.name}")
    return mixer


def _attention(flags: ShapeFlags, attention: AttentionSpec, size: Resized) -> AttentionSpec:
    """Heads and their size. With another hidden size or number of heads a head has hidden / heads
    channels; MLA's head sizes are its own."""
    heads = flags.num_attention_heads or attention.num_heads
    biased = replace(
        attention,
        qkv_bias=attention.qkv_bias or flags.add_bias_linear,
        out_bias=attention.out_bias or flags.add_bias_linear,
    )
    if attention.kind is AttentionKind.MLA:
        return _latent(flags, replace(biased, num_heads=heads, num_kv_heads=heads))
    for name in LATENT_FLAGS:
        if getattr(flags, name) is not None:
            raise refuse(name, getattr(flags, name), "a model of latent attention: a DeepSeek size or frame")
    grouped = attention.num_kv_heads != attention.num_heads
    groups = flags.num_query_groups or (attention.num_kv_heads if grouped else heads)
    if heads % groups:
        raise refuse("num_query_groups", groups, f"a divisor of {heads} attention heads")
    dim = attention.qk_dim
    if size.changed or heads != attention.num_heads:
        if size.hidden % heads:
            raise refuse("num_attention_heads", heads, f"a divisor of the hidden size {size.hidden}")
        dim = size.hidden // heads
    kind = AttentionKind.MHA if groups == heads else AttentionKind.GQA
    return replace(biased, kind=kind, num_heads=heads, num_kv_heads=groups, qk_dim=dim, v_dim=dim)


def _latent(flags: ShapeFlags, attention: AttentionSpec) -> AttentionSpec:
    """Multi-head latent attention: its ranks, and a head of nope + rope channels (arXiv 2405.04434 sec. 2.1)."""
    if flags.num_query_groups is not None:
        raise refuse("num_query_groups", flags.num_query_groups, "no latent attention: it has no groups")
    given = {name: getattr(flags, name) for name in LATENT_FLAGS}
    rope = attention.rope_dim if given["qk_rope_dim"] is None else given["qk_rope_dim"]
    nope = attention.qk_dim - attention.rope_dim if given["qk_nope_dim"] is None else given["qk_nope_dim"]
    q_rank = attention.q_lora_rank if given["q_lora_rank"] is None else given["q_lora_rank"]
    return replace(
        attention,
        qk_dim=nope + rope,
        rope_dim=rope,
        q_lora_rank=q_rank,
        kv_lora_rank=given["kv_lora_rank"] or attention.kv_lora_rank,
        v_dim=given["v_head_dim"] or attention.v_dim,
    )


def _dense(flags: ShapeFlags, mlp: MlpSpec, width: int | None, size: Resized) -> MlpSpec:
    """The feed-forward layer ``width`` wide; without a width as wide as it was, or as its frame makes it where
    the hidden size or the gate is another."""
    gated = mlp.gated or flags.gated
    if width is None:
        keeps = not size.changed and gated == mlp.gated
        width = mlp.ffn_hidden if keeps else default_width(flags.frame, size.hidden, gated=gated)
    return replace(
        mlp,
        ffn_hidden=width,
        gated=gated,
        bias=mlp.bias or flags.add_bias_linear,
        activation="silu" if gated else mlp.activation,
    )


def _experts(flags: ShapeFlags, moe: MoeSpec) -> MoeSpec:
    """Experts by the flags; shared experts are a number of experts' widths, as DeepSeek's are. Groups to choose
    experts in stay where these experts fill them."""
    experts = flags.num_experts or moe.num_experts
    topk = flags.moe_router_topk or moe.topk
    if not 1 <= topk <= experts:
        raise refuse("moe_router_topk", topk, f"1 to the number of experts {experts}")
    width = flags.expert_width or moe.expert_ffn_hidden
    shared = moe.shared_ffn_hidden
    if flags.n_shared_expert is not None:
        shared = flags.n_shared_expert * width
    elif shared % moe.expert_ffn_hidden == 0:
        shared = shared // moe.expert_ffn_hidden * width
    grouped = (
        experts % moe.route_groups == 0 and topk <= experts // moe.route_groups * moe.route_chosen_groups
    )
    return replace(
        moe,
        route_groups=moe.route_groups if grouped else 1,
        route_chosen_groups=moe.route_chosen_groups if grouped else 1,
        num_experts=experts,
        topk=topk,
        expert_ffn_hidden=width,
        shared_ffn_hidden=shared,
        gated=moe.gated or flags.gated,
        bias=moe.bias or flags.add_bias_linear,
    )
