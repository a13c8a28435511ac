"""One door to every kind of model config, by the file's ending."""

import os.path
from collections.abc import Callable
from pathlib import Path

from spec.errors import ConfigError
from spec.program.shipped import shipped_config
from spec.readers.config_file import ConfigFile
from spec.readers.huggingface.reader import read_huggingface_model
from spec.readers.internlm_config import read_internlm_config
from spec.readers.toml_config import read_toml_config

HUGGING_FACE = ".json"
READERS: dict[str, Callable[[Path], ConfigFile]] = {
    ".py": read_internlm_config,
    ".toml": read_toml_config,
}


def config_file(path: Path) -> Path:
    """The file that a path names as a config: a folder stands for the ``config.json`` in it, and what is not there for
    the shipped one of that path or name."""
    return path / "config.json" if os.path.isdir(path) else shipped_config(path)


def read_config(path: Path, *, assume: str | None = None) -> ConfigFile:
    """Read a model config: ``.py`` InternLM style, ``.json`` Hugging Face, ``.toml`` our own; a
    folder stands for the ``config.json`` in it. ``assume`` is the Hugging Face type that an unknown one is read as.

    Raises ConfigError naming the file, the key, the value and what is allowed.
    """
    path = config_file(path)
    if path.suffix.lower() == HUGGING_FACE:
        model = read_huggingface_model(path, assume)
        return ConfigFile(path=str(path), format="huggingface", model=model)
    if assume is not None:
        raise ConfigError(where=str(path), key="--assume", value=assume, allowed="a Hugging Face config.json")
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        endings = ", ".join((*READERS, HUGGING_FACE))
        raise ConfigError(
            where=str(path), key="config", value=path.name, allowed=f"a file ending in {endings}"
        )
    return reader(path)
