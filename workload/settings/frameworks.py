"""The files that a plan can be handed over in; asked before anything is loaded, so nothing is imported here."""

from collections.abc import Iterable
from dataclasses import dataclass

from spec.errors import ExportError


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """``how`` a plan is written, for the option's help; ``frameworks`` are the presets whose plans are, none where
    everyone's are."""

    how: str
    frameworks: tuple[str, ...] = ()


WRITTEN: dict[str, Written] = {
    "megatron": Written(how="as Megatron-LM flags", frameworks=("megatron", "megatron-fsdp", "zero-bubble")),
    "deepspeed": Written(how="as DeepSpeed's JSON", frameworks=("deepspeed",)),
    "internevo": Written(how="as an InternEvo config", frameworks=("internevo",)),
    "bridge": Written(how="as a Megatron-Bridge recipe", frameworks=("megatron-bridge",)),
    "swift": Written(how="as the arguments of MS-Swift's Megatron", frameworks=("megatron",)),
    "accelerate": Written(
        how="as accelerate's configuration file", frameworks=("accelerate", "fsdp", "fsdp-compiled", "hf-trainer")
    ),
    "torchtitan": Written(
        how="as torchtitan's Python configuration", frameworks=("torchtitan", "fsdp-compiled", "fsdp")
    ),
    "trace": Written(how="step by step as a Chrome trace"),
}
"""By the name of an option --export_NAME."""


def check_framework(names: Iterable[str], preset: str) -> None:
    """Raise ExportError for an exporter that writes no plan of the framework ``preset``."""
    for name in names:
        wanted = WRITTEN[name].frameworks
        if wanted and preset not in wanted:
            raise ExportError(
                f"--export_{name}: the plans are of {preset}; price them with --framework {' or '.join(wanted)}"
            )
