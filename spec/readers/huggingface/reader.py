"""Hugging Face ``config.json`` files: what each model type says about the model.

The keys read are those that fix the shapes of the layers, with the defaults of the transformers
configuration class of that type, and what a launch needs besides (spec.readers.huggingface.facts).
Everything else (initialisation, token ids, generation, quantisation of the stored weights, versions)
cannot change the cost of training and is passed over. Model types not in the table are refused.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from spec.errors import ConfigError
from spec.model import ModelSpec
from spec.readers.huggingface.deepseek import deepseek
from spec.readers.huggingface.dense import gpt2, gpt_neox, internlm2, llama, mistral, qwen2, qwen3
from spec.readers.huggingface.hybrid import nemotron_h, qwen3_next
from spec.readers.huggingface.moe import mixtral, qwen2_moe, qwen3_moe
from spec.section import Section
from spec.text_file import read_text

MODEL_TYPES: dict[str, Callable[[Section, str], ModelSpec]] = {
    "llama": llama,
    "mistral": mistral,
    "qwen2": qwen2,
    "qwen3": qwen3,
    "internlm2": internlm2,
    "gpt2": gpt2,
    "gpt_neox": gpt_neox,
    "mixtral": mixtral,
    "qwen2_moe": qwen2_moe,
    "qwen3_moe": qwen3_moe,
    "deepseek_v2": deepseek,
    "deepseek_v3": deepseek,
    "nemotron_h": nemotron_h,
    "qwen3_next": qwen3_next,
}


def read_huggingface_model(path: Path) -> ModelSpec:
    """The model of a ``config.json``.

    Raises ConfigError for a file that is no JSON object, an unknown model_type or a bad value.
    """
    where = str(path)
    top = Section(where=where, name="", values=_json_object(read_text(path, where), where))
    model_type = top.choice("model_type", tuple(MODEL_TYPES))
    name = path.parent.resolve().name if path.name == "config.json" else path.stem
    return MODEL_TYPES[model_type](top, name)


def _json_object(text: str, where: str) -> dict[str, object]:
    def refuse_constant(token: str) -> NoReturn:
        raise ValueError(f"{token} is no number")

    try:
        content = json.loads(text, parse_constant=refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ConfigError(where=where, key="config", value=text[:40], allowed=f"JSON ({error})") from error
    if not isinstance(content, dict):
        raise ConfigError(where=where, key="config", value=text[:40], allowed="a JSON object")
    return content
