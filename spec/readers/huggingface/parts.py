"""Parts of a ``config.json`` that model types share: attention, the gated feed-forward layer, windows, the decoder."""

from collections.abc import Iterable
from dataclasses import replace
from itertools import groupby

from spec.mixers.attention import AttentionKind, AttentionSpec
from spec.model import BlockRun, BlockSpec, MlpSpec, ModelSpec, NormKind, PositionKind
from spec.readers.huggingface.facts import activation, norm_epsilon, rope
from spec.section import MAX_LAYERS, Section

LAYER_TYPES = ("full_attention", "sliding_attention", "chunked_attention")
Reach = tuple[int | None, int | None]
"""How far the attention of a layer looks: its window and its chunk, None where it has none."""


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
    return grouped(heads, kv_heads, width, qkv_bias=qkv_bias, out_bias=out_bias)


def grouped(heads: int, kv_heads: int, width: int, *, qkv_bias: bool, out_bias: bool) -> AttentionSpec:
    """Multi-head or grouped-query attention with heads of ``width`` channels."""
    return AttentionSpec(
        kind=AttentionKind.MHA if kv_heads == heads else AttentionKind.GQA,
        num_heads=heads,
        num_kv_heads=kv_heads,
        qk_dim=width,
        v_dim=width,
        qkv_bias=qkv_bias,
        out_bias=out_bias,
    )


def read_mlp(
    top: Section, *, gated: bool = True, bias: bool = False, key: str = "intermediate_size"
) -> MlpSpec:
    """A feed-forward layer of the width under ``key``; gated as in Llama and its kin, or with two matrices."""
    return MlpSpec(ffn_hidden=top.integer(key), gated=gated, bias=bias, activation=activation(top))


def read_layers(top: Section) -> int:
    """Decoder layers."""
    return top.integer("num_hidden_layers", maximum=MAX_LAYERS)


def read_windows(top: Section, num_layers: int) -> list[Reach]:
    """Each layer's reach in Qwen's way: as ``layer_types`` says, or else ``sliding_window`` on layers from
    ``max_window_layers`` on."""
    if not top.flag("use_sliding_window", False):
        return [(None, None)] * num_layers
    full = min(top.integer("max_window_layers", minimum=0), num_layers)
    types = [LAYER_TYPES[index >= full] for index in range(num_layers)]
    return reaches(top, num_layers, types)


def every(period: int, num_layers: int, others: str = "sliding_attention") -> list[str]:
    """Full attention in every ``period``-th layer, as ``others`` say in the layers between."""
    return ["full_attention" if (index + 1) % period == 0 else others for index in range(num_layers)]


def reaches(top: Section, num_layers: int, default: Iterable[str] = ()) -> list[Reach]:
    """Each layer's reach by its name in ``layer_types``, or in ``default`` where the config lists none (full
    attention where neither does)."""
    types = top.texts("layer_types") or tuple(default) or ("full_attention",) * num_layers
    if len(types) != num_layers or not set(types) <= set(LAYER_TYPES):
        top.fail("layer_types", f"a list of {num_layers} texts out of {', '.join(LAYER_TYPES)}")
    window = top.maybe_integer("sliding_window") if "sliding_attention" in types else None
    chunk = top.maybe_integer("attention_chunk_size") if "chunked_attention" in types else None
    of = {
        "full_attention": (None, None),
        "sliding_attention": (window, None),
        "chunked_attention": (None, chunk),
    }
    return [of[each] for each in types]


def reaching(blocks: Iterable[BlockSpec], reach: Iterable[Reach]) -> tuple[BlockRun, ...]:
    """The blocks with attention that reaches so far, layer by layer, joined into runs."""

    def seen(block: BlockSpec, window: int | None, chunk: int | None) -> BlockSpec:
        if not isinstance(block.mixer, AttentionSpec):
            return block
        return replace(block, mixer=replace(block.mixer, window=window, chunk=chunk))

    return runs_of([seen(block, *each) for block, each in zip(blocks, reach, strict=True)])


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


def uniform(top: Section, name: str, block: BlockSpec, reach: list[Reach] | None = None) -> ModelSpec:
    """A decoder of ``num_hidden_layers`` of ``block``, reaching as far as ``reach`` says."""
    layers = read_layers(top)
    runs = (BlockRun(block=block, count=layers),) if reach is None else reaching([block] * layers, reach)
    return decoder(top, name, runs, norm=block.norm)


def without_rotation(model: ModelSpec) -> ModelSpec:
    """The model with no position embedding of its own (ALiBi adds to the scores)."""
    return replace(model, position=PositionKind.NONE, rope=None)
