"""Dense model types of Llama's form, gated and with RMSNorm: what each has of biases, norms and windows.

Source: transformers ``models/<type>/configuration_<type>.py`` (defaults) and ``modeling_<type>.py``
(which layers have biases and norms); InternLM2: ``modeling_internlm2.py`` beside its weights.
"""

from dataclasses import replace
from typing import Any

from spec.mixers.attention import AttentionSpec, QkNormWeights
from spec.model import BlockRun, BlockSpec, MlpSpec, ModelSpec, NormKind, NormPlace, PositionKind
from spec.readers.huggingface.parts import (
    Reach,
    activation,
    every,
    grouped,
    norm_epsilon,
    reaches,
    read_attention,
    read_layers,
    read_mlp,
    read_windows,
    uniform,
    without_rotation,
)
from spec.section import MAX_LAYERS, Section


def llama(top: Section, name: str) -> ModelSpec:
    """Llama 1, 2 and 3, Granite, SmolLM3: ``attention_bias`` and ``mlp_bias`` default to False. What Granite
    multiplies by and where SmolLM3 rotates nothing costs nothing."""
    return _layers(top, name, read_attention(top), mlp=read_mlp(top, bias="mlp_bias"))


def mistral(top: Section, name: str) -> ModelSpec:
    """Mistral: ``sliding_window`` null means full attention; absent means the class default."""
    attention = read_attention(top, bias=False)
    return _layers(top, name, replace(attention, window=top.integer("sliding_window", None)))


def phi3(top: Section, name: str) -> ModelSpec:
    """Phi-3 and Phi-4: no biases, joined matrices."""
    return mistral(top, name)


def qwen2(top: Section, name: str) -> ModelSpec:
    """Qwen2 and Qwen2.5: biases on q, k and v only; windows on layers past ``max_window_layers``."""
    attention = read_attention(top, bias=True, out_bias=False)
    return _layers(top, name, attention, read_windows(top, read_layers(top)))


def qwen3(top: Section, name: str) -> ModelSpec:
    """Qwen3: a norm on each head's query and key."""
    attention = replace(read_attention(top), qk_norm=True)
    return _layers(top, name, attention, read_windows(top, read_layers(top)))


def internlm2(top: Section, name: str) -> ModelSpec:
    """InternLM2: ``bias`` covers wqkv and wo, never the MLP."""
    return _layers(top, name, read_attention(top, bias="bias"))


def seed_oss(top: Section, name: str) -> ModelSpec:
    """Seed-OSS: biases of q, k and v apart from that of the output (``attention_out_bias``)."""
    attention = read_attention(top, bias=top.flag("attention_bias"), out_bias="attention_out_bias")
    return _layers(top, name, attention, mlp=read_mlp(top, bias="mlp_bias"))


def hunyuan(top: Section, name: str) -> ModelSpec:
    """Hunyuan, dense: a norm on each head's query and key."""
    return _layers(top, name, replace(read_attention(top), qk_norm=True))


def ernie4_5(top: Section, name: str) -> ModelSpec:
    """ERNIE 4.5, dense: ``use_bias`` covers every linear layer but the head."""
    return _layers(top, name, read_attention(top, bias="use_bias"), mlp=read_mlp(top, bias="use_bias"))


def glm4(top: Section, name: str) -> ModelSpec:
    """GLM-4: norms around both halves, biases on q, k and v alone."""
    attention = read_attention(top, bias=top.flag("attention_bias"), out_bias=False)
    return _layers(top, name, attention, norm_place=NormPlace.AROUND)


def olmo2(top: Section, name: str) -> ModelSpec:
    """OLMo 2: norms behind both halves, and over all heads of queries and of keys."""
    return _layers(top, name, _normed(top, QkNormWeights.ALL_HEADS), norm_place=NormPlace.AFTER)


def olmo3(top: Section, name: str) -> ModelSpec:
    """OLMo 3: OLMo 2 with windows in three layers of four."""
    layers = read_layers(top)
    attention, reach = _normed(top, QkNormWeights.ALL_HEADS), reaches(top, layers, every(4, layers))
    return _layers(top, name, attention, reach, norm_place=NormPlace.AFTER)


def exaone4(top: Section, name: str) -> ModelSpec:
    """EXAONE 4: norms behind both halves and on each head's query and key; windows between every
    ``sliding_window_pattern``-th layer, a number or a text such as LLLG, unless ``sliding_window`` is null."""
    written, layers = top.values.get("sliding_window_pattern"), read_layers(top)
    if isinstance(written, str):
        if set(written) - {"L", "G"} or written.count("G") != 1 or not written.endswith("G"):
            top.fail("sliding_window_pattern", "a whole number, or a text such as LLLG")
        period = len(written)
    else:
        period = top.integer("sliding_window_pattern", 4)
    reach = reaches(top, layers, every(period, layers)) if top.has("sliding_window") else None
    return _layers(top, name, _normed(top, QkNormWeights.HEAD), reach, norm_place=NormPlace.AFTER)


def cohere(top: Section, name: str) -> ModelSpec:
    """Command R: one LayerNorm without a bias before attention and MLP side by side."""
    return _layers(top, name, _normed(top, QkNormWeights.ALL_HEADS, top.flag("use_qk_norm", False)), **COHERE)


def cohere2(top: Section, name: str) -> ModelSpec:
    """Command R7B and A: Command R with windows between every fourth layer; heads are hidden over heads wide."""
    layers = read_layers(top)
    pattern = every(top.integer("sliding_window_pattern", 4), layers)
    return _layers(top, name, read_attention(top), reaches(top, layers, pattern), **COHERE)


COHERE: dict[str, Any] = {
    "norm": NormKind.LAYER_WITHOUT_BIAS,
    "norm_place": NormPlace.SHARED,
    "parallel_residual": True,
}


def _normed(top: Section, weights: QkNormWeights, qk_norm: bool = True) -> AttentionSpec:
    return replace(read_attention(top), qk_norm=qk_norm, qk_norm_weights=weights)


def _layers(
    top: Section, name: str, attention: AttentionSpec, reach: list[Reach] | None = None, **block: Any
) -> ModelSpec:
    """Equal layers of ``attention`` and a gated MLP, unless the ``block`` says otherwise."""
    return uniform(top, name, BlockSpec(**{"mixer": attention, "mlp": read_mlp(top), **block}), reach)


# Gemma, Gemma 2 and the text model of Gemma 3: wide heads, gates by GELU, norms around both halves from the second on.
#
# Source: transformers ``models/<type>/configuration_<type>.py`` and ``modeling_<type>.py``; Gemma 2 (arXiv 2408.00118),
# Gemma 3 (arXiv 2503.19786).


def gemma(top: Section, name: str) -> ModelSpec:
    """Gemma: Llama's layers with heads of their own width."""
    return _layers(top, name, read_attention(top))


def gemma2(top: Section, name: str) -> ModelSpec:
    """Gemma 2: windows in every other layer, scores and logits soft-capped where the config says how."""
    return _around(top, name, every(2, read_layers(top)), qk_norm=False)


def gemma3(top: Section, name: str) -> ModelSpec:
    """Gemma 3: windows in five layers of six, norms on each head's query and key in place of soft caps."""
    pattern = every(top.integer("sliding_window_pattern", 6), read_layers(top))
    return _around(top, name, pattern, qk_norm=True)


def _around(top: Section, name: str, pattern: list[str], *, qk_norm: bool) -> ModelSpec:
    capped = top.has("attn_logit_softcapping")
    attention = replace(read_attention(top), qk_norm=qk_norm, softcap=capped)
    reach = reaches(top, read_layers(top), pattern)
    model = _layers(top, name, attention, reach, norm_place=NormPlace.AROUND)
    return replace(model, logit_softcap=top.has("final_logit_softcapping"))


# Dense model types with LayerNorm, most of them without gates: GPT-2 and its kin, with ALiBi, learned or
# rotary positions.
#
# Source: transformers ``models/<type>/configuration_<type>.py`` (defaults) and ``modeling_<type>.py``
# (which layers have biases and norms).


def gpt2(top: Section, name: str) -> ModelSpec:
    """GPT-2: learned positions, LayerNorm, biases everywhere, tied embeddings."""
    return _learned(top, name, one_kv_head=False)


def gpt_bigcode(top: Section, name: str) -> ModelSpec:
    """SantaCoder and StarCoder: GPT-2 with one head of keys and values (``multi_query``)."""
    return _learned(top, name, one_kv_head=top.flag("multi_query"))


def gpt_neox(top: Section, name: str) -> ModelSpec:
    """GPT-NeoX and Pythia: rotary, LayerNorm, biases, attention and MLP side by side."""
    bias = top.flag("attention_bias", True)
    block = BlockSpec(
        mixer=_heads(top, top.integer("hidden_size"), top.integer("num_attention_heads"), bias=bias),
        mlp=read_mlp(top, gated=False, bias=True),
        norm=NormKind.LAYER,
        parallel_residual=top.flag("use_parallel_residual", True),
    )
    return uniform(top, name, block)


def bloom(top: Section, name: str) -> ModelSpec:
    """BLOOM: ALiBi, biases everywhere, a norm behind the embedding, tied embeddings."""
    hidden = top.integer("hidden_size")
    block = BlockSpec(
        mixer=replace(_heads(top, hidden, top.integer("num_attention_heads"), bias=True), alibi=True),
        mlp=MlpSpec(ffn_hidden=4 * hidden, gated=False, bias=True, activation="gelu_tanh"),
        norm=NormKind.LAYER,
    )
    return replace(without_rotation(uniform(top, name, block)), embedding_norm=True)


def opt(top: Section, name: str) -> ModelSpec:
    """OPT: learned positions, of which two stand before the first token, biases everywhere, ReLU, tied embeddings."""
    hidden = top.integer("hidden_size")
    top.only("do_layer_norm_before", (True,), "norms behind the residual add (OPT-350m) are not priced")
    top.only("_remove_final_layer_norm", (False,), "a model without its last norm is not priced")
    top.only("layer_norm_elementwise_affine", (True,), "LayerNorm without weights is not priced")
    top.only("word_embed_proj_dim", (hidden,), "embeddings of another width (OPT-350m) are not priced")
    bias = top.flag("enable_bias", True)
    block = BlockSpec(
        mixer=_heads(top, hidden, top.integer("num_attention_heads"), bias=bias),
        mlp=read_mlp(top, gated=False, bias=bias, key="ffn_dim"),
        norm=NormKind.LAYER,
    )
    model = uniform(top, name, block)
    positions = top.integer("max_position_embeddings", 2048) + 2
    return replace(model, position=PositionKind.LEARNED, max_positions=positions, rope=None)


def falcon(top: Section, name: str) -> ModelSpec:
    """Falcon: attention and MLP side by side (``parallel_attn``) behind one norm, or behind one each where the
    ``new_decoder_architecture`` says nothing else; one head of keys and values, or ``num_kv_heads``."""
    hidden, heads = top.integer("hidden_size"), top.integer("num_attention_heads")
    new, bias = top.flag("new_decoder_architecture", False), top.flag("bias", False)
    alibi = top.flag("alibi", False)
    parallel = top.flag("parallel_attn") or new
    norms = top.integer("num_ln_in_parallel_attn", 2 if new else 1)
    kv_heads = top.integer("num_kv_heads", heads) if new else 1 if top.flag("multi_query") else heads
    if hidden % heads or heads % kv_heads:
        top.fail("num_attention_heads", f"a divisor of hidden_size = {hidden}, and a multiple of num_kv_heads")
    block = BlockSpec(
        mixer=replace(grouped(heads, kv_heads, hidden // heads, qkv_bias=bias, out_bias=bias), alibi=alibi),
        mlp=MlpSpec(
            ffn_hidden=top.integer("ffn_hidden_size", 4 * hidden),
            gated=False,
            bias=bias,
            activation=activation(top),
        ),
        norm=NormKind.LAYER,
        norm_place=NormPlace.SHARED if parallel and norms == 1 else NormPlace.BEFORE,
        parallel_residual=parallel,
    )
    model = uniform(top, name, block)
    return without_rotation(model) if alibi else model


def starcoder2(top: Section, name: str) -> ModelSpec:
    """StarCoder2: biases everywhere (``use_bias``), two matrices, windows where ``sliding_window`` says so."""
    bias = top.flag("use_bias", True)
    attention = replace(read_attention(top, bias=bias), window=top.integer("sliding_window", None))
    return _layers(top, name, attention, mlp=read_mlp(top, gated=False, bias=bias), norm=NormKind.LAYER)


def nemotron(top: Section, name: str) -> ModelSpec:
    """Nemotron-4 and Minitron: two matrices around the squared ReLU."""
    mlp = read_mlp(top, gated=False, bias="mlp_bias")
    return _layers(top, name, read_attention(top), mlp=mlp, norm=NormKind.LAYER)


def phi(top: Section, name: str) -> ModelSpec:
    """Phi-1 and Phi-2: one norm before attention and MLP side by side, biases everywhere, the head's included."""
    top.only("qk_layernorm", (False,), "norms of queries and keys with biases are not priced")
    mlp = read_mlp(top, gated=False, bias=True)
    layers = _layers(top, name, read_attention(top, bias=True), mlp=mlp, **COHERE | {"norm": NormKind.LAYER})
    return replace(layers, head_bias=True)


def stablelm(top: Section, name: str) -> ModelSpec:
    """StableLM: gated, biases on q, k and v alone (``use_qkv_bias``); with ``use_parallel_residual`` one norm; with
    ``qk_layernorm`` a norm of its own for each head's query and key."""
    attention = replace(
        read_attention(top, bias="use_qkv_bias", out_bias=False),
        qk_norm=top.flag("qk_layernorm", False),
        qk_norm_weights=QkNormWeights.ALL_HEADS,
    )
    parallel = top.flag("use_parallel_residual", False)
    place = NormPlace.SHARED if parallel else NormPlace.BEFORE
    return _layers(top, name, attention, norm=NormKind.LAYER, norm_place=place, parallel_residual=parallel)


def _learned(top: Section, name: str, *, one_kv_head: bool) -> ModelSpec:
    hidden, heads = top.integer("n_embd"), top.integer("n_head")
    attention = _heads(top, hidden, heads, bias=True)
    if one_kv_head:
        attention = grouped(heads, 1, hidden // heads, qkv_bias=True, out_bias=True)
    mlp = MlpSpec(ffn_hidden=top.integer("n_inner", 4 * hidden), gated=False, bias=True, activation=activation(top))
    block = BlockSpec(mixer=attention, mlp=mlp, norm=NormKind.LAYER)
    return ModelSpec(
        name=name,
        hidden=hidden,
        vocab=top.integer("vocab_size"),
        blocks=(BlockRun(block=block, count=top.integer("n_layer", maximum=MAX_LAYERS)),),
        source=f"{top.where} ({top.text('model_type')})",
        tied_embeddings=top.flag("tie_word_embeddings", True),
        position=PositionKind.LEARNED,
        max_positions=top.integer("n_positions", 1024),
        norm=NormKind.LAYER,
        norm_epsilon=norm_epsilon(top),
    )


def _heads(top: Section, hidden: int, heads: int, *, bias: bool) -> AttentionSpec:
    """Multi-head attention with heads of hidden over heads."""
    if hidden % heads:
        top.fail("n_head" if top.has("n_head") else "num_attention_heads", f"a divisor of {hidden}")
    return grouped(heads, heads, hidden // heads, qkv_bias=bias, out_bias=bias)
