"""How much memory a plan needs beside what there is, with as many digits as tell the two apart."""

from enum import StrEnum

from spec.units import bytes_to_gib

MOST_DECIMALS = 9
NEARLY_ALL = 0.95


def needs_words(needed_bytes: float, limit_bytes: float) -> str:
    """``needs 140.3 GiB of 139.6``."""
    for decimals in range(1, MOST_DECIMALS + 1):
        needed, limit = (f"{bytes_to_gib(size):.{decimals}f}" for size in (needed_bytes, limit_bytes))
        if needed != limit:
            break
    return f"needs {needed} GiB of {limit}"


def nearly_all_words(needed_bytes: float, limit_bytes: float) -> str:
    """A warning when a plan leaves less than a twentieth of the memory free, else ""."""
    share = needed_bytes / limit_bytes
    if share <= NEARLY_ALL:
        return ""
    return (
        f"{needs_words(needed_bytes, limit_bytes)}, {100 * share:.1f} %: fragmentation, a longer sequence or one more "
        "communicator may not fit"
    )


class Verdict(StrEnum):
    """Whether a plan runs in a device's memory. RETRIES: it does, but what the allocator would keep where
    memory is plenty does not fit, so that it hands cached segments back and makes them anew, waiting for the
    device each time (PyTorch c10/cuda/CUDACachingAllocator.cpp, malloc: release_cached_blocks and a second
    cudaMalloc)."""

    FITS = "fits"
    RETRIES = "fits with retries"
    SHORT = "does not fit"


def verdict(needed_bytes: float, device_bytes: float, limit_bytes: float) -> Verdict:
    """The verdict on a plan that needs at least ``needed_bytes`` and would take ``device_bytes``."""
    if needed_bytes > limit_bytes:
        return Verdict.SHORT
    return Verdict.RETRIES if device_bytes > limit_bytes else Verdict.FITS


def retries_words(needed_bytes: float, device_bytes: float, limit_bytes: float) -> str:
    """A warning where a plan runs with retries alone, else ""."""
    if verdict(needed_bytes, device_bytes, limit_bytes) is not Verdict.RETRIES:
        return ""
    cached, limit = bytes_to_gib(device_bytes), bytes_to_gib(limit_bytes)
    return (
        f"fits with retries: the allocator would keep {cached:.1f} GiB of {limit:.1f} and hands segments back in every "
        "step, for which the device is waited (not priced); expandable_segments leaves no such segments"
    )
