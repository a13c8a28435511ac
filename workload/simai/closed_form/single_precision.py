"""Numbers as the simulator holds them: sizes, times, rates and shares pass through a C++ float."""

import struct


def single(value: float) -> float:
    """``value`` (below 3.4e38) in the 24 bits of a float."""
    return float(struct.unpack("f", struct.pack("f", value))[0])
