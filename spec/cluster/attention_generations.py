"""How much slower an older flash-attention kernel is than a newer one.

Published ratios, middle of the published range: FlashAttention over FlashAttention-2, 1.7-3.0 on A100, and
FlashAttention written in Triton over FlashAttention-2, 1.3-1.5 forward and about 2 backward (arXiv
2307.08691 sec. 4.1). What the best kernel gains over FlashAttention-2 is a fact of the architecture.
"""

from spec.cluster.architecture import ArchitectureSpec

# Time over FlashAttention-2's, by direction.
OVER_FLASH2: dict[str, dict[str, float]] = {
    "flash2": {"forward": 1.0, "backward": 1.0},
    "flash1": {"forward": 2.35, "backward": 2.35},
    "flash_triton": {"forward": 1.4, "backward": 2.0},
}
GENERATIONS = ("flash", *OVER_FLASH2)


def slowdown(kernel: str, direction: str, architecture: ArchitectureSpec | None) -> float:
    """Time of ``kernel`` over that of "flash" on GPUs of ``architecture`` (None: one on which nothing beats
    FlashAttention-2); 1 for kernels that are no flash generation."""
    if kernel not in OVER_FLASH2:
        return 1.0
    best = architecture.best_over_flash2[direction] if architecture else 1.0
    return best * OVER_FLASH2[kernel][direction]
