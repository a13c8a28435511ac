"""How much slower an older flash-attention kernel is than the best one for a GPU.

Published ratios, middle of the published range:
FlashAttention-2 over FlashAttention-3 on Hopper, 1.5-2.0 forward and 1.5-1.75 backward (arXiv 2407.08608
sec. 4.1); FlashAttention over FlashAttention-2, 1.7-3.0 on A100 (arXiv 2307.08691 sec. 4.1).
``Assumption:`` Blackwell's own kernels gain as much over FlashAttention-2 as Hopper's.
"""

FLASH3_GAIN: dict[str, float] = {"forward": 1.75, "backward": 1.625}
FLASH2_GAIN = 2.35
NEWER_THAN_FLASH2 = ("hopper", "blackwell")
GENERATIONS = ("flash", "flash2", "flash1")


def slowdown(kernel: str, direction: str, architecture: str) -> float:
    """Time of ``kernel`` over that of "flash" on GPUs of ``architecture``; 1 for kernels that are no
    flash generation."""
    if kernel not in ("flash1", "flash2"):
        return 1.0
    ratio = FLASH3_GAIN[direction] if architecture in NEWER_THAN_FLASH2 else 1.0
    return ratio * (FLASH2_GAIN if kernel == "flash1" else 1.0)
