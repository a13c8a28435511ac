"""The ``model`` section of an InternEvo config: one of its model types, with the keys that its class takes.

Source: InternEvo 0.5.3 (develop, commit 02ea919), internlm/model/modeling_*.py and modules/mlp.py; QWEN3MOE:
commit 4cdc7ba. tests/workload/settings/accepted lists the keys of every class.
"""

from fractions import Fraction

from spec.errors import ExportError
from spec.mixers.attention import AttentionKind, AttentionSpec, QkNormWeights, attention_of
from spec.model import BlockSpec, ModelSpec, MoeSpec, NormKind, NormPlace, PositionKind
from spec.readers.internlm_model import rounded_ffn
from workload.settings.launch_error import refuse_unless

NAME = "InternEvo"
Section = dict[str, object]


def model_type(model: ModelSpec) -> str:
    """The registered name of the layers of ``model``. Raises ExportError where there is none."""
    block, attention = _layers(model)
    if block.moe is not None:
        refuse_unless(not block.moe.bias, NAME, "biases of experts")
        return "QWEN3MOE" if attention.qk_norm else "QWEN2MOE" if block.moe.shared_gate else "MIXTRALMOE"
    refuse_unless(not attention.qk_norm, NAME, "norms of queries and keys in dense layers")
    mlp_bias = bool(block.mlp and block.mlp.bias)
    alike = attention.qkv_bias == attention.out_bias == mlp_bias
    return "INTERNLM2_PUBLIC" if alike and attention.window is None else "QWEN2"


def model_section(model: ModelSpec) -> Section:
    """What every plan shares of it. Raises ExportError for a model that InternEvo does not have."""
    block, attention = _layers(model)
    kind = model_type(model)
    refuse_unless(model.position is PositionKind.ROTARY, NAME, "other than rotary positions")
    refuse_unless(not (model.head_bias or model.embedding_norm), NAME, "a head bias or a norm of embeddings")
    refuse_unless(not model.tied_embeddings, NAME, "an embedding tied to the head")
    section: Section = {
        "num_layers": model.num_layers,
        "hidden_size": model.hidden,
        "vocab_size": model.vocab,
        **_attention(model, attention, kind),
        **_biases(block, attention, kind),
        **_feed_forward(model, block, kind),
        "norm_type": model.norm.value,
        "apply_post_layer_norm": False,
        "embed_grad_scale": 1,
        "parallel_output": True,
    }
    if model.rope is not None:
        section["rope_base"] = model.rope.base
    if model.norm_epsilon is not None:
        section["layer_norm_epsilon"] = model.norm_epsilon
    if model.max_positions:
        section["max_position_embeddings"] = model.max_positions
    return section


def unsaid(model: ModelSpec) -> tuple[str, ...]:
    """Facts of the model that InternEvo has no key for; none of them has a price."""
    notes = []
    if model.rope is not None and model.rope.scaling is not None:
        notes.append(f"rotary scaling {model.rope.scaling.kind} by {model.rope.scaling.factor:g}")
    if model.rope is not None and model.rope.share < 1.0:
        notes.append(f"rotation of {model.rope.share:g} of a head's channels: it rotates all")
    for part in (model.blocks[0].block.mlp, model.blocks[0].block.moe):
        if part is not None and part.activation == "gelu_tanh":
            notes.append("the tanh form of GELU: it computes the exact one")
    moe = model.blocks[0].block.moe
    return (*notes, *(_unsaid_of_router(moe, model_type(model)) if moe else ()))


def _unsaid_of_router(moe: MoeSpec, kind: str) -> tuple[str, ...]:
    notes = []
    if moe.route_groups > 1:
        notes.append(f"routing to {moe.route_chosen_groups} of {moe.route_groups} groups of experts")
    if kind != "QWEN3MOE":
        if moe.score != "softmax":
            notes.append(f"router scores by {moe.score}")
        if not moe.normalized and moe.topk > 1:
            notes.append("router weights that are not divided by their sum")
        if moe.route_scale != 1.0:
            notes.append(f"router weights times {moe.route_scale:g}")
    return tuple(notes)


def _layers(model: ModelSpec) -> tuple[BlockSpec, AttentionSpec]:
    refuse_unless(len(model.blocks) == 1, NAME, f"the mixed layers of {model.name}")
    block = model.blocks[0].block
    refuse_unless(not block.parallel_residual, NAME, "parallel residuals")
    refuse_unless(block.norm_place is NormPlace.BEFORE, NAME, "norms elsewhere than before each half")
    refuse_unless(model.norm is not NormKind.LAYER_WITHOUT_BIAS, NAME, "LayerNorm without biases")
    refuse_unless(not model.logit_softcap, NAME, "soft-capped logits")
    return block, attention_of(block.mixer, f"settings of {NAME}")


def _attention(model: ModelSpec, attention: AttentionSpec, kind: str) -> Section:
    plain = attention.kind is not AttentionKind.MLA and attention.qk_dim == attention.v_dim
    refuse_unless(
        plain and not (attention.sinks or attention.output_gate), NAME, f"the attention of {model.name}"
    )
    refuse_unless(not (attention.softcap or attention.chunk), NAME, "soft-capped or chunked attention")
    refuse_unless(not attention.alibi, NAME, "ALiBi")
    plain_norms = not attention.qk_norm or attention.qk_norm_weights is QkNormWeights.HEAD
    refuse_unless(plain_norms, NAME, "norms of queries and keys without one weight vector for all heads")
    section: Section = {
        "num_attention_heads": attention.num_heads,
        "num_kv_attention_heads": attention.num_kv_heads,
    }
    if attention.qk_dim * attention.num_heads != model.hidden:
        refuse_unless(
            kind == "QWEN3MOE",
            NAME,
            f"heads of {attention.qk_dim} channels on a hidden size of {model.hidden}",
        )
        section["head_dim"] = attention.qk_dim
    if attention.window is not None:
        section |= {"use_sliding_window": True, "sliding_window": attention.window}
    return section


def _biases(block: BlockSpec, attention: AttentionSpec, kind: str) -> Section:
    mlp_bias = bool(block.mlp and block.mlp.bias)
    if kind == "INTERNLM2_PUBLIC":
        return {"no_bias": not attention.qkv_bias}
    section: Section = {"qkv_bias": attention.qkv_bias, "o_bias": attention.out_bias}
    return section | {"mlp_bias": mlp_bias} if kind == "QWEN2" else section


def _feed_forward(model: ModelSpec, block: BlockSpec, kind: str) -> Section:
    """Every InternEvo layer is gated, by SiLU or, where use_swiglu is False, by GELU; experts by SiLU alone."""
    part = block.moe or block.mlp
    if part is None:
        raise ExportError(f"{NAME} has no setting for layers without a feed-forward network")
    refuse_unless(part.gated, NAME, "feed-forward layers without a gate")
    gates = ("silu",) if block.moe else ("silu", "gelu", "gelu_tanh")
    refuse_unless(part.activation in gates, NAME, f"gates by {part.activation}")
    if block.mlp is not None:
        return {**_width(model.hidden, block.mlp.ffn_hidden), "use_swiglu": block.mlp.activation == "silu"}
    assert block.moe is not None
    return {**_width(model.hidden, block.moe.expert_ffn_hidden), **_experts(block.moe, kind)}


def _experts(moe: MoeSpec, kind: str) -> Section:
    refuse_unless(not moe.router_bias, NAME, "score corrections of the router")
    refuse_unless(not moe.latent_hidden, NAME, "experts in a latent")
    shared, odd = divmod(moe.shared_ffn_hidden, moe.expert_ffn_hidden)
    refuse_unless(odd == 0, NAME, "shared experts of another width")
    drops = moe.capacity_factor is not None
    gated = moe.shared_gate or not shared
    refuse_unless(
        kind != "QWEN3MOE" or (gated and not drops), NAME, "these shared experts, or dropped tokens"
    )
    details: Section = {"capacity_factor": moe.capacity_factor} if drops else {}
    if kind == "QWEN3MOE":
        details |= {
            "scoring_func": moe.score,
            "normalize_expert_weights": moe.normalized,
            "routed_scaling_factor": moe.route_scale,
        }
    return {
        "use_swiglu": True,
        "num_experts": moe.num_experts,
        "top_k": moe.topk,
        "num_shared_experts": shared,
        "moe_type": "GShard" if drops else "Dropless",
        "moe_layer_kwargs": details,
    }


def _width(hidden: int, ffn: int) -> Section:
    """mlp_ratio and multiple_of that come out at ``ffn``: the width is int(hidden x ratio), rounded up."""
    unit = 256 if ffn % 256 == 0 else 1
    # With a unit of 1 nothing is rounded up, so a ratio that falls just short must not.
    for ratio in (ffn / hidden, float(Fraction(2 * ffn + 1, 2 * hidden))):
        if rounded_ffn(hidden, ratio, multiple_of=unit) == ffn:
            return {"mlp_ratio": ratio, "multiple_of": unit}
    raise ExportError(f"{NAME} has no setting for a feed-forward width of {ffn}")
