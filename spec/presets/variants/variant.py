"""A framework told by what it changes of another one."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """``choices`` by names such as ``pipeline.interleaves``; all others are those of the preset named ``of``
    (spec.presets.registry)."""

    name: str
    of: str
    source: str
    """Where the choices were read."""
    choices: Mapping[str, Any]
