"""Nemotron-H and Nemotron-3 as Hugging Face describes them: each layer is Mamba-2, attention, an MLP or experts.

Source: transformers ``models/nemotron_h/configuration_nemotron_h.py`` (defaults, letters of a pattern) and
``modular_nemotron_h.py`` (a norm, one of the four, a residual add; attention without positions; one shared expert of its
own width; a latent around routed experts); Megatron-Bridge, ``nemotron_h_bridge.py``, for what surrounds the prediction of
further tokens.
"""

from collections.abc import Callable
from dataclasses import replace

from spec.mixers.attention import AttentionSpec
from spec.mixers.mamba2 import Mamba2Spec
from spec.model import BlockRun, BlockSpec, MlpSpec, ModelSpec, MoeSpec, PositionKind
from spec.readers.huggingface_dense import decoder, read_attention, runs_of
from spec.readers.huggingface_facts import activation
from spec.readers.huggingface_moe import read_experts, route_groups
from spec.section import MAX_LAYERS, Section

LETTERS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
NAMES = {name: name for name in LETTERS.values()} | {
    "linear_attention": "mamba",
    "full_attention": "attention",
}


def nemotron_h(top: Section, name: str) -> ModelSpec:
    """One block a layer of ``hybrid_override_pattern`` (or ``layers_block_type``); those of the
    ``mtp_hybrid_override_pattern``, one mixer and one feed-forward network, make one more block that predicts."""
    top.only("use_bias", (False,), "biases of Mamba-2's projections are not priced")
    top.only("mamba_proj_bias", (False,), "biases of Mamba-2's projections are not priced")
    top.only("use_conv_bias", (True,), "a convolution without biases is not priced")
    top.only("residual_in_fp32", (False,), "residuals in fp32 are not priced")
    kinds = _kinds(top, "hybrid_override_pattern", "layers_block_type")
    if not kinds:
        top.fail("hybrid_override_pattern", f"required: a text of {' '.join(LETTERS)}, one for each layer")
    layers = top.integer_or("num_hidden_layers", len(kinds), maximum=MAX_LAYERS)
    if layers != len(kinds):
        top.fail("num_hidden_layers", f"as many as the pattern has: {len(kinds)}")
    runs = runs_of([READERS[kind](top) for kind in kinds])
    extra = top.integer_or("num_nextn_predict_layers", 0, minimum=0)
    if extra:
        runs = (*runs, BlockRun(block=_predicting(top), count=extra))
    epsilon = top.number_or("layer_norm_epsilon", top.number_or("rms_norm_eps", 1e-5))
    model = decoder(top, name, runs)
    return replace(model, position=PositionKind.NONE, rope=None, norm_epsilon=epsilon)


def _kinds(top: Section, pattern: str, listed: str) -> list[str]:
    """What each layer is, by letters or by names; empty where the config has neither."""
    if top.has(pattern):
        letters = top.text(pattern)
        if not set(letters) <= set(LETTERS) or len(letters) > MAX_LAYERS:
            top.fail(pattern, f"a text of {' '.join(LETTERS)}, one for each layer")
        return [LETTERS[letter] for letter in letters]
    names = top.texts(listed)
    if not set(names) <= set(NAMES) or len(names) > MAX_LAYERS:
        top.fail(listed, f"a list of {', '.join(NAMES)}, one for each layer")
    return [NAMES[each] for each in names]


def _predicting(top: Section) -> BlockSpec:
    """What predicts one more token: its mixer and its feed-forward network share the norms and the projection
    before them, and the norm behind."""
    kinds = _kinds(top, "mtp_hybrid_override_pattern", "mtp_layers_block_type") or ["attention", "moe"]
    if len(kinds) != 2 or kinds[0] not in ("mamba", "attention") or kinds[1] not in ("mlp", "moe"):
        top.fail(
            "mtp_hybrid_override_pattern", "M or *, and then - or E: other blocks that predict are not priced"
        )
    mixing, feeding = (READERS[kind](top) for kind in kinds)
    return replace(feeding, mixer=mixing.mixer, mtp=True)


def _mamba(top: Section) -> BlockSpec:
    mixer = Mamba2Spec(
        num_heads=top.integer_or("mamba_num_heads", 128),
        head_dim=top.integer_or("mamba_head_dim", 64),
        state_size=top.integer_or("ssm_state_size", 128),
        num_groups=top.integer_or("n_groups", 8),
        conv_kernel=top.integer_or("conv_kernel", 4),
        chunk_size=top.integer_or("chunk_size", 128),
    )
    if mixer.num_heads % mixer.num_groups:
        top.fail("n_groups", f"a divisor of mamba_num_heads = {mixer.num_heads}")
    return BlockSpec(mixer=mixer)


def _attention(top: Section) -> BlockSpec:
    bias = top.flag("attention_bias", False)
    width = top.integer_or("attention_head_dim", 128)
    attention: AttentionSpec = read_attention(top, qkv_bias=bias, out_bias=bias, head_dim=width)
    return BlockSpec(mixer=replace(attention, window=top.maybe_integer("sliding_window")))


def _mlp(top: Section) -> BlockSpec:
    mlp = MlpSpec(
        ffn_hidden=top.integer("intermediate_size"),
        gated=False,
        bias=top.flag("mlp_bias", False),
        activation=activation(top),
    )
    return BlockSpec(mixer=None, mlp=mlp)


def _experts(top: Section) -> BlockSpec:
    top.only("n_shared_experts", (1,), "its width is moe_shared_expert_intermediate_size")
    groups, chosen = route_groups(top, "n_routed_experts")
    moe: MoeSpec = replace(
        read_experts(top, "n_routed_experts", "moe_intermediate_size"),
        gated=False,
        bias=top.flag("mlp_bias", False),
        shared_ffn_hidden=top.integer("moe_shared_expert_intermediate_size"),
        latent_hidden=top.integer_or("moe_latent_size", 0),
        router_bias=True,
        route_groups=groups,
        route_chosen_groups=chosen,
        score="sigmoid",
        normalized=top.flag("norm_topk_prob", True),
        route_scale=top.number_or("routed_scaling_factor", 1.0),
    )
    return BlockSpec(mixer=None, moe=moe)


READERS: dict[str, Callable[[Section], BlockSpec]] = {
    "mamba": _mamba,
    "attention": _attention,
    "mlp": _mlp,
    "moe": _experts,
}
