"""Hugging Face ``config.json`` files: what each model type says about the model.

The keys read are those that fix the shapes of the layers, with the defaults of the transformers configuration
class of that type (spec.readers.huggingface.defaults), and what a launch needs besides
(spec.readers.huggingface.facts). Everything else (initialisation, token ids, generation, quantisation of the
stored weights, versions) cannot change the cost of training and is passed over. Of a model that also sees or
hears the text model is read. Model types not in the table are refused, or read as one of ASSUMABLE where that
is asked for.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from spec.errors import ConfigError
from spec.model import ModelSpec
from spec.readers.huggingface.defaults import with_defaults
from spec.readers.huggingface.model_types import ASSUMABLE, MODEL_TYPES, TEXT_TYPES, UNREAD
from spec.section import Section
from spec.text_file import read_text

NESTED = "text_config"
SHAPES = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
"""Keys that every type of ASSUMABLE has."""
ROUTED = (
    "num_experts",
    "num_local_experts",
    "n_routed_experts",
    "moe_num_experts",
    "kv_lora_rank",
    "layer_types",
)
"""Keys of layers that no type of ASSUMABLE has."""


def read_huggingface_model(path: Path, assume: str | None = None) -> ModelSpec:
    """The model of a ``config.json``; ``assume`` is the type that an unknown one is read as.

    Raises ConfigError for a file that is no JSON object, an unknown model_type or a bad value.
    """
    where = str(path)
    values = _json_object(read_text(path, where), where)
    name = path.parent.resolve().name if path.name == "config.json" else path.stem
    top = Section(where=where, name="", values=values)
    outer = top.text("model_type")
    if outer in MODEL_TYPES or not top.has(NESTED):
        return _read(top, name, assume)
    inside = top.section(NESTED)
    inside.values = {"model_type": TEXT_TYPES.get(outer, outer), **inside.values}
    model = _read(inside, name, assume)
    note = f"the text model of {outer} alone: what sees or hears is left out"
    return replace(model, assumptions=(note, *model.assumptions))


def _read(top: Section, name: str, assume: str | None) -> ModelSpec:
    model_type = top.text("model_type")
    if model_type in MODEL_TYPES:
        if assume is not None:
            top.fail("model_type", f"a type that is not known: --assume {assume} is for these alone")
        return MODEL_TYPES[model_type](_section(top, model_type), name)
    if model_type in UNREAD:
        top.fail("model_type", f"a type whose layers can be priced; {UNREAD[model_type]}")
    alike = all(top.has(key) for key in SHAPES) and not any(top.has(key) for key in ROUTED)
    if assume is None or not alike:
        also = f"; --assume {' or '.join(ASSUMABLE)} reads it as such a model" if alike else ""
        top.fail("model_type", f"one of {', '.join(MODEL_TYPES)}{also}")
    return replace(
        ASSUMABLE[assume].read(top, name), assumptions=(f"{model_type} is {ASSUMABLE[assume].words}",)
    )


def _section(top: Section, model_type: str) -> Section:
    """The section with what it leaves out."""
    return Section(where=top.where, name=top.name, values=with_defaults(model_type, top.values))


def _json_object(text: str, where: str) -> Mapping[str, object]:
    def refuse_constant(token: str) -> NoReturn:
        raise ValueError(f"{token} is no number")

    try:
        content = json.loads(text, parse_constant=refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ConfigError(where=where, key="config", value=text[:40], allowed=f"JSON ({error})") from error
    if not isinstance(content, dict):
        raise ConfigError(where=where, key="config", value=text[:40], allowed="a JSON object")
    return content
