"""Units. Inside the program: seconds, bytes, FLOP. Conversions happen only at the edges."""

KIB = 1024
MIB = 1024**2
GIB = 1024**3

US = 1e-6
MS = 1e-3

GIGA = 1e9
TERA = 1e12


def bytes_to_gib(size_bytes: float) -> float:
    """Bytes to GiB (2**30 bytes)."""
    return size_bytes / GIB


def seconds_to_ms(time_s: float) -> float:
    """Seconds to milliseconds."""
    return time_s / MS


HOUR_S = 3600.0
DAY_S = 86_400.0
KWH = 3.6e6
