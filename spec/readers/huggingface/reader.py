"""Hugging Face ``config.json`` files: what each model type says about the model.

The keys read are those that fix the shapes of the layers, with the defaults of the transformers configuration
class of that type, and what a launch needs besides. Everything else (initialisation, token ids, generation, quantisation of
the stored weights, versions) cannot change the cost of training and is passed over. Of a model that also sees or
hears the text model is read. Model types not in the table are refused, or read as one of ASSUMABLE where that
is requested.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

from spec.errors import ConfigError
from spec.files import read_text
from spec.model import ModelSpec
from spec.readers.huggingface import dense, hybrid, moe
from spec.readers.huggingface.parts import type_facts
from spec.section import Section


def with_defaults(model_type: str, said: Mapping[str, object]) -> dict[str, object]:
    """``said`` under the names that readers ask for, and what it leaves out; a key that is written as null stays so."""
    facts = type_facts(model_type)
    named = {facts.renamed.get(key, key): value for key, value in said.items()}
    return {**facts.defaults, **named}


# Which function reads which ``model_type``.
Reader = Callable[[Section, str], ModelSpec]
MODEL_TYPES: dict[str, Reader] = {
    "llama": dense.llama,
    "mistral": dense.mistral,
    "qwen2": dense.qwen2,
    "qwen3": dense.qwen3,
    "internlm2": dense.internlm2,
    "gpt2": dense.gpt2,
    "gpt_neox": dense.gpt_neox,
    "mixtral": moe.mixtral,
    "qwen2_moe": moe.qwen2_moe,
    "qwen3_moe": moe.qwen3_moe,
    "deepseek_v2": moe.deepseek,
    "deepseek_v3": moe.deepseek,
    "kimi_k2": moe.deepseek,
    "nemotron_h": hybrid.nemotron_h,
    "qwen3_next": hybrid.qwen3_next,
    "gemma": dense.gemma,
    "gemma2": dense.gemma2,
    "gemma3_text": dense.gemma3,
    "phi": dense.phi,
    "phi3": dense.phi3,
    "phimoe": moe.phimoe,
    "gpt_oss": moe.gpt_oss,
    "glm4": dense.glm4,
    "glm4_moe": moe.glm4_moe,
    "olmo2": dense.olmo2,
    "olmo3": dense.olmo3,
    "olmoe": moe.olmoe,
    "falcon": dense.falcon,
    "bloom": dense.bloom,
    "opt": dense.opt,
    "gpt_bigcode": dense.gpt_bigcode,
    "starcoder2": dense.starcoder2,
    "granite": dense.llama,
    "granitemoe": moe.granitemoe,
    "granitemoeshared": moe.granitemoe,
    "granitemoehybrid": hybrid.granitemoehybrid,
    "seed_oss": dense.seed_oss,
    "smollm3": dense.llama,
    "cohere": dense.cohere,
    "cohere2": dense.cohere2,
    "llama4_text": moe.llama4,
    "minimax_m2": moe.minimax_m2,
    "ernie4_5": dense.ernie4_5,
    "ernie4_5_moe": moe.ernie4_5_moe,
    "hunyuan_v1_dense": dense.hunyuan,
    "exaone4": dense.exaone4,
    "nemotron": dense.nemotron,
    "stablelm": dense.stablelm,
    "bamba": hybrid.bamba,
    "mamba2": hybrid.mamba2,
}
TEXT_TYPES = {"gemma3": "gemma3_text", "llama4": "llama4_text", "mistral3": "mistral", "llava": "llama"}
"""Type of the text model inside of one that also sees or hears, where its own section does not say."""

MAMBA_1 = "Mamba-1's scan runs on the vector units, an exponential for each state of each channel and token: no operation prices it"
UNREAD = dict.fromkeys(("mamba", "falcon_mamba", "jamba", "zamba"), MAMBA_1)
"""Types that no reader is right for, whatever is assumed, and why: their layers would be priced as others.
Source of the scan: arXiv 2312.00752 sec. 3.3.2; state-spaces/mamba
csrc/selective_scan/selective_scan_fwd_kernel.cuh."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumed:
    """A reader for types that are not known; ``words`` say what is taken for granted then."""

    read: Reader
    words: str


ASSUMABLE: dict[str, Assumed] = {
    "llama": Assumed(
        read=dense.llama,
        words="read as llama: gated feed-forward layers, an RMSNorm before each half, rotary positions, full attention, biases "
        "only where attention_bias and mlp_bias say so, a head apart from the embedding unless tie_word_embeddings",
    )
}


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
    return replace(ASSUMABLE[assume].read(top, name), assumptions=(f"{model_type} is {ASSUMABLE[assume].words}",))


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
