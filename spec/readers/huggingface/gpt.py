"""Dense model types with LayerNorm, most of them without gates: GPT-2 and its kin, with ALiBi, learned or
rotary positions.

Source: transformers ``models/<type>/configuration_<type>.py`` (defaults) and ``modeling_<type>.py``
(which layers have biases and norms).
"""

from dataclasses import replace

from spec.mixers.attention import AttentionSpec, QkNormWeights
from spec.model import BlockRun, BlockSpec, MlpSpec, ModelSpec, NormKind, NormPlace, PositionKind
from spec.readers.huggingface.facts import activation, norm_epsilon
from spec.readers.huggingface.parts import (
    decoder,
    grouped,
    read_attention,
    read_layers,
    read_mlp,
    uniform,
    without_rotation,
)
from spec.section import MAX_LAYERS, Section


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
    positions = top.integer_or("max_position_embeddings", 2048) + 2
    return replace(model, position=PositionKind.LEARNED, max_positions=positions, rope=None)


def falcon(top: Section, name: str) -> ModelSpec:
    """Falcon: attention and MLP side by side (``parallel_attn``) behind one norm, or behind one each where the
    ``new_decoder_architecture`` says nothing else; one head of keys and values, or ``num_kv_heads``."""
    hidden, heads = top.integer("hidden_size"), top.integer("num_attention_heads")
    new, bias = top.flag("new_decoder_architecture", False), top.flag("bias", False)
    alibi = top.flag("alibi", False)
    parallel = top.flag("parallel_attn") or new
    norms = top.integer_or("num_ln_in_parallel_attn", 2 if new else 1)
    kv_heads = top.integer_or("num_kv_heads", heads) if new else 1 if top.flag("multi_query") else heads
    if hidden % heads or heads % kv_heads:
        top.fail(
            "num_attention_heads", f"a divisor of hidden_size = {hidden}, and a multiple of num_kv_heads"
        )
    block = BlockSpec(
        mixer=replace(grouped(heads, kv_heads, hidden // heads, qkv_bias=bias, out_bias=bias), alibi=alibi),
        mlp=MlpSpec(
            ffn_hidden=top.integer_or("ffn_hidden_size", 4 * hidden),
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
    attention = read_attention(top, qkv_bias=bias, out_bias=bias)
    return _layer_normed(
        top,
        name,
        replace(attention, window=top.maybe_integer("sliding_window")),
        read_mlp(top, gated=False, bias=bias),
    )


def nemotron(top: Section, name: str) -> ModelSpec:
    """Nemotron-4 and Minitron: two matrices around the squared ReLU."""
    bias = top.flag("attention_bias", False)
    attention = read_attention(top, qkv_bias=bias, out_bias=bias)
    return _layer_normed(top, name, attention, read_mlp(top, gated=False, bias=top.flag("mlp_bias", False)))


def phi(top: Section, name: str) -> ModelSpec:
    """Phi-1 and Phi-2: one norm before attention and MLP side by side, biases everywhere, the head's included."""
    top.only("qk_layernorm", (False,), "norms of queries and keys with biases are not priced")
    block = BlockSpec(
        mixer=read_attention(top, qkv_bias=True, out_bias=True),
        mlp=read_mlp(top, gated=False, bias=True),
        norm=NormKind.LAYER,
        norm_place=NormPlace.SHARED,
        parallel_residual=True,
    )
    return replace(uniform(top, name, block), head_bias=True)


def stablelm(top: Section, name: str) -> ModelSpec:
    """StableLM: gated, biases on q, k and v alone (``use_qkv_bias``); with ``use_parallel_residual`` one norm; with
    ``qk_layernorm`` a norm of its own for each head's query and key."""
    attention = replace(
        read_attention(top, qkv_bias=top.flag("use_qkv_bias", False)),
        qk_norm=top.flag("qk_layernorm", False),
        qk_norm_weights=QkNormWeights.ALL_HEADS,
    )
    parallel = top.flag("use_parallel_residual", False)
    block = BlockSpec(
        mixer=attention,
        mlp=read_mlp(top),
        norm=NormKind.LAYER,
        norm_place=NormPlace.SHARED if parallel else NormPlace.BEFORE,
        parallel_residual=parallel,
    )
    return uniform(top, name, block)


def _learned(top: Section, name: str, *, one_kv_head: bool) -> ModelSpec:
    hidden, heads = top.integer("n_embd"), top.integer("n_head")
    attention = _heads(top, hidden, heads, bias=True)
    if one_kv_head:
        attention = grouped(heads, 1, hidden // heads, qkv_bias=True, out_bias=True)
    mlp = MlpSpec(
        ffn_hidden=top.integer_or("n_inner", 4 * hidden), gated=False, bias=True, activation=activation(top)
    )
    block = BlockSpec(mixer=attention, mlp=mlp, norm=NormKind.LAYER)
    return ModelSpec(
        name=name,
        hidden=hidden,
        vocab=top.integer("vocab_size"),
        blocks=(BlockRun(block=block, count=top.integer("n_layer", maximum=MAX_LAYERS)),),
        source=f"{top.where} ({top.text('model_type')})",
        tied_embeddings=top.flag("tie_word_embeddings", True),
        position=PositionKind.LEARNED,
        max_positions=top.integer_or("n_positions", 1024),
        norm=NormKind.LAYER,
        norm_epsilon=norm_epsilon(top),
    )


def _layer_normed(top: Section, name: str, attention: AttentionSpec, mlp: MlpSpec) -> ModelSpec:
    block = BlockSpec(mixer=attention, mlp=mlp, norm=NormKind.LAYER)
    return decoder(top, name, (BlockRun(block=block, count=read_layers(top)),), norm=NormKind.LAYER)


def _heads(top: Section, hidden: int, heads: int, *, bias: bool) -> AttentionSpec:
    """Multi-head attention with heads of hidden over heads."""
    if hidden % heads:
        top.fail("n_head" if top.has("n_head") else "num_attention_heads", f"a divisor of {hidden}")
    return grouped(heads, heads, hidden // heads, qkv_bias=bias, out_bias=bias)
