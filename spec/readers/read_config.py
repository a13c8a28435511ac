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


def read_huggingface_config(path: Path) -> ConfigFile:
    """A ``config.json``, which holds neither a sequence length nor a plan; raises ConfigError."""
    return ConfigFile(path=str(path), format="huggingface", model=read_huggingface_model(path))


READERS: dict[str, Callable[[Path], ConfigFile]] = {
    ".py": read_internlm_config,
    ".json": read_huggingface_config,
    ".toml": read_toml_config,
}


def config_file(path: Path) -> Path:
    """The file that a path names as a config: a folder stands for the ``config.json`` in it, and what is not there for
    the shipped one of that path or name."""
    return path / "config.json" if os.path.isdir(path) else shipped_config(path)


def read_config(path: Path) -> ConfigFile:
    """Read a model config: ``.py`` InternLM style, ``.json`` Hugging Face, ``.toml`` our own; a
    folder stands for the ``config.json`` in it.

    Raises ConfigError naming the file, the key, the value and what is allowed.
    """
    path = config_file(path)
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise ConfigError(
            where=str(path), key="config", value=path.name, allowed=f"a file ending in {', '.join(READERS)}"
        )
    return reader(path)
