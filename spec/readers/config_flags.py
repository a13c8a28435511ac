"""The options by which every command that reads a model config takes one."""

from argparse import ArgumentParser, _ArgumentGroup
from pathlib import Path

from spec.model import ModelSpec
from spec.readers.huggingface.model_types import ASSUMABLE

CONFIG = "model config: InternLM-style .py, Hugging Face .json, .toml"


def add_config(
    flags: "ArgumentParser | _ArgumentGroup", words: str = CONFIG, *, required: bool = False
) -> None:
    """``--config`` and ``--assume``, for ``read_config`` or a ``Request``."""
    flags.add_argument("--config", type=Path, required=required, help=words)
    add_assume(flags)


def add_assume(flags: "ArgumentParser | _ArgumentGroup") -> None:
    """``--assume`` alone, where the config has another option's name."""
    flags.add_argument(
        "--assume", choices=tuple(ASSUMABLE), help="read a config.json of an unknown model type as this one"
    )


def assumed_lines(model: ModelSpec) -> list[str]:
    """What its reader took for granted, a line each."""
    return [f"assumed  {said}" for said in model.assumptions]
