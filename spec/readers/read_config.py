"""One door to every kind of model config, by the file's ending, and the options by which commands take one."""

import os.path
from argparse import ArgumentParser, _ArgumentGroup
from collections.abc import Callable
from pathlib import Path
from typing import Any

from spec.errors import ConfigError
from spec.files import CONFIGS, shipped_config, shipped_folder
from spec.model import ModelSpec
from spec.names import nearest
from spec.parameters import num_parameters
from spec.readers.config_file import ConfigFile
from spec.readers.huggingface.reader import ASSUMABLE, read_huggingface_config
from spec.readers.internlm import read_internlm_config
from spec.readers.toml_config import read_toml_config

TOLERANCE = 0.2  # InternLM2-7B has 7.74 B parameters, 10.5 % above its name

# name of a size -> (shipped config, parameters in billions that a model of this size is named for)
MODEL_SIZES: dict[str, tuple[str, float]] = {
    "7": ("7B_internlm2.py", 7.0),
    "8": ("8B_llama3.py", 8.0),
    "13": ("13B_llama2.py", 13.0),
    "20": ("20B_internlm2.py", 20.0),
    "22": ("22B_gpt.toml", 22.0),
    "70": ("70B_llama2.py", 70.0),
    "72": ("72B_qwen2.py", 72.0),
    "175": ("175B_gpt.toml", 175.0),
    "405": ("405B_llama3.py", 405.0),
    "671": ("671B_deepseek_v3.toml", 671.0),
    "moe": ("8x7B_mixtral.py", 46.7),
}


def config_for_size(size: str, configs: Path) -> Path:
    """The shipped config of ``size`` in the folder ``configs``; "7", "7B" and "7.0" are one size.

    Raises ConfigError naming the known sizes.
    """
    preset = MODEL_SIZES.get(_canonical(size))
    if preset is None:
        allowed = f"one of {', '.join(MODEL_SIZES)}"
        raise ConfigError(where="--model_size", key="model_size", value=size, allowed=allowed)
    return configs / preset[0]


def check_model_size(model: ModelSpec, size: str) -> None:
    """Raises ConfigError unless the model's total parameters lie within 20 % of ``size``, a number of
    billions or the name of a preset."""
    canonical = _canonical(size)
    try:
        billions = MODEL_SIZES[canonical][1] if canonical in MODEL_SIZES else float(canonical)
    except ValueError:
        billions = 0.0
    if not 0.0 < billions < 1e6:
        allowed = f"billions of parameters or one of {', '.join(MODEL_SIZES)}"
        raise ConfigError(where="--model_size", key="model_size", value=size, allowed=allowed)
    total = num_parameters(model).total
    if abs(total / 1e9 - billions) > TOLERANCE * billions:
        allowed = f"within 20 % of the config's {total / 1e9:.2f} billion parameters ({model.name})"
        raise ConfigError(where="--model_size", key="model_size", value=size, allowed=allowed)


def _canonical(size: str) -> str:
    text = size.strip().lower().removesuffix("b")
    return text.removesuffix(".0")


CONFIG = "model config: InternLM-style .py, Hugging Face .json, .toml"
ASSUME: dict[str, Any] = {
    "choices": tuple(ASSUMABLE),
    "help": "read a config.json of an unknown model type as this one",
}
"""``--assume``, as argparse takes an option."""


def add_config(flags: "ArgumentParser | _ArgumentGroup", words: str = CONFIG, *, required: bool = False) -> None:
    """Adds ``--config`` and ``--assume``, for ``read_config`` or a ``Request``."""
    flags.add_argument("--config", type=Path, required=required, help=words)
    flags.add_argument("--assume", **ASSUME)


def assumption_lines(model: ModelSpec) -> list[str]:
    """Returns the assumptions of its reader, a line each."""
    return [f"assumed  {assumption}" for assumption in model.assumptions]


HUGGING_FACE = ".json"
READERS: dict[str, Callable[[Path], ConfigFile]] = {".py": read_internlm_config, ".toml": read_toml_config}


def config_file(path: Path) -> Path:
    """Returns the config file of a path: of a folder its ``config.json``; of a path that does not exist the shipped file of
    that path or name."""
    return path / "config.json" if os.path.isdir(path) else shipped_config(path)


def read_config(path: Path, *, assume: str | None = None) -> ConfigFile:
    """Returns a model config: ``.py`` InternLM style, ``.json`` Hugging Face (or its folder), ``.toml`` our own.
    ``assume`` is the type that a Hugging Face config of an unknown type is read as.

    Raises ConfigError naming the file, the key, the value and what is allowed.
    """
    path = config_file(path)
    endings = ", ".join((*READERS, HUGGING_FACE))
    if not os.path.exists(path):
        shipped = {one.stem for one in (shipped_folder() / CONFIGS).glob("*.*")}
        allowed = (
            f"an existing file ending in {endings}, or a shipped model such as {', '.join(nearest(path.stem, shipped))}"
        )
        raise ConfigError(where=str(path), key="config", value=path.name, allowed=allowed)
    if path.suffix.lower() == HUGGING_FACE:
        return read_huggingface_config(path, assume)
    if assume is not None:
        raise ConfigError(where=str(path), key="--assume", value=assume, allowed="a Hugging Face config.json")
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise ConfigError(where=str(path), key="config", value=path.name, allowed=f"a file ending in {endings}")
    return reader(path)
