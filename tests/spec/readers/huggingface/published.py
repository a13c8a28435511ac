"""The keys of each model's published config.json that shape it (and a few that do not), and models read from them."""

import json
from pathlib import Path
from typing import Any

import pytest

from spec.errors import ConfigError
from spec.model import ModelSpec
from spec.readers.read_config import read_config

Config = dict[str, Any]
SHAPES: dict[str, Config] = {
    path.stem: json.loads(path.read_text(encoding="utf-8"))
    for path in (Path(__file__).parent / "shapes").glob("*.json")
}


def load(folder: Path, content: Config, assume: str | None = None) -> ModelSpec:
    path = folder / "config.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    config = read_config(path, assume=assume)
    assert (config.format, config.plan, config.seq_len) == ("huggingface", None, None)
    return config.model


def refusal(folder: Path, content: Config, assume: str | None = None) -> ConfigError:
    """The error of a config, which is one line."""
    with pytest.raises(ConfigError) as refused:
        load(folder, content, assume)
    assert "\n" not in str(refused.value)
    return refused.value
