"""Gemma, Gemma 2 and the text model of Gemma 3: wide heads, gates by GELU, norms around both halves from the second on.

Source: transformers ``models/<type>/configuration_<type>.py`` and ``modeling_<type>.py``; Gemma 2 (arXiv 2408.00118),
Gemma 3 (arXiv 2503.19786).
"""

from dataclasses import replace

from spec.model import BlockSpec, ModelSpec, NormPlace
from spec.readers.huggingface.parts import every, reaches, read_attention, read_layers, read_mlp, uniform
from spec.section import Section


def gemma(top: Section, name: str) -> ModelSpec:
    """Gemma: Llama's layers with heads of their own width."""
    bias = top.flag("attention_bias", False)
    attention = read_attention(top, qkv_bias=bias, out_bias=bias)
    return uniform(top, name, BlockSpec(mixer=attention, mlp=read_mlp(top)))


def gemma2(top: Section, name: str) -> ModelSpec:
    """Gemma 2: windows in every other layer, scores and logits soft-capped where the config says how."""
    return _around(top, name, every(2, read_layers(top)), qk_norm=False)


def gemma3(top: Section, name: str) -> ModelSpec:
    """Gemma 3: windows in five layers of six, norms on each head's query and key in place of soft caps."""
    pattern = every(top.integer_or("sliding_window_pattern", 6), read_layers(top))
    return _around(top, name, pattern, qk_norm=True)


def _around(top: Section, name: str, pattern: list[str], *, qk_norm: bool) -> ModelSpec:
    bias = top.flag("attention_bias", False)
    attention = replace(
        read_attention(top, qkv_bias=bias, out_bias=bias),
        qk_norm=qk_norm,
        softcap=top.has("attn_logit_softcapping"),
    )
    block = BlockSpec(mixer=attention, mlp=read_mlp(top), norm_place=NormPlace.AROUND)
    model = uniform(top, name, block, reaches(top, read_layers(top), pattern))
    return replace(model, logit_softcap=top.has("final_logit_softcapping"))
