"""Sizes name shipped configs, and a config must be of the size asked for."""

from dataclasses import replace
from pathlib import Path

import pytest

from spec.errors import ConfigError
from spec.parameters import num_parameters
from spec.readers.read_config import MODEL_SIZES, check_model_size, config_for_size, read_config

CONFIGS = Path(__file__).parents[2] / "configs"


@pytest.mark.parametrize("size", MODEL_SIZES)
def test_each_size_names_a_config_of_that_size(size: str) -> None:
    check_model_size(read_config(config_for_size(size, CONFIGS)).model, size)


@pytest.mark.parametrize("size", ["7", "7B", " 7b ", "7.0"])
def test_spellings_of_seven(size: str) -> None:
    assert config_for_size(size, CONFIGS).name == "7B_internlm2.py"


def test_twenty_per_cent_either_way() -> None:
    model = read_config(CONFIGS / "7B_llama2.py").model
    billions = num_parameters(model).total / 1e9
    check_model_size(model, f"{billions / 1.199:.6f}")
    check_model_size(model, f"{billions / 0.801:.6f}")
    for size in (f"{billions / 1.201:.6f}", f"{billions / 0.799:.6f}"):
        with pytest.raises(ConfigError, match=r"6\.74 billion"):
            check_model_size(model, size)


@pytest.mark.parametrize("size", ["", "abc", "-7", "0", "nan", "inf", "1e30"])
def test_bad_sizes(size: str) -> None:
    model = replace(read_config(CONFIGS / "7B_llama2.py").model)
    with pytest.raises(ConfigError, match="model_size"):
        check_model_size(model, size)
    with pytest.raises(ConfigError, match="model_size"):
        config_for_size(size, CONFIGS)


def test_the_documented_table_is_the_table() -> None:
    text = (CONFIGS.parent / "docs" / "configs.md").read_text(encoding="utf-8")
    for size, (name, _) in MODEL_SIZES.items():
        assert f"| {size} | `{name}`" in text
