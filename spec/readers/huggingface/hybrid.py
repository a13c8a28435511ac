"""Hybrids whose layers are Mamba-2, attention, an MLP or experts: Nemotron-H and Nemotron-3; Bamba and Granite 4, whose layers each
end in a feed-forward network; Mamba-2 alone.

Source: transformers ``models/<type>/configuration_<type>.py`` and ``modeling_<type>.py``; of nemotron_h
``modular_nemotron_h.py`` (a norm, one of the four, a residual add; attention without positions; one shared
expert of its own width; a latent around routed experts). What predicts further tokens: Megatron-Bridge, ``nemotron_h_bridge.py``.
"""

from collections.abc import Callable
from dataclasses import replace

from spec.mixers.mamba2 import Mamba2Spec
from spec.mixers.mixer import Mixer
from spec.mixers.side_by_side import SideBySideSpec
from spec.model import BlockRun, BlockSpec, MlpSpec, ModelSpec, PositionKind
from spec.readers.huggingface.decoder import model_of, read_attention, read_experts
from spec.readers.huggingface.parts import PREDICTING, activation, predicting, read_layer_numbers, read_layers, runs_of
from spec.readers.huggingface.type_facts import TypeFacts
from spec.section import MAX_LAYERS, Section

LETTERS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
NAMES = {name: name for name in LETTERS.values()} | {"linear_attention": "mamba", "full_attention": "attention"}


def nemotron_h(top: Section, facts: TypeFacts, name: str) -> ModelSpec:
    """Returns one block for each letter of ``hybrid_override_pattern`` or name of ``layers_block_type``."""
    _no_odd_biases(top, "use_bias", "use_conv_bias")
    top.only("mamba_proj_bias", (False,), "biases of Mamba-2's projections are not priced")
    top.only("residual_in_fp32", (False,), "residuals in fp32 are not priced")
    kinds = _kinds(top, "hybrid_override_pattern", "layers_block_type")
    if not kinds:
        top.fail("hybrid_override_pattern", f"required: a text of {' '.join(LETTERS)}, one for each layer")
    layers = top.integer("num_hidden_layers", len(kinds), maximum=MAX_LAYERS)
    if layers != len(kinds):
        top.fail("num_hidden_layers", f"as many as the pattern has: {len(kinds)}")
    blocks = [READERS[kind](top, facts) for kind in kinds]
    predicts = _predicting(top, facts) if top.integer(PREDICTING, 0, minimum=0) else blocks[-1]
    return model_of(top, facts, name, predicting(top, blocks, predicts))


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


def _predicting(top: Section, facts: TypeFacts) -> BlockSpec:
    """Returns what predicts one more token: its mixer and its feed-forward network share the norms and the projection
    before them, and the norm behind."""
    kinds = _kinds(top, "mtp_hybrid_override_pattern", "mtp_layers_block_type") or ["attention", "moe"]
    if len(kinds) != 2 or kinds[0] not in ("mamba", "attention") or kinds[1] not in ("mlp", "moe"):
        top.fail("mtp_hybrid_override_pattern", "M or *, and then - or E: other blocks that predict are not priced")
    mixing, feeding = (READERS[kind](top, facts) for kind in kinds)
    return replace(feeding, mixer=mixing.mixer)


def _mamba(top: Section, _: TypeFacts) -> BlockSpec:
    return BlockSpec(mixer=_mamba2(top, "mamba_num_heads", "mamba_head_dim", "ssm_state_size"))


def _attention(top: Section, facts: TypeFacts) -> BlockSpec:
    attention = read_attention(top, facts)
    return BlockSpec(mixer=replace(attention, window=top.integer("sliding_window", None)))


def _mlp(top: Section, _: TypeFacts) -> BlockSpec:
    width, bias = top.integer("intermediate_size"), top.flag("mlp_bias", False)
    return BlockSpec(mixer=None, mlp=MlpSpec(ffn_hidden=width, gated=False, bias=bias, activation=activation(top)))


def _experts(top: Section, facts: TypeFacts) -> BlockSpec:
    top.only("n_shared_experts", (1,), "its width is moe_shared_expert_intermediate_size")
    moe = read_experts(top, replace(facts, expert_bias=top.flag("mlp_bias", False)))
    return BlockSpec(mixer=None, moe=replace(moe, latent_hidden=top.integer("moe_latent_size", 0)))


READERS: dict[str, Callable[[Section, TypeFacts], BlockSpec]] = {
    "mamba": _mamba,
    "attention": _attention,
    "mlp": _mlp,
    "moe": _experts,
}


# Mamba-2, and hybrids whose Mamba-2 and attention layers each end in a feed-forward network.


def mamba2(top: Section, facts: TypeFacts, name: str) -> ModelSpec:
    """Returns layers that only mix; residuals are counted in the activations' format whatever ``residual_in_fp32`` says."""
    _no_odd_biases(top, "use_bias", "use_conv_bias")
    mixer = _mamba2(top, "num_heads", "head_dim", "state_size")
    return model_of(top, facts, name, (BlockRun(block=BlockSpec(mixer=mixer), count=read_layers(top)),))


def _mamba2(top: Section, heads: str, head_dim: str, state_size: str) -> Mamba2Spec:
    mixer = Mamba2Spec(
        num_heads=top.integer(heads),
        head_dim=top.integer(head_dim),
        state_size=top.integer(state_size),
        num_groups=top.integer("n_groups"),
        conv_kernel=top.integer("conv_kernel"),
        chunk_size=top.integer("chunk_size"),
    )
    _check_groups(top, mixer, "n_groups")
    return mixer


def bamba(top: Section, facts: TypeFacts, name: str) -> ModelSpec:
    """Returns attention in the layers of ``attn_layer_indices``, Mamba-2 in the others, a gated MLP in all."""
    half = _gated(top, top.integer("intermediate_size"), bias=top.flag("mlp_bias", False))
    listed = read_layer_numbers(top, "attn_layer_indices")
    mixers: tuple[Mixer, Mixer] = (_granite_mamba(top), read_attention(top, facts))
    blocks = [BlockSpec(mixer=mixers[index in listed], mlp=half) for index in range(read_layers(top))]
    return model_of(top, facts, name, runs_of(blocks))


def falcon_h1(top: Section, facts: TypeFacts, name: str) -> ModelSpec:
    """Returns attention and Mamba-2 side by side in every layer, of ``mamba_d_ssm`` channels where the file says how many; a norm
    before Mamba-2's output where ``mamba_rms_norm`` says so."""
    top.only("projectors_bias", (False,), "biases of Mamba-2's projections are not priced")
    mamba = replace(_granite_mamba(top), inner_norm=top.flag("mamba_rms_norm", False))
    mixer = SideBySideSpec(attention=read_attention(top, facts), mamba2=mamba)
    half = _gated(top, top.integer("intermediate_size"), bias=top.flag("mlp_bias", False))
    return model_of(top, facts, name, (BlockRun(block=BlockSpec(mixer=mixer, mlp=half), count=read_layers(top)),))


def granitemoehybrid(top: Section, facts: TypeFacts, name: str) -> ModelSpec:
    """Returns a mixer of ``layer_types`` (Mamba-2 where the config lists none), then experts beside a shared one, or
    that one alone; positions rotate with ``position_embedding_type`` "rope"."""
    attention, layers = read_attention(top, facts), read_layers(top)
    types = top.texts("layer_types") or ("mamba",) * layers
    if len(types) != layers or not set(types) <= set(GRANITE_LAYERS):
        top.fail("layer_types", f"a list of {layers} texts out of {', '.join(GRANITE_LAYERS)}")
    kinds = [GRANITE_LAYERS[each] for each in types]
    mixers: dict[str, Mixer] = {"attention": attention}
    if "mamba" in kinds:
        mixers["mamba"] = _granite_mamba(top)
    half = BlockSpec(mixer=attention, mlp=_gated(top, top.integer("shared_expert_intermediate_size")))
    if top.integer("num_experts", minimum=0):
        half = BlockSpec(mixer=attention, moe=read_experts(top, facts))
    rotates = top.text("position_embedding_type", "none") == "rope"
    facts = facts if rotates else replace(facts, position=PositionKind.NONE)
    return model_of(top, facts, name, runs_of([replace(half, mixer=mixers[kind]) for kind in kinds]))


GRANITE_LAYERS = {name: kind for name, kind in NAMES.items() if kind in ("mamba", "attention")}


def _gated(top: Section, width: int, *, bias: bool = False) -> MlpSpec:
    return MlpSpec(ffn_hidden=width, gated=True, bias=bias, activation=activation(top))


def _granite_mamba(top: Section) -> Mamba2Spec:
    _no_odd_biases(top, "mamba_proj_bias", "mamba_conv_bias")
    heads = top.integer("mamba_n_heads")
    inner = top.integer("mamba_d_ssm", top.integer("mamba_expand") * top.integer("hidden_size"))
    width = inner // heads if top.values.get("mamba_d_head") == "auto" else top.integer("mamba_d_head")
    if heads * width != inner:
        top.fail("mamba_n_heads", f"a divisor of mamba_expand x hidden_size = {inner}, heads of mamba_d_head")
    mixer = Mamba2Spec(
        num_heads=heads,
        head_dim=width,
        state_size=top.integer("mamba_d_state"),
        num_groups=top.integer("mamba_n_groups"),
        conv_kernel=top.integer("mamba_d_conv"),
        chunk_size=top.integer("mamba_chunk_size"),
    )
    _check_groups(top, mixer, "mamba_n_groups")
    return mixer


def _no_odd_biases(top: Section, projections: str, convolution: str) -> None:
    top.only(projections, (False,), "biases of Mamba-2's projections are not priced")
    top.only(convolution, (True,), "a convolution without biases is not priced")


def _check_groups(top: Section, mixer: Mamba2Spec, key: str) -> None:
    if mixer.num_heads % mixer.num_groups:
        top.fail(key, f"a divisor of {mixer.num_heads} heads")
