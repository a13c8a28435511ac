"""Number formats of the database as torch dtypes, and operands filled with them."""

from collections.abc import Callable

import torch

from profiler.benchmarks.launched import Call, UnsupportedCaseError
from profiler.device import Device

TORCH_DTYPES: dict[str, torch.dtype] = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp8": torch.float8_e4m3fn,
}


def torch_dtype(name: str) -> torch.dtype:
    """Returns the torch dtype; raises UnsupportedCaseError for a format torch has no tensors of."""
    if name not in TORCH_DTYPES:
        raise UnsupportedCaseError(f"torch has no dtype for {name}")
    return TORCH_DTYPES[name]


def random_operand(shape: tuple[int, ...], dtype: str, device: torch.device) -> torch.Tensor:
    """Returns normal random numbers: power and thereby clocks depend on the data, and zeros run faster."""
    element = torch_dtype(dtype)
    if element is torch.float8_e4m3fn:
        # torch draws no random numbers in 8 bits.
        return torch.randn(shape, dtype=torch.bfloat16, device=device).to(element)
    return torch.randn(shape, dtype=element, device=device)


def rotating_calls(
    make: Callable[[], Call], bytes_per_call: float, device: Device, *, most: int = 16
) -> tuple[Call, ...]:
    """Returns calls on ``operand_copies`` sets of operands."""
    return tuple(make() for _ in range(operand_copies(bytes_per_call, device.cache_bytes, most=most)))


def operand_copies(bytes_per_copy: float, cache_bytes: int, *, most: int = 16) -> int:
    """Returns the number of sets of operands to run through in turn, so that together they exceed twice the cache.

    A training step finds weights in memory, not in the cache; one set timed again and again would stay in the cache.
    ``cache_bytes`` 0 (unknown, or a CPU): one set.
    """
    if cache_bytes <= 0 or bytes_per_copy <= 0:
        return 1
    # Few sets of large operands, many of small ones, at most ``most``.
    return max(1, min(most, int(2 * cache_bytes // bytes_per_copy) + 1))
