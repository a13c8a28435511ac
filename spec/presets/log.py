"""What a framework's own log says of a step."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """What the framework's own log counts as a step's FLOPs (solver.model_flops)."""

    attention: Literal["whole", "half", ""] = ""
    """Of a causal attention matrix its log counts the "whole" or "half"; "": no source says."""
    repeats: Literal["layers", "all", ""] = ""
    """Of a recomputed forward its log counts the "layers", "all" (the head too, and selectively recomputed
    attention) or nothing ("")."""
