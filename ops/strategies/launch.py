"""How the settings of a framework name a strategy."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """``settings`` are entries of the framework's own settings; ``in_script`` what only the training script
    can set, one line each."""

    settings: dict[str, Any]
    in_script: tuple[str, ...] = ()
