"""The ``model`` section of an InternLM-style config, turned into a ModelSpec.

Layer by layer as InternEvo builds them (``internlm/model/modeling_*.py``, ``modules/mlp.py``).
"""

from dataclasses import dataclass

from spec.mixers.attention import AttentionKind, AttentionSpec
from spec.mixers.rope import RopeScaling, RopeSpec
from spec.model import BlockRun, BlockSpec, MlpSpec, ModelSpec, MoeSpec, NormKind
from spec.readers.internlm_keys import MODEL, MOE
from spec.section import MAX_LAYERS, Section


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """What ``model_type`` fixes.

    ``biases``: "always" (q, k, v and output), "unless_no_bias" (all four and the MLP unless
    ``no_bias``) or "split" (``qkv_bias`` and ``o_bias``, by default only the former).
    """

    biases: str
    qk_norm: bool = False
    shared_gate: bool = False


# model_type names as InternEvo registers them (internlm/model/builder.py)
FAMILIES: dict[str, Family] = {
    "INTERNLM": Family(biases="always"),
    "INTERNLM_MoE": Family(biases="always"),
    "INTERNLM2": Family(biases="unless_no_bias"),
    "INTERNLM2_PUBLIC": Family(biases="unless_no_bias"),
    "INTERNLM3": Family(biases="unless_no_bias"),
    "LLAMA": Family(biases="unless_no_bias"),
    "LLAMA2": Family(biases="unless_no_bias"),
    "BAICHUAN2": Family(biases="unless_no_bias"),
    "QWEN2": Family(biases="split"),
    "QWEN2MOE": Family(biases="split", shared_gate=True),
    "MIXTRALMOE": Family(biases="split"),
    "QWEN3MOE": Family(biases="split", qk_norm=True),
}

MOE_TYPES_DROPPING = ("GShard", "MegaBlock")
MOE_TYPES_DROPLESS = ("MegaBlock-D", "MegaBlock-Dropless", "Dropless")


def read_internlm_model(
    model: Section, moe: Section, *, model_type: str, name: str, source: str
) -> ModelSpec:
    """The ModelSpec of the sections ``model`` and ``moe``; raises ConfigError for a bad key.

    ``model_type`` must be one of FAMILIES; ``source`` is the file the model comes from.
    """
    family = FAMILIES[model_type]
    hidden = model.integer("hidden_size")
    _refuse_unpriced(model)
    attention, mlp_bias = _attention(model, family, hidden, model_type)
    norm = NormKind(model.choice("norm_type", [kind.value for kind in NormKind], "rmsnorm"))
    ffn = rounded_ffn(
        hidden, model.measure("mlp_ratio", *MLP_RATIOS), multiple_of=model.integer_or("multiple_of", 256)
    )
    swiglu = model.flag("use_swiglu", True)
    experts = _experts(model, moe, family, ffn)
    # without SwiGLU the gate is a GELU (InternEvo 0.5.3, internlm/model/modules/mlp.py, FeedForward)
    dense = MlpSpec(ffn_hidden=ffn, gated=True, bias=mlp_bias, activation="silu" if swiglu else "gelu")
    block = BlockSpec(mixer=attention, mlp=None if experts else dense, moe=experts, norm=norm)
    spec = ModelSpec(
        name=name,
        hidden=hidden,
        vocab=model.integer("vocab_size"),
        blocks=(BlockRun(block=block, count=model.integer("num_layers", maximum=MAX_LAYERS)),),
        source=f"{source} ({model_type})",
        tied_embeddings=model.flag("tie_embeddings_and_output_weights", False),
        max_positions=model.integer_or("max_position_embeddings", 0),
        norm=norm,
        rope=_rope(model),
        norm_epsilon=model.number_or("layer_norm_epsilon", 1e-5, maximum=1.0),
    )
    model.close(MODEL)
    moe.close(MOE)
    return spec


MLP_RATIOS = (1e-3, 1e3)
"""Narrowest and widest MLP over hidden that anybody means: published ones lie from 0.1 (an expert) to 8."""


def rounded_ffn(hidden: int, mlp_ratio: float, *, multiple_of: int) -> int:
    """InternEvo's MLP width: int(hidden * mlp_ratio) rounded up to ``multiple_of``.

    Source: InternEvo ``internlm/model/modules/mlp.py``, FeedForward.
    """
    return multiple_of * -(-int(hidden * mlp_ratio) // multiple_of)


def _rope(model: Section) -> RopeSpec:
    """Base 10,000 unless said; dynamic NTK is the one scaling InternEvo has."""
    factor = model.number_or("rope_scaling_factor", 1.0)
    dynamic = model.flag("use_dynamic_ntk_rope", False)
    return RopeSpec(
        base=model.number_or("rope_base", 10_000.0),
        scaling=RopeScaling(kind="dynamic", factor=factor) if dynamic else None,
    )


def _refuse_unpriced(model: Section) -> None:
    """Settings that would change the answer and have no price yet."""
    model.only("apply_post_layer_norm", (False,), "post-norm blocks are not priced")
    model.only("residual_in_fp32", (False,), "fp32 residuals are not priced")
    model.only("attn_drop_rate", (0, 0.0), "dropout is not priced")
    model.only("drop_rate", (0, 0.0), "dropout is not priced")
    model.only("is_reward", (False,), "reward heads are not priced")
    model.only("moe_use_residual", (False,), "residual experts are not priced")
    model.only("first_k_dense_replace", (0,), "use a Hugging Face or TOML config for mixed layers")
    model.only("mtp_depth", (0,), "use a Hugging Face or TOML config for multi-token prediction")


def _attention(model: Section, family: Family, hidden: int, model_type: str) -> tuple[AttentionSpec, bool]:
    """The attention layer, and whether the MLP has biases."""
    heads = model.integer("num_attention_heads")
    kv_heads = model.integer_or("num_kv_attention_heads", heads)
    if heads % kv_heads:
        model.fail("num_kv_attention_heads", f"a divisor of num_attention_heads = {heads}")
    if not model.has("head_dim") and hidden % heads:
        model.fail("num_attention_heads", f"a divisor of hidden_size = {hidden}, or give head_dim")
    head_dim = model.integer_or("head_dim", hidden // heads)
    no_bias = model.flag("no_bias", False)
    if family.biases == "always":
        qkv_bias, out_bias, mlp_bias = True, True, False
        if no_bias:
            model.fail("no_bias", f"absent or False: {model_type} always has attention biases")
    elif family.biases == "split":
        qkv_bias = model.flag("qkv_bias", model_type != "QWEN3MOE" and not no_bias)
        out_bias, mlp_bias = model.flag("o_bias", False), model.flag("mlp_bias", False)
    else:
        qkv_bias = out_bias = mlp_bias = not no_bias
    window = None
    if model.flag("use_sliding_window", False):
        window = model.integer("sliding_window")
    else:
        model.has("sliding_window")
    spec = AttentionSpec(
        kind=AttentionKind.MHA if kv_heads == heads else AttentionKind.GQA,
        num_heads=heads,
        num_kv_heads=kv_heads,
        qk_dim=head_dim,
        v_dim=head_dim,
        window=window,
        qkv_bias=qkv_bias,
        out_bias=out_bias,
        qk_norm=family.qk_norm,
    )
    return spec, mlp_bias


def _experts(model: Section, moe: Section, family: Family, ffn: int) -> MoeSpec | None:
    """The experts, or None for a dense model (num_experts absent or 1)."""
    num_experts = model.integer_or("num_experts", 1)
    kind = model.choice("moe_type", MOE_TYPES_DROPPING + MOE_TYPES_DROPLESS, "GShard")
    kwargs = model.section("moe_layer_kwargs")
    topk = _written_topk(model, moe)
    shared = model.integer_or("num_shared_experts", 0, minimum=0)
    capacity = _capacity(model, moe, kwargs, kind)
    # GShard's top-1 gate keeps its probability, every other divides by the sum of the chosen
    normalized = kwargs.flag("normalize_expert_weights", topk > 1 or kind in MOE_TYPES_DROPLESS)
    score = kwargs.choice("scoring_func", ("softmax", "sigmoid"), "softmax")
    route_scale = kwargs.number_or("routed_scaling_factor", 1.0)
    kwargs.close(MOE)
    if num_experts == 1:
        return None
    if topk > num_experts:
        model.fail("top_k", f"at most num_experts = {num_experts}")
    return MoeSpec(
        num_experts=num_experts,
        topk=topk,
        expert_ffn_hidden=ffn,
        shared_ffn_hidden=shared * ffn,
        shared_gate=family.shared_gate and shared > 0,
        capacity_factor=capacity,
        normalized=normalized,
        score=score,
        route_scale=route_scale,
    )


def _written_topk(model: Section, moe: Section) -> int:
    """Experts per token: model.top_k, model.moe_gate_k or moe.top_k; InternEvo's default is 1."""
    written = [
        value
        for value in (
            model.maybe_integer("top_k"),
            model.maybe_integer("moe_gate_k"),
            moe.maybe_integer("top_k"),
        )
        if value is not None
    ]
    if len(set(written)) > 1:
        moe.fail("top_k", "the same number wherever it is written")
    return written[0] if written else 1


def _capacity(model: Section, moe: Section, kwargs: Section, kind: str) -> float | None:
    """Capacity factor of kinds that drop tokens (InternEvo's default 1.0); None means dropless."""
    factor = 1.0
    for section, key in (
        (model, "moe_capacity_factor"),
        (moe, "capacity_factor"),
        (kwargs, "capacity_factor"),
    ):
        if section.has(key):
            factor = section.number(key)
    drops = True
    for section, key in ((model, "moe_drop_tokens"), (moe, "drop_tokens"), (kwargs, "drop_tokens")):
        drops = section.flag(key, drops)
    return factor if drops and kind in MOE_TYPES_DROPPING else None
