"""Bandwidths of a collective as nccl-tests prints them (doc/PERFORMANCE.md, "Bandwidth").

algbw = size / time. busbw = algbw * factor, the factor of spec.collectives: comparable with the rate of
one link whatever the number of ranks. Both in bytes/s; nccl-tests prints them divided by 1e9.
"""

import numpy as np

from spec.arrays import FloatArray, IntArray
from spec.collectives import Collective, busbw_factor


def algbw(size_bytes: IntArray | FloatArray, seconds: FloatArray) -> FloatArray:
    """Algorithm bandwidth in bytes/s: arrays of one length, seconds > 0."""
    return np.asarray(size_bytes / seconds, dtype=np.float64)


def busbw(
    kind: Collective, size_bytes: IntArray | FloatArray, ranks: IntArray | int, seconds: FloatArray
) -> FloatArray:
    """Bus bandwidth in bytes/s for groups of ``ranks``."""
    return np.asarray(algbw(size_bytes, seconds) * busbw_factor(kind, ranks), dtype=np.float64)
