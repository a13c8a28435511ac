"""Rotary position embeddings as a model was trained with them: facts for a launch, without a price.

Base and rotated share: RoFormer (arXiv 2104.09864). Scalings by the names of transformers
``modeling_rope_utils.py``: linear (arXiv 2306.15595), dynamic NTK, yarn (arXiv 2309.00071), llama3
(Llama 3.1, arXiv 2407.21783 sec. 3.4.2).
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeScaling:
    """How positions beyond those of pre-training are reached.

    ``kind`` is "linear", "dynamic", "llama3", "yarn" or another name as its config writes it; ``factor`` how
    many times the context grows; ``original_positions`` the context before it (0: not said). ``slow`` and
    ``fast`` are llama3's low_freq_factor and high_freq_factor, or yarn's beta_slow and beta_fast;
    ``mscale`` and ``mscale_all_dim`` yarn's temperature as DeepSeek-V2 sets it (None: not said).
    """

    kind: str
    factor: float = 1.0
    original_positions: int = 0
    slow: float | None = None
    fast: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeSpec:
    """``base`` of the rotation's frequencies, and the ``share`` of a head's channels that is rotated."""

    base: float = 10_000.0
    share: float = 1.0
    scaling: RopeScaling | None = None
