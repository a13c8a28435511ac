"""Mamba-2, and hybrids whose Mamba-2 and attention layers each end in a feed-forward network: Bamba, Granite 4.

Source: transformers ``models/<type>/configuration_<type>.py`` (defaults) and ``modeling_<type>.py``.
"""

from dataclasses import replace

from spec.mixers.mamba2 import Mamba2Spec
from spec.mixers.mixer import Mixer
from spec.model import BlockRun, BlockSpec, MlpSpec, ModelSpec
from spec.readers.huggingface.experts import read_experts, read_layer_numbers
from spec.readers.huggingface.facts import activation
from spec.readers.huggingface.parts import (
    decoder,
    read_attention,
    read_layers,
    read_mlp,
    runs_of,
    without_rotation,
)
from spec.section import Section

NAMES = {
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
        state_size=top.integer_or("state_size", 128),
        num_groups=top.integer_or("n_groups", 8),
        conv_kernel=top.integer_or("conv_kernel", 4),
        chunk_size=top.integer_or("chunk_size", 256),
    )
    _check_groups(top, mixer, "n_groups")
    runs = (BlockRun(block=BlockSpec(mixer=mixer), count=read_layers(top)),)
    return without_rotation(decoder(top, name, runs))


def bamba(top: Section, name: str) -> ModelSpec:
    """Bamba: attention in the layers of ``attn_layer_indices``, Mamba-2 in the others, a gated MLP in all."""
    bias = top.flag("attention_bias", False)
    attention = read_attention(top, qkv_bias=bias, out_bias=bias)
    mlp = read_mlp(top, bias=top.flag("mlp_bias", False))
    listed = read_layer_numbers(top, "attn_layer_indices")
    mixers: tuple[Mixer, Mixer] = (_mamba(top), attention)
    blocks = [BlockSpec(mixer=mixers[index in listed], mlp=mlp) for index in range(read_layers(top))]
    return decoder(top, name, runs_of(blocks))


def granitemoehybrid(top: Section, name: str) -> ModelSpec:
    """Granite 4: a mixer of ``layer_types`` (Mamba-2 where the config lists none), then experts beside a
    shared one, or that one alone where there are no experts; positions rotate with
    ``position_embedding_type`` "rope"."""
    bias, layers = top.flag("attention_bias", False), read_layers(top)
    attention = read_attention(top, qkv_bias=bias, out_bias=bias)
    types = top.texts("layer_types") or ("mamba",) * layers
    if len(types) != layers or not set(types) <= set(NAMES):
        top.fail("layer_types", f"a list of {layers} texts out of {', '.join(NAMES)}")
    kinds = [NAMES[each] for each in types]
    mixers: dict[str, Mixer] = {"attention": attention}
    if "mamba" in kinds:
        mixers["mamba"] = _mamba(top)
    width = top.integer("shared_intermediate_size")
    half = BlockSpec(mixer=attention, mlp=MlpSpec(ffn_hidden=width, gated=True, activation=activation(top)))
    if top.integer("num_local_experts", minimum=0):
        moe = read_experts(top, "num_local_experts", "intermediate_size")
        half = BlockSpec(mixer=attention, moe=replace(moe, shared_ffn_hidden=width, normalized=True))
    model = decoder(top, name, runs_of([replace(half, mixer=mixers[kind]) for kind in kinds]))
    rotates = top.text("position_embedding_type", "none") == "rope"
    return model if rotates else without_rotation(model)


def _mamba(top: Section) -> Mamba2Spec:
    _no_odd_biases(top, "mamba_proj_bias", "mamba_conv_bias")
    heads, inner = (
        top.integer("mamba_n_heads"),
        top.integer_or("mamba_expand", 2) * top.integer("hidden_size"),
    )
    width = inner // heads if top.values.get("mamba_d_head") == "auto" else top.integer("mamba_d_head")
    if heads * width != inner:
        top.fail("mamba_n_heads", f"a divisor of mamba_expand x hidden_size = {inner}, heads of mamba_d_head")
    mixer = Mamba2Spec(
        num_heads=heads,
        head_dim=width,
        state_size=top.integer_or("mamba_d_state", 256),
        num_groups=top.integer_or("mamba_n_groups", 1),
        conv_kernel=top.integer_or("mamba_d_conv", 4),
        chunk_size=top.integer_or("mamba_chunk_size", 256),
    )
    _check_groups(top, mixer, "mamba_n_groups")
    return mixer


def _no_odd_biases(top: Section, projections: str, convolution: str) -> None:
    top.only(projections, (False,), "biases of Mamba-2's projections are not priced")
    top.only(convolution, (True,), "a convolution without biases is not priced")


def _check_groups(top: Section, mixer: Mamba2Spec, key: str) -> None:
    if mixer.num_heads % mixer.num_groups:
        top.fail(key, f"a divisor of {mixer.num_heads} heads")
