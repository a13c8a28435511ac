"""Hugging Face ``config.json`` files: what each model type says about the model.

The keys read are those that fix the shapes of the layers, with the defaults of the transformers configuration
class of that type, and what a launch needs besides. Everything else (initialisation, token ids, generation, quantisation of
the stored weights, versions) cannot change the cost of training and is passed over. Of a model that also sees or
hears the text model is read. Model types not in the table are refused, or read as one of ASSUMABLE where that
is requested.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from spec.errors import ConfigError
from spec.files import read_text
from spec.model import ModelSpec, VisionSpec
from spec.parameters import vision_parameters
from spec.readers.config_file import ConfigFile
from spec.readers.huggingface import hybrid
from spec.readers.huggingface.adapt import ADAPT
from spec.readers.huggingface.decoder import read_decoder
from spec.readers.huggingface.deepseek_v4 import deepseek_v4
from spec.readers.huggingface.parts import ACTIVATIONS
from spec.readers.huggingface.type_facts import (
    TypeFacts,
    known_types,
    nested_defaults,
    refusals,
    shaping_keys,
    type_facts,
)
from spec.readers.huggingface.vision import read_vision
from spec.section import Section

Reader = Callable[[Section, TypeFacts, str], ModelSpec]
READERS: dict[str, Reader] = {
    "decoder": read_decoder,
    "nemotron_h": hybrid.nemotron_h,
    "granitemoehybrid": hybrid.granitemoehybrid,
    "bamba": hybrid.bamba,
    "falcon_h1": hybrid.falcon_h1,
    "mamba2": hybrid.mamba2,
    "deepseek_v4": deepseek_v4,
}

ASSUMABLE = {
    "llama": "gated feed-forward layers, an RMSNorm before each half, rotary positions, full attention, biases "
    "only where attention_bias and mlp_bias say so, a head apart from the embedding unless tie_word_embeddings"
}
"""Types that a config of an unknown one may be read as, and what is taken for granted then."""
SHAPES = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
"""Keys that every type of ASSUMABLE has, and that an answer names where a file leaves them to its class."""
POSITIONS = "max_position_embeddings"
ACTIVATION_KEYS = ("hidden_act", "hidden_activation", "activation_function")


def read_huggingface_config(path: Path, assume: str | None = None) -> ConfigFile:
    """Returns the model of a ``config.json``, and the most tokens of a sequence if the file states them; ``assume`` is
    the type that an unknown one is read as.

    Raises ConfigError for a file that is no JSON object, an unknown model_type or a bad value.
    """
    where = str(path)
    values = _json_object(read_text(path, where), where)
    name = path.parent.resolve().name if path.name == "config.json" else path.stem
    top = Section(where=where, name="", values=values)
    outer = top.text("model_type")
    inside = None if outer in known_types() else _text_section(top, outer)
    section = inside or top
    model, inner = _read(section, name, assume), section.text("model_type")
    if inside is not None:
        vision = read_vision(top, outer)
        model = _noted(replace(model, vision=vision), _left_out(outer, vision, model.hidden))
    elif outer in known_types():
        left_out = [key for key in SHAPES if key in type_facts(outer).defaults and key not in _renamed(outer, values)]
        shown = ", ".join(f"{key} = {type_facts(outer).defaults[key]}" for key in left_out)
        model = _noted(model, f"left out, so as in transformers' class of {outer}: {shown}") if left_out else model
    stated = _renamed(inner if inner in known_types() else str(assume), section.values).get(POSITIONS)
    max_seq_len = stated if isinstance(stated, int) else None
    return ConfigFile(path=where, format="huggingface", model=model, max_seq_len=max_seq_len)


def _left_out(outer: str, vision: VisionSpec | None, hidden: int) -> str:
    if vision is None:
        return f"the text model of {outer} alone: what sees or hears is left out"
    return f"the text model of {outer}; its vision tower of {vision_parameters(vision, hidden):,} parameters runs with --job images=N,image_patches=P"


def _noted(model: ModelSpec, note: str) -> ModelSpec:
    return replace(model, assumptions=(note, *model.assumptions))


def _text_section(top: Section, outer: str) -> Section | None:
    """The section of the text model in a model that also sees or hears, which may be all of a file; None for any other.
    The outer model says whether embeddings are tied, as transformers takes it."""
    known = nested_defaults(outer)
    inside = top
    for key in known.get("keys", ["text_config"]):
        inside = inside.section(key)
    if inside.values:
        values = {"model_type": known.get("text", outer), **known.get("defaults", {}), **inside.values}
    elif known:
        inside, values = top, {**known.get("defaults", {}), **top.values, "model_type": known["text"]}
    else:
        return None
    tied = top.values.get("tie_word_embeddings", known.get("tied"))
    if tied is not None:
        values["tie_word_embeddings"] = tied
    return replace(inside, values=values)


def _read(top: Section, name: str, assume: str | None) -> ModelSpec:
    model_type = top.text("model_type")
    if model_type in known_types():
        if assume is not None:
            top.fail("model_type", f"a type that is not known: --assume {assume} is for these alone")
        return _read_type(top, model_type, name)
    refused = refusals().get(model_type)
    if refused is not None:
        top.fail("model_type", f"a type whose layers can be priced; {refused}")
    alike = all(top.has(key) for key in SHAPES)
    if assume is None or not alike:
        also = f"; --assume {' or '.join(ASSUMABLE)} reads it as such a model" if alike else ""
        top.fail("model_type", f"one of {len(known_types())} types that docs/models.md lists{also}")
    model = _read_type(top, assume, name)
    _check_alike(top, assume)
    return _noted(model, f"{model_type} is read as {assume}: {ASSUMABLE[assume]}")


def _check_alike(top: Section, assume: str) -> None:
    """Refuse a config whose activation is another, or that has a key which shapes models of other types and was not read."""
    for key in ACTIVATION_KEYS:
        if top.has(key) and ACTIVATIONS.get(top.text(key), top.text(key)) != "silu":
            top.fail(key, f"silu, as {assume} has it: --assume {assume} reads no other")
    for key, value in top.values.items():
        if value and key in shaping_keys() and key not in top.read:
            top.fail(
                key, f"absent, null, 0 or false: {assume} has no such key, so --assume {assume} would misread the model"
            )


def _read_type(top: Section, model_type: str, name: str) -> ModelSpec:
    """The model of a known type, whose keys are read by the names that all types share."""
    facts = type_facts(model_type)
    names = {ours: theirs for theirs, ours in facts.renamed.items() if theirs in top.values}
    section = replace(top, values={**facts.defaults, **_renamed(model_type, top.values)}, names=names)
    for key, (accepted, why) in facts.only.items():
        section.only(key, tuple(accepted), why)
    if facts.adapt:
        facts = ADAPT[facts.adapt](section, facts)
        section.values = {**section.values, **facts.values}
    return READERS[facts.reader](section, facts, name)


def _renamed(model_type: str, values: Mapping[str, object]) -> dict[str, object]:
    """``values`` under the names that readers ask for."""
    renamed = type_facts(model_type).renamed
    return {renamed.get(key, key): value for key, value in values.items()}


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
