"""``--model_size``: which shipped config stands for a size, and whether a config is of that size."""

from pathlib import Path

from spec.errors import ConfigError
from spec.model import ModelSpec
from spec.parameters import num_parameters

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
    known = MODEL_SIZES.get(_canonical(size))
    if known is None:
        raise ConfigError(
            where="--model_size", key="model_size", value=size, allowed=f"one of {', '.join(MODEL_SIZES)}"
        )
    return configs / known[0]


def check_model_size(model: ModelSpec, size: str) -> None:
    """Raise ConfigError unless the model's total parameters lie within 20 % of ``size``, a number of
    billions or the name of a preset."""
    canonical = _canonical(size)
    try:
        billions = MODEL_SIZES[canonical][1] if canonical in MODEL_SIZES else float(canonical)
    except ValueError:
        billions = 0.0
    if not 0.0 < billions < 1e6:
        raise ConfigError(
            where="--model_size",
            key="model_size",
            value=size,
            allowed=f"billions of parameters or one of {', '.join(MODEL_SIZES)}",
        )
    total = num_parameters(model).total
    if abs(total / 1e9 - billions) > TOLERANCE * billions:
        raise ConfigError(
            where="--model_size",
            key="model_size",
            value=size,
            allowed=f"within 20 % of the config's {total / 1e9:.2f} billion parameters ({model.name})",
        )


def _canonical(size: str) -> str:
    text = size.strip().lower().removesuffix("b")
    return text.removesuffix(".0")
