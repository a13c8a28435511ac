"""How much slower an older flash-attention kernel is than a newer one.

Published ratios, middle of the published range:
FlashAttention-2 over FlashAttention-3 on Hopper, 1.5-2.0 forward and 1.5-1.75 backward (arXiv 2407.08608
sec. 4.1); FlashAttention over FlashAttention-2, 1.7-3.0 on A100, and FlashAttention written in Triton over
FlashAttention-2, 1.3-1.5 forward and about 2 backward (arXiv 2307.08691 sec. 4.1).
``Assumption:`` Blackwell's own kernels gain as much over FlashAttention-2 as Hopper's.
"""

FLASH3_GAIN: dict[str, float] = {"forward": 1.75, "backward": 1.625}
# Time over FlashAttention-2's, by direction.
OVER_FLASH2: dict[str, dict[str, float]] = {
    "flash2": {"forward": 1.0, "backward": 1.0},
    "flash1": {"forward": 2.35, "backward": 2.35},
    "flash_triton": {"forward": 1.4, "backward": 2.0},
}
NEWER_THAN_FLASH2 = ("hopper", "blackwell")
GENERATIONS = ("flash", *OVER_FLASH2)


def slowdown(kernel: str, direction: str, architecture: str) -> float:
    """Time of ``kernel`` over that of "flash" on GPUs of ``architecture``; 1 for kernels that are no
    flash generation."""
    if kernel not in OVER_FLASH2:
        return 1.0
    ratio = FLASH3_GAIN[direction] if architecture in NEWER_THAN_FLASH2 else 1.0
    return ratio * OVER_FLASH2[kernel][direction]
