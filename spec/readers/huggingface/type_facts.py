"""The rows of model_types.toml: how the layers of a Hugging Face model type differ from Llama's, and what its configuration
class takes where a config leaves a key out (class_defaults.json, which benchmarks/huggingface_counts.py writes)."""

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

Choice = bool | str
"""Whether layers have a part: by itself, or by the key of a flag, which is False where a config leaves it out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeFacts:
    """One model type.

    Keys: ``defaults`` of those left out, those that are ``renamed`` to the reader's (an empty name drops one), and values
    that ``only`` may stand there, with what is missing for others. ``values`` are what the function ``adapt`` (spec.readers.huggingface.adapt) reads
    from keys of the type's own, and ``changes`` what it reads of single kinds of layers, or of layers by their number.

    Layers: ``pattern`` is repeated where a config has no ``layer_types``; with ``period`` (a key) full attention stands
    in every so-many-th layer and the pattern's first in the others; the first ``full_first`` layers (a number, or a key)
    are of full attention, and with ``full_last`` the last. Windows count where the ``window_flag`` says so. ``linear`` is the mixer of linear_attention.
    ``qk_norm`` is one of QkNormWeights, ``output_gate`` of each "channel" or "head"; an ``inner_norm`` stands before the last matrix of "both" halves or of the "mlp" alone.

    Feed-forward: ``expert_width`` is the key of the experts' width; ``shared`` experts have a width of their own ("width",
    ``shared_expert_intermediate_size``), that of so many routed ones ("count", ``n_shared_experts``), or of one
    ("equal"). An MLP without a width has ``ffn_multiple`` times the hidden size (a number, or a key).
    """

    words: str
    reader: str = "decoder"
    adapt: str = ""
    defaults: Mapping[str, object] = field(default_factory=dict)
    renamed: Mapping[str, str] = field(default_factory=dict)
    only: Mapping[str, tuple[list[object], str]] = field(default_factory=dict)
    values: Mapping[str, object] = field(default_factory=dict)
    changes: Mapping[str | int, Mapping[str, object]] = field(default_factory=dict)

    qkv_bias: Choice = "attention_bias"
    out_bias: Choice = ""
    qk_norm: str = ""
    qk_norm_flag: str = ""
    output_gate: str = ""
    gate_bias: bool = False
    value_norm: bool = False
    keys_as_values: Choice = False
    inner_norm: str = ""
    rope_key_norm: bool = False
    differential: bool = False
    latent_gates: bool = False
    position_scale: bool = False
    sinks: Choice = False
    alibi: Choice = False
    latent: bool = False
    indexed: bool = False

    pattern: list[str] = field(default_factory=lambda: ["full_attention"])
    period: str = ""
    full_first: int | str = 0
    full_last: bool = False
    window_flag: str = ""
    linear: str = ""
    linear_norm_place: str = ""

    gated: bool = True
    mlp_bias: Choice = False
    ffn_multiple: int | str = 0
    experts: bool = False
    expert_width: str = "moe_intermediate_size"
    shared: str = ""
    shared_gate: bool = False
    router_bias: bool = False
    expert_bias: bool = False
    expert_norm: bool = False
    clamped: bool = False
    score: str = "softmax"
    normalized: bool = False

    norm: str = "rmsnorm"
    norm_place: str = "before"
    parallel_residual: Choice = False
    position: str = "rotary"
    extra_positions: int = 0
    head_bias: Choice = False
    embedding_norm: bool = False
    final_norm: bool = True
    condition_rank: int = 0
    norm_gate_rank: str = ""
    residual_streams: str = ""
    mixed_streams: bool = False


REFUSED = "refused"
"""The table of types that are not read: lists of them by reason."""


def type_facts(model_type: str) -> TypeFacts:
    """Returns the row of a known type."""
    row = _merged_row(model_type)
    defaults = {**row.pop("inherited", {}), **_class_defaults(model_type), **row.pop("defaults", {})}
    return TypeFacts(defaults=defaults, **row)


def known_types() -> tuple[str, ...]:
    """Returns the types that are read, in the table's order."""
    return tuple(name for name in _table("model_types.toml") if name != REFUSED)


def refusals() -> dict[str, str]:
    """Returns types that are refused whatever is assumed, and why."""
    return {name: reason for reason, names in _table("model_types.toml")[REFUSED].items() for name in names}


def nested_defaults(outer: str) -> Mapping[str, Any]:
    """Returns what the class of a model that also sees or hears says of its text model: its type, the keys under which
    that stands, whether embeddings are tied, and defaults other than its own; empty for an unknown type."""
    return dict(_table("class_defaults.json")["outer"].get(outer, {}))


@cache
def shaping_keys() -> frozenset[str]:
    """Returns every key that shapes models of some type, by the names that their files have for them."""
    rows = [type_facts(name) for name in known_types()]
    return frozenset(key for facts in rows for key in (*facts.defaults, *facts.renamed))


def _merged_row(model_type: str) -> dict[str, Any]:
    row = dict(_table("model_types.toml")[model_type])
    parent = row.pop("like", "")
    if not parent:
        return {"words": "", **row}
    inherited = _merged_row(parent)
    row.setdefault("words", f"As `{parent}`")
    merged = {key: {**inherited.get(key, {}), **row.get(key, {})} for key in ("renamed", "only")}
    above = {**inherited.pop("inherited", {}), **inherited.pop("defaults", {})}
    return {**inherited, **row, **merged, "inherited": above}


def _class_defaults(model_type: str) -> Mapping[str, object]:
    """Returns defaults by the names of model_types.toml's reader: the class's own, or those of the type it is like."""
    table = _table("class_defaults.json")["types"]
    while model_type not in table:
        model_type = _table("model_types.toml")[model_type].get("like", "")
        if not model_type:
            return {}
    return dict(table[model_type])


@cache
def _table(name: str) -> dict[str, Any]:
    text = Path(__file__).with_name(name).read_text(encoding="utf-8")
    return tomllib.loads(text) if name.endswith(".toml") else json.loads(text)
