"""Parts of a Hugging Face ``config.json`` that model types share: attention, feed-forward layers, experts, windows, the decoder,
and what has no price but belongs to a launch (rotary base and scaling, epsilon of norms, activation).

Source: transformers 5 ``configuration_utils.py`` and ``modeling_rope_utils.py`` (``rope_parameters``; before it
``rope_theta`` and ``rope_scaling``, whose kind was ``type``), ``activations.py`` (ACT2FN), and the defaults of
``models/<type>/configuration_<type>.py``; DeepSeek and InternLM2: ``configuration_*.py`` beside their weights.
"""

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

from spec.mixers.attention import AttentionKind, AttentionSpec, RopeScaling, RopeSpec
from spec.model import BlockRun, BlockSpec, MlpSpec, ModelSpec, MoeSpec, NormKind, PositionKind
from spec.section import MAX_LAYERS, Section


@dataclass(frozen=True, slots=True, kw_only=True)
class Usual:
    """Defaults of one model type, and its own names of the keys."""

    rope_base: float = 10_000.0
    base_key: str = "rope_theta"
    share: float = 1.0
    share_key: str = "partial_rotary_factor"
    epsilon: float = 1e-6
    epsilon_key: str = "rms_norm_eps"
    activation: str = "silu"
    activation_key: str = "hidden_act"


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeFacts:
    """One table of model_types.toml: ``defaults`` of keys that a config leaves out, the type's ``usual`` parts of a launch,
    and keys that other releases ``renamed``."""

    defaults: Mapping[str, object]
    usual: Usual
    renamed: Mapping[str, str]


def type_facts(model_type: str) -> TypeFacts:
    """Returns what model_types.toml says of a type, which may be nothing."""
    said = dict(_type_tables().get(model_type, {}))
    usual, renamed = Usual(**said.pop("usual", {})), said.pop("renamed", {})
    return TypeFacts(defaults=said, usual=usual, renamed=renamed)


@cache
def _type_tables() -> dict[str, dict[str, Any]]:
    return tomllib.loads(Path(__file__).with_name("model_types.toml").read_text(encoding="utf-8"))


GLOBAL = "full_attention"
"""Layers whose rotation stands for the model's where layers with windows have another."""
# names of transformers' ACT2FN that compute what spec.model calls otherwise
ACTIVATIONS = {
    "swish": "silu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu2": "squared_relu",
}


def activation(top: Section) -> str:
    """The feed-forward activation by our name; one that we have no name for by its own."""
    usual = _usual(top)
    written = top.text(usual.activation_key, usual.activation)
    return ACTIVATIONS.get(written, written)


def norm_epsilon(top: Section) -> float:
    """Returns the epsilon of the norms."""
    usual = _usual(top)
    return top.number(usual.epsilon_key, usual.epsilon, maximum=1.0)


def rope(top: Section) -> RopeSpec:
    """Base, rotated share and scaling; ``rope_parameters`` holds all three, for kinds of layers apart where
    they differ, or keys of their own do."""
    usual = _usual(top)
    inside = top.section("rope_parameters")
    if inside.has(GLOBAL):
        inside = inside.section(GLOBAL)
    base = inside.number("rope_theta", top.number(usual.base_key, usual.rope_base))
    share = inside.number("partial_rotary_factor", top.number(usual.share_key, usual.share, maximum=1.0), maximum=1.0)
    if share > 1.0:
        top.fail(usual.share_key, "a share of a head's channels, above 0 to 1")
    return RopeSpec(base=base, share=share, scaling=_scaling(inside if inside.values else top.section("rope_scaling")))


def _scaling(section: Section) -> RopeScaling | None:
    kind = section.text("rope_type", section.text("type", "default"))
    if kind == "default":
        return None
    low, high = ("low_freq_factor", "high_freq_factor") if kind == "llama3" else ("beta_slow", "beta_fast")
    return RopeScaling(
        kind=kind,
        factor=section.number("factor", 1.0),
        original_positions=section.integer("original_max_position_embeddings", 0),
        slow=_maybe(section, low),
        fast=_maybe(section, high),
        mscale=_maybe(section, "mscale"),
        mscale_all_dim=_maybe(section, "mscale_all_dim"),
    )


def _usual(top: Section) -> Usual:
    return type_facts(top.text("model_type")).usual


def _maybe(section: Section, key: str) -> float | None:
    return section.number(key, positive=False) if section.has(key) else None


LAYER_TYPES = ("full_attention", "sliding_attention", "chunked_attention")
Reach = tuple[int | None, int | None]
"""How far the attention of a layer looks: its window and its chunk, None where it has none."""


def read_attention(
    top: Section,
    *,
    bias: bool | str = "attention_bias",
    out_bias: bool | str | None = None,
    head_dim: int = 0,
) -> AttentionSpec:
    """Grouped-query attention from the usual keys. ``bias`` says whether queries, keys and values have biases, ``out_bias``
    whether the output has (None: as they do), each by itself or by the key of a flag that is False where a config leaves it
    out. ``head_dim`` is the default of the model type (0: hidden over heads)."""
    heads, hidden = top.integer("num_attention_heads"), top.integer("hidden_size")
    kv_heads = top.integer("num_key_value_heads", heads)
    if heads % kv_heads:
        top.fail("num_key_value_heads", f"a divisor of num_attention_heads = {heads}")
    if not top.has("head_dim") and not head_dim and hidden % heads:
        top.fail("num_attention_heads", f"a divisor of hidden_size = {hidden}, or give head_dim")
    width = top.integer("head_dim", head_dim or hidden // heads)
    qkv, out = (
        top.flag(key, False) if isinstance(key, str) else key for key in (bias, bias if out_bias is None else out_bias)
    )
    return grouped(heads, kv_heads, width, qkv_bias=qkv, out_bias=out)


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


def read_mlp(top: Section, *, gated: bool = True, bias: bool | str = False, key: str = "intermediate_size") -> MlpSpec:
    """A feed-forward layer of the width under ``key``; gated as in Llama and its kin, or with two matrices; ``bias`` as in
    read_attention."""
    has_bias = top.flag(bias, False) if isinstance(bias, str) else bias
    return MlpSpec(ffn_hidden=top.integer(key), gated=gated, bias=has_bias, activation=activation(top))


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
    window = top.integer("sliding_window", None) if "sliding_attention" in types else None
    chunk = top.integer("attention_chunk_size", None) if "chunked_attention" in types else None
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


PREDICTING = "num_nextn_predict_layers"


def predicting(top: Section, blocks: list[BlockSpec], more: BlockSpec) -> tuple[BlockRun, ...]:
    """The runs of ``blocks``, and one of as many blocks ``more`` that predict further tokens as the config has."""
    count = top.integer(PREDICTING, 0, minimum=0)
    return (*runs_of(blocks), *([BlockRun(block=replace(more, mtp=True), count=count)] if count else ()))


def decoder(top: Section, name: str, runs: tuple[BlockRun, ...], norm: NormKind = NormKind.RMS) -> ModelSpec:
    """A rotary decoder of these runs with the usual embedding and head keys."""
    return ModelSpec(
        name=name,
        hidden=top.integer("hidden_size"),
        vocab=top.integer("vocab_size"),
        blocks=runs,
        source=f"{top.where} ({top.text('model_type')})",
        tied_embeddings=top.flag("tie_word_embeddings", False),
        max_positions=top.integer("max_position_embeddings", 0),
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


ALWAYS_NORMALIZED = ("mixtral", "deepseek_v3", "phimoe", "gpt_oss", "minimax_m2", "ernie4_5_moe")


def read_experts(top: Section, count_key: str, width_key: str, *, topk_key: str = "num_experts_per_tok") -> MoeSpec:
    """The routed experts; top-k is at most their number. ``norm_topk_prob`` is False where a type has it and its
    config does not say; Mixtral and others have none, and always divide."""
    count, topk = top.integer(count_key), top.integer(topk_key)
    if topk > count:
        top.fail(topk_key, f"at most {count_key} = {count}")
    return MoeSpec(
        num_experts=count,
        topk=topk,
        expert_ffn_hidden=top.integer(width_key),
        activation=activation(top),
        normalized=top.flag("norm_topk_prob", top.text("model_type") in ALWAYS_NORMALIZED),
    )


def route_groups(top: Section, count_key: str) -> tuple[int, int]:
    """Groups of experts, and of how many of them a token's experts are (``n_group``, ``topk_group``)."""
    count, topk = top.integer(count_key), top.integer("num_experts_per_tok")
    groups = top.integer("n_group", 1)
    chosen = top.integer("topk_group", groups)
    if chosen > groups or count % groups or count // groups * chosen < topk:
        top.fail("n_group", f"a divisor of {count} experts, with topk in topk_group of them")
    return groups, chosen


def routed_layers(top: Section, layers: int) -> list[bool]:
    """Layer i is routed unless listed in ``mlp_only_layers`` or off the ``decoder_sparse_step``."""
    step = top.integer("decoder_sparse_step", 1)
    dense_layers = read_layer_numbers(top, "mlp_only_layers")
    return [index not in dense_layers and (index + 1) % step == 0 for index in range(layers)]


def read_layer_numbers(top: Section, key: str) -> list[int]:
    """A list of layer numbers; empty when absent."""
    listed = top.values.get(key) or []
    if not isinstance(listed, list) or not all(type(index) is int for index in listed):
        top.fail(key, "a list of layer numbers")
    return listed


def sparse_blocks(attention: AttentionSpec, mlp: MlpSpec | None, moe: MoeSpec, routed: list[bool]) -> list[BlockSpec]:
    """A block a layer: of experts where ``routed``, else of ``mlp``."""
    return [
        BlockSpec(mixer=attention, mlp=None if is_routed else mlp, moe=moe if is_routed else None)
        for is_routed in routed
    ]
