"""How much memory a plan needs beside what there is, with as many digits as tell the two apart."""

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
