"""Hybrids as Hugging Face describes them: Nemotron-H and Nemotron-3, whose layers are Mamba-2, attention, an MLP or
experts; Qwen3-Next, where three layers of the gated delta rule stand beside one of gated attention.

Source: transformers ``models/nemotron_h/configuration_nemotron_h.py`` (defaults, letters of a pattern) and
``modular_nemotron_h.py`` (a norm, one of the four, a residual add; attention without positions; one shared
expert of its own width; a latent around routed experts); ``models/qwen3_next/configuration_qwen3_next.py``
and ``modular_qwen3_next.py``. What predicts further tokens: Megatron-Bridge, ``nemotron_h_bridge.py``,
``qwen3_next_bridge.py``.
"""

from collections.abc import Callable
from dataclasses import replace

from spec.mixers.gated_delta import GatedDeltaSpec
from spec.mixers.mamba2 import Mamba2Spec
from spec.mixers.mixer import Mixer
from spec.model import BlockRun, BlockSpec, ModelSpec, MoeSpec, PositionKind
from spec.readers.huggingface.parts import (
    PREDICTING,
    decoder,
    predicting,
    read_attention,
    read_experts,
    read_layer_numbers,
    read_layers,
    read_mlp,
    route_groups,
    routed_layers,
    runs_of,
    sparse_blocks,
    without_rotation,
)
from spec.section import MAX_LAYERS, Section

LETTERS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
LAYER_TYPES = ("linear_attention", "full_attention")
NAMES = {name: name for name in LETTERS.values()} | {
    "linear_attention": "mamba",
    "full_attention": "attention",
}


def nemotron_h(top: Section, name: str) -> ModelSpec:
    """Nemotron-H: one block a layer of ``hybrid_override_pattern`` (or ``layers_block_type``); those of the
    ``mtp_hybrid_override_pattern``, one mixer and one feed-forward network, make one more block that predicts."""
    _no_odd_biases(top, "use_bias", "use_conv_bias")
    top.only("mamba_proj_bias", (False,), "biases of Mamba-2's projections are not priced")
    top.only("residual_in_fp32", (False,), "residuals in fp32 are not priced")
    kinds = _kinds(top, "hybrid_override_pattern", "layers_block_type")
    if not kinds:
        top.fail("hybrid_override_pattern", f"required: a text of {' '.join(LETTERS)}, one for each layer")
    layers = top.integer("num_hidden_layers", len(kinds), maximum=MAX_LAYERS)
    if layers != len(kinds):
        top.fail("num_hidden_layers", f"as many as the pattern has: {len(kinds)}")
    blocks = [READERS[kind](top) for kind in kinds]
    runs = predicting(top, blocks, _predicting(top) if top.integer(PREDICTING, 0, minimum=0) else blocks[-1])
    epsilon = top.number("layer_norm_epsilon", top.number("rms_norm_eps", 1e-5, maximum=1.0), maximum=1.0)
    model = decoder(top, name, runs)
    return replace(model, position=PositionKind.NONE, rope=None, norm_epsilon=epsilon)


def _kinds(top: Section, pattern: str, listed: str) -> list[str]:
    """Returns what each layer is, by letters or by names; empty where the config has neither."""
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
    """Returns what predicts one more token: its mixer and its feed-forward network share the norms and the projection
    before them, and the norm behind."""
    kinds = _kinds(top, "mtp_hybrid_override_pattern", "mtp_layers_block_type") or ["attention", "moe"]
    if len(kinds) != 2 or kinds[0] not in ("mamba", "attention") or kinds[1] not in ("mlp", "moe"):
        top.fail("mtp_hybrid_override_pattern", "M or *, and then - or E: other blocks that predict are not priced")
    mixing, feeding = (READERS[kind](top) for kind in kinds)
    return replace(feeding, mixer=mixing.mixer)


def _mamba(top: Section) -> BlockSpec:
    mixer = Mamba2Spec(
        num_heads=top.integer("mamba_num_heads", 128),
        head_dim=top.integer("mamba_head_dim", 64),
        state_size=top.integer("ssm_state_size", 128),
        num_groups=top.integer("n_groups", 8),
        conv_kernel=top.integer("conv_kernel", 4),
        chunk_size=top.integer("chunk_size", 128),
    )
    if mixer.num_heads % mixer.num_groups:
        top.fail("n_groups", f"a divisor of mamba_num_heads = {mixer.num_heads}")
    return BlockSpec(mixer=mixer)


def _attention(top: Section) -> BlockSpec:
    attention = read_attention(top, head_dim=top.integer("attention_head_dim", 128))
    return BlockSpec(mixer=replace(attention, window=top.integer("sliding_window", None)))


def _mlp(top: Section) -> BlockSpec:
    return BlockSpec(mixer=None, mlp=read_mlp(top, gated=False, bias="mlp_bias"))


def _experts(top: Section) -> BlockSpec:
    top.only("n_shared_experts", (1,), "its width is moe_shared_expert_intermediate_size")
    groups, chosen = route_groups(top, "n_routed_experts")
    moe: MoeSpec = replace(
        read_experts(top, "n_routed_experts", "moe_intermediate_size"),
        gated=False,
        bias=top.flag("mlp_bias", False),
        shared_ffn_hidden=top.integer("moe_shared_expert_intermediate_size"),
        latent_hidden=top.integer("moe_latent_size", 0),
        router_bias=True,
        route_groups=groups,
        route_chosen_groups=chosen,
        score="sigmoid",
        normalized=top.flag("norm_topk_prob", True),
        route_scale=top.number("routed_scaling_factor", 1.0),
    )
    return BlockSpec(mixer=None, moe=moe)


READERS: dict[str, Callable[[Section], BlockSpec]] = {
    "mamba": _mamba,
    "attention": _attention,
    "mlp": _mlp,
    "moe": _experts,
}


def qwen3_next(top: Section, name: str) -> ModelSpec:
    """Qwen3-Next: layer i is of attention where ``layer_types`` says so, or else where
    ``full_attention_interval`` divides i + 1.
    """
    layers = top.integer("num_hidden_layers", maximum=MAX_LAYERS)
    every = top.integer("full_attention_interval", 4)
    types = top.texts("layer_types") or tuple(LAYER_TYPES[(index + 1) % every == 0] for index in range(layers))
    if len(types) != layers or not set(types) <= set(LAYER_TYPES):
        top.fail("layer_types", f"a list of {layers} texts out of {', '.join(LAYER_TYPES)}")
    attention = replace(read_attention(top, head_dim=256), qk_norm=True, output_gate=True)
    mixers: dict[str, Mixer] = {"linear_attention": _gated_delta(top), "full_attention": attention}
    moe = replace(
        read_experts(top, "num_experts", "moe_intermediate_size"),
        shared_ffn_hidden=top.integer("shared_expert_intermediate_size"),
        shared_gate=True,
        normalized=top.flag("norm_topk_prob", True),
    )
    routed = routed_layers(top, layers)
    mlp = None if all(routed) else read_mlp(top)
    blocks = sparse_blocks(attention, mlp, moe, routed)
    mixed = [replace(block, mixer=mixers[kind]) for block, kind in zip(blocks, types, strict=True)]
    return decoder(top, name, predicting(top, mixed, BlockSpec(mixer=attention, moe=moe)))


def _gated_delta(top: Section) -> GatedDeltaSpec:
    mixer = GatedDeltaSpec(
        num_key_heads=top.integer("linear_num_key_heads", 16),
        num_value_heads=top.integer("linear_num_value_heads", 32),
        key_dim=top.integer("linear_key_head_dim", 128),
        value_dim=top.integer("linear_value_head_dim", 128),
        conv_kernel=top.integer("linear_conv_kernel_dim", 4),
    )
    if mixer.num_value_heads % mixer.num_key_heads:
        top.fail("linear_num_key_heads", f"a divisor of linear_num_value_heads = {mixer.num_value_heads}")
    return mixer


# Mamba-2, and hybrids whose Mamba-2 and attention layers each end in a feed-forward network: Bamba, Granite 4.
#
# Source: transformers ``models/<type>/configuration_<type>.py`` (defaults) and ``modeling_<type>.py``.

GRANITE_LAYERS = {
    "mamba": "mamba",
    "linear_attention": "mamba",
    "attention": "attention",
    "full_attention": "attention",
}


def mamba2(top: Section, name: str) -> ModelSpec:
    """Mamba-2: layers that only mix; residuals are counted in the activations' format whatever
    ``residual_in_fp32`` says."""
    _no_odd_biases(top, "use_bias", "use_conv_bias")
    mixer = Mamba2Spec(
        num_heads=top.integer("num_heads"),
        head_dim=top.integer("head_dim"),
        state_size=top.integer("state_size", 128),
        num_groups=top.integer("n_groups", 8),
        conv_kernel=top.integer("conv_kernel", 4),
        chunk_size=top.integer("chunk_size", 256),
    )
    _check_groups(top, mixer, "n_groups")
    runs = (BlockRun(block=BlockSpec(mixer=mixer), count=read_layers(top)),)
    return without_rotation(decoder(top, name, runs))


def bamba(top: Section, name: str) -> ModelSpec:
    """Bamba: attention in the layers of ``attn_layer_indices``, Mamba-2 in the others, a gated MLP in all."""
    mlp = read_mlp(top, bias="mlp_bias")
    listed = read_layer_numbers(top, "attn_layer_indices")
    mixers: tuple[Mixer, Mixer] = (_granite_mamba(top), read_attention(top))
    blocks = [BlockSpec(mixer=mixers[index in listed], mlp=mlp) for index in range(read_layers(top))]
    return decoder(top, name, runs_of(blocks))


def granitemoehybrid(top: Section, name: str) -> ModelSpec:
    """Granite 4: a mixer of ``layer_types`` (Mamba-2 where the config lists none), then experts beside a
    shared one, or that one alone where there are no experts; positions rotate with
    ``position_embedding_type`` "rope"."""
    attention, layers = read_attention(top), read_layers(top)
    types = top.texts("layer_types") or ("mamba",) * layers
    if len(types) != layers or not set(types) <= set(GRANITE_LAYERS):
        top.fail("layer_types", f"a list of {layers} texts out of {', '.join(GRANITE_LAYERS)}")
    kinds = [GRANITE_LAYERS[each] for each in types]
    mixers: dict[str, Mixer] = {"attention": attention}
    if "mamba" in kinds:
        mixers["mamba"] = _granite_mamba(top)
    width = top.integer("shared_intermediate_size")
    half = BlockSpec(mixer=attention, mlp=read_mlp(top, key="shared_intermediate_size"))
    if top.integer("num_local_experts", minimum=0):
        moe = read_experts(top, "num_local_experts", "intermediate_size")
        half = BlockSpec(mixer=attention, moe=replace(moe, shared_ffn_hidden=width, normalized=True))
    model = decoder(top, name, runs_of([replace(half, mixer=mixers[kind]) for kind in kinds]))
    rotates = top.text("position_embedding_type", "none") == "rope"
    return model if rotates else without_rotation(model)


def _granite_mamba(top: Section) -> Mamba2Spec:
    _no_odd_biases(top, "mamba_proj_bias", "mamba_conv_bias")
    heads, inner = (
        top.integer("mamba_n_heads"),
        top.integer("mamba_expand", 2) * top.integer("hidden_size"),
    )
    width = inner // heads if top.values.get("mamba_d_head") == "auto" else top.integer("mamba_d_head")
    if heads * width != inner:
        top.fail("mamba_n_heads", f"a divisor of mamba_expand x hidden_size = {inner}, heads of mamba_d_head")
    mixer = Mamba2Spec(
        num_heads=heads,
        head_dim=width,
        state_size=top.integer("mamba_d_state", 256),
        num_groups=top.integer("mamba_n_groups", 1),
        conv_kernel=top.integer("mamba_d_conv", 4),
        chunk_size=top.integer("mamba_chunk_size", 256),
    )
    _check_groups(top, mixer, "mamba_n_groups")
    return mixer


def _no_odd_biases(top: Section, projections: str, convolution: str) -> None:
    top.only(projections, (False,), "biases of Mamba-2's projections are not priced")
    top.only(convolution, (True,), "a convolution without biases is not priced")


def _check_groups(top: Section, mixer: Mamba2Spec, key: str) -> None:
    if mixer.num_heads % mixer.num_groups:
        top.fail(key, f"a divisor of {mixer.num_heads} heads")
