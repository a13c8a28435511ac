"""Dense model types of Llama's form, gated and with RMSNorm: what each has of biases, norms and windows.

Source: transformers ``models/<type>/configuration_<type>.py`` (defaults) and ``modeling_<type>.py``
(which layers have biases and norms); InternLM2: ``modeling_internlm2.py`` beside its weights.
"""

from dataclasses import replace

from spec.mixers.attention import AttentionSpec, QkNormWeights
from spec.model import BlockSpec, ModelSpec, NormKind, NormPlace
from spec.readers.huggingface.parts import (
    every,
    reaches,
    read_attention,
    read_layers,
    read_mlp,
    read_windows,
    uniform,
)
from spec.section import Section


def llama(top: Section, name: str) -> ModelSpec:
    """Llama 1, 2 and 3, Granite, SmolLM3: ``attention_bias`` and ``mlp_bias`` default to False. What Granite
    multiplies by and where SmolLM3 rotates nothing costs nothing."""
    bias = top.flag("attention_bias", False)
    attention = read_attention(top, qkv_bias=bias, out_bias=bias)
    return _gated(top, name, attention, mlp_bias=top.flag("mlp_bias", False))


def mistral(top: Section, name: str) -> ModelSpec:
    """Mistral: ``sliding_window`` null means full attention; absent means the class default."""
    return _gated(top, name, replace(read_attention(top), window=top.maybe_integer("sliding_window")))


def phi3(top: Section, name: str) -> ModelSpec:
    """Phi-3 and Phi-4: no biases, joined matrices."""
    return mistral(top, name)


def qwen2(top: Section, name: str) -> ModelSpec:
    """Qwen2 and Qwen2.5: biases on q, k and v only; windows on layers past ``max_window_layers``."""
    return _windowed(top, name, read_attention(top, qkv_bias=True))


def qwen3(top: Section, name: str) -> ModelSpec:
    """Qwen3: a norm on each head's query and key."""
    bias = top.flag("attention_bias", False)
    attention = read_attention(top, qkv_bias=bias, out_bias=bias)
    return _windowed(top, name, replace(attention, qk_norm=True))


def internlm2(top: Section, name: str) -> ModelSpec:
    """InternLM2: ``bias`` covers wqkv and wo, never the MLP."""
    bias = top.flag("bias", False)
    return _gated(top, name, read_attention(top, qkv_bias=bias, out_bias=bias))


def seed_oss(top: Section, name: str) -> ModelSpec:
    """Seed-OSS: biases of q, k and v apart from that of the output (``attention_out_bias``)."""
    attention = read_attention(
        top, qkv_bias=top.flag("attention_bias"), out_bias=top.flag("attention_out_bias", False)
    )
    return _gated(top, name, attention, mlp_bias=top.flag("mlp_bias", False))


def hunyuan(top: Section, name: str) -> ModelSpec:
    """Hunyuan, dense: a norm on each head's query and key."""
    bias = top.flag("attention_bias", False)
    attention = read_attention(top, qkv_bias=bias, out_bias=bias)
    return _gated(top, name, replace(attention, qk_norm=True))


def ernie4_5(top: Section, name: str) -> ModelSpec:
    """ERNIE 4.5, dense: ``use_bias`` covers every linear layer but the head."""
    bias = top.flag("use_bias", False)
    return _gated(top, name, read_attention(top, qkv_bias=bias, out_bias=bias), mlp_bias=bias)


def glm4(top: Section, name: str) -> ModelSpec:
    """GLM-4: norms around both halves, biases on q, k and v alone."""
    attention = read_attention(top, qkv_bias=top.flag("attention_bias"))
    return uniform(top, name, BlockSpec(mixer=attention, mlp=read_mlp(top), norm_place=NormPlace.AROUND))


def olmo2(top: Section, name: str) -> ModelSpec:
    """OLMo 2: norms behind both halves, and over all heads of queries and of keys."""
    return _normed_after(top, name, QkNormWeights.ALL_HEADS)


def olmo3(top: Section, name: str) -> ModelSpec:
    """OLMo 3: OLMo 2 with windows in three layers of four."""
    pattern = every(4, read_layers(top))
    return _normed_after(top, name, QkNormWeights.ALL_HEADS, pattern)


def exaone4(top: Section, name: str) -> ModelSpec:
    """EXAONE 4: norms behind both halves and on each head's query and key; windows between every
    ``sliding_window_pattern``-th layer, a number or a text such as LLLG, unless ``sliding_window`` is null."""
    written = top.values.get("sliding_window_pattern")
    if isinstance(written, str):
        if set(written) - {"L", "G"} or written.count("G") != 1 or not written.endswith("G"):
            top.fail("sliding_window_pattern", "a whole number, or a text such as LLLG")
        period = len(written)
    else:
        period = top.integer_or("sliding_window_pattern", 4)
    pattern = every(period, read_layers(top)) if top.has("sliding_window") else []
    return _normed_after(top, name, QkNormWeights.HEAD, pattern)


def cohere(top: Section, name: str) -> ModelSpec:
    """Command R: one LayerNorm without a bias before attention and MLP side by side."""
    return uniform(top, name, _cohere_block(top, qk_norm=top.flag("use_qk_norm", False)))


def cohere2(top: Section, name: str) -> ModelSpec:
    """Command R7B and A: Command R with windows between every fourth layer; heads are hidden over heads wide."""
    layers = read_layers(top)
    pattern = every(top.integer_or("sliding_window_pattern", 4), layers)
    return uniform(top, name, _cohere_block(top, qk_norm=False), reaches(top, layers, pattern))


def _cohere_block(top: Section, *, qk_norm: bool) -> BlockSpec:
    bias = top.flag("attention_bias", False)
    attention = replace(
        read_attention(top, qkv_bias=bias, out_bias=bias),
        qk_norm=qk_norm,
        qk_norm_weights=QkNormWeights.ALL_HEADS,
    )
    return BlockSpec(
        mixer=attention,
        mlp=read_mlp(top),
        norm=NormKind.LAYER_WITHOUT_BIAS,
        norm_place=NormPlace.SHARED,
        parallel_residual=True,
    )


def _normed_after(
    top: Section, name: str, weights: QkNormWeights, pattern: list[str] | None = None
) -> ModelSpec:
    bias = top.flag("attention_bias", False)
    attention = replace(
        read_attention(top, qkv_bias=bias, out_bias=bias), qk_norm=True, qk_norm_weights=weights
    )
    block = BlockSpec(mixer=attention, mlp=read_mlp(top), norm_place=NormPlace.AFTER)
    reach = reaches(top, read_layers(top), pattern) if pattern else None
    return uniform(top, name, block, reach)


def _gated(top: Section, name: str, attention: AttentionSpec, *, mlp_bias: bool = False) -> ModelSpec:
    return uniform(top, name, BlockSpec(mixer=attention, mlp=read_mlp(top, bias=mlp_bias)))


def _windowed(top: Section, name: str, attention: AttentionSpec) -> ModelSpec:
    reach = read_windows(top, read_layers(top))
    return uniform(top, name, BlockSpec(mixer=attention, mlp=read_mlp(top)), reach)
