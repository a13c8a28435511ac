"""Dense Hugging Face model types, block by block.

Source: transformers ``models/<type>/configuration_<type>.py`` (defaults) and ``modeling_<type>.py``
(which layers have biases and norms); InternLM2: ``modeling_internlm2.py`` beside its weights.
"""

from dataclasses import replace
from itertools import groupby

from spec.mixers.attention import AttentionKind, AttentionSpec
from spec.model import BlockRun, BlockSpec, MlpSpec, ModelSpec, NormKind, PositionKind
from spec.readers.huggingface.facts import activation, norm_epsilon, rope
from spec.section import MAX_LAYERS, Section


def llama(top: Section, name: str) -> ModelSpec:
    """Llama 1, 2 and 3: ``attention_bias`` and ``mlp_bias`` default to False."""
    bias = top.flag("attention_bias", False)
    attention = read_attention(top, qkv_bias=bias, out_bias=bias)
    return _gated(top, name, attention, mlp_bias=top.flag("mlp_bias", False))


def mistral(top: Section, name: str) -> ModelSpec:
    """Mistral: ``sliding_window`` null means full attention; absent means the class default 4096."""
    window = top.maybe_integer("sliding_window") if "sliding_window" in top.values else 4096
    return _gated(top, name, replace(read_attention(top), window=window))


def qwen2(top: Section, name: str) -> ModelSpec:
    """Qwen2 and Qwen2.5: biases on q, k and v only; windows on layers past ``max_window_layers``."""
    return _windowed(top, name, read_attention(top, qkv_bias=True))


def qwen3(top: Section, name: str) -> ModelSpec:
    """Qwen3: a norm on each head's query and key; ``head_dim`` defaults to 128."""
    bias = top.flag("attention_bias", False)
    attention = read_attention(top, qkv_bias=bias, out_bias=bias, head_dim=128)
    return _windowed(top, name, replace(attention, qk_norm=True))


def internlm2(top: Section, name: str) -> ModelSpec:
    """InternLM2: ``bias`` covers wqkv and wo, never the MLP."""
    bias = top.flag("bias", False)
    return _gated(top, name, read_attention(top, qkv_bias=bias, out_bias=bias))


def gpt2(top: Section, name: str) -> ModelSpec:
    """GPT-2: learned positions, LayerNorm, biases everywhere, tied embeddings."""
    hidden, heads = top.integer("n_embd"), top.integer("n_head")
    block = _biased_block(top, hidden, heads, ffn=top.integer_or("n_inner", 4 * hidden))
    return ModelSpec(
        name=name,
        hidden=hidden,
        vocab=top.integer("vocab_size"),
        blocks=(BlockRun(block=block, count=top.integer("n_layer", maximum=MAX_LAYERS)),),
        source=f"{top.where} (gpt2)",
        tied_embeddings=top.flag("tie_word_embeddings", True),
        position=PositionKind.LEARNED,
        max_positions=top.integer("n_positions"),
        norm=NormKind.LAYER,
        norm_epsilon=norm_epsilon(top),
    )


def gpt_neox(top: Section, name: str) -> ModelSpec:
    """GPT-NeoX and Pythia: rotary, LayerNorm, biases, attention and MLP side by side."""
    hidden, heads = top.integer("hidden_size"), top.integer("num_attention_heads")
    bias = top.flag("attention_bias", True)
    block = replace(
        _biased_block(top, hidden, heads, ffn=top.integer("intermediate_size"), attention_bias=bias),
        parallel_residual=top.flag("use_parallel_residual", True),
    )
    runs = (BlockRun(block=block, count=top.integer("num_hidden_layers", maximum=MAX_LAYERS)),)
    return decoder(top, name, runs, norm=NormKind.LAYER)


def read_attention(
    top: Section, *, qkv_bias: bool = False, out_bias: bool = False, head_dim: int = 0
) -> AttentionSpec:
    """Grouped-query attention from the usual keys; ``head_dim`` is the default of the model type
    (0: hidden over heads)."""
    heads, hidden = top.integer("num_attention_heads"), top.integer("hidden_size")
    kv_heads = top.integer_or("num_key_value_heads", heads)
    if heads % kv_heads:
        top.fail("num_key_value_heads", f"a divisor of num_attention_heads = {heads}")
    if not top.has("head_dim") and not head_dim and hidden % heads:
        top.fail("num_attention_heads", f"a divisor of hidden_size = {hidden}, or give head_dim")
    width = top.integer_or("head_dim", head_dim or hidden // heads)
    return AttentionSpec(
        kind=AttentionKind.MHA if kv_heads == heads else AttentionKind.GQA,
        num_heads=heads,
        num_kv_heads=kv_heads,
        qk_dim=width,
        v_dim=width,
        qkv_bias=qkv_bias,
        out_bias=out_bias,
    )


def read_mlp(top: Section, *, bias: bool = False) -> MlpSpec:
    """The gated feed-forward layer of Llama and its kin."""
    return MlpSpec(
        ffn_hidden=top.integer("intermediate_size"), gated=True, bias=bias, activation=activation(top)
    )


def read_windows(top: Section, num_layers: int) -> list[int | None]:
    """Each layer's window: None, or ``sliding_window`` on layers from ``max_window_layers`` on."""
    if not top.flag("use_sliding_window", False):
        return [None] * num_layers
    window = top.integer("sliding_window")
    full = min(top.integer("max_window_layers", minimum=0), num_layers)
    return [None] * full + [window] * (num_layers - full)


def runs_of(blocks: list[BlockSpec]) -> tuple[BlockRun, ...]:
    """Consecutive equal blocks joined into runs."""
    return tuple(BlockRun(block=block, count=len(list(same))) for block, same in groupby(blocks))


def decoder(top: Section, name: str, runs: tuple[BlockRun, ...], norm: NormKind = NormKind.RMS) -> ModelSpec:
    """A rotary decoder of these runs with the usual embedding and head keys."""
    return ModelSpec(
        name=name,
        hidden=top.integer("hidden_size"),
        vocab=top.integer("vocab_size"),
        blocks=runs,
        source=f"{top.where} ({top.text('model_type')})",
        tied_embeddings=top.flag("tie_word_embeddings", False),
        max_positions=top.integer_or("max_position_embeddings", 0),
        norm=norm,
        rope=rope(top),
        norm_epsilon=norm_epsilon(top),
    )


def _gated(top: Section, name: str, attention: AttentionSpec, *, mlp_bias: bool = False) -> ModelSpec:
    mlp = read_mlp(top, bias=mlp_bias)
    layers = top.integer("num_hidden_layers", maximum=MAX_LAYERS)
    return decoder(top, name, (BlockRun(block=BlockSpec(mixer=attention, mlp=mlp), count=layers),))


def _windowed(top: Section, name: str, attention: AttentionSpec) -> ModelSpec:
    mlp = read_mlp(top)
    windows = read_windows(top, top.integer("num_hidden_layers", maximum=MAX_LAYERS))
    blocks = [BlockSpec(mixer=replace(attention, window=window), mlp=mlp) for window in windows]
    return decoder(top, name, runs_of(blocks))


def _biased_block(
    top: Section, hidden: int, heads: int, *, ffn: int, attention_bias: bool = True
) -> BlockSpec:
    if hidden % heads:
        top.fail("n_head" if top.has("n_head") else "num_attention_heads", f"a divisor of {hidden}")
    attention = AttentionSpec(
        kind=AttentionKind.MHA,
        num_heads=heads,
        num_kv_heads=heads,
        qk_dim=hidden // heads,
        v_dim=hidden // heads,
        qkv_bias=attention_bias,
        out_bias=attention_bias,
    )
    mlp = MlpSpec(ffn_hidden=ffn, gated=False, bias=True, activation=activation(top))
    return BlockSpec(mixer=attention, mlp=mlp, norm=NormKind.LAYER)
