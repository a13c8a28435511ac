"""Collectives and their bandwidth factors.

``size_bytes`` of a collective is the whole array on one rank, as nccl-tests counts it: all_gather
output, reduce_scatter input, all_reduce buffer, broadcast buffer, all-to-all buffer of one rank,
p2p message.

Source of the factors: nccl-tests, doc/PERFORMANCE.md, "Bus bandwidth".
"""

from enum import StrEnum

import numpy as np

from spec.arrays import FloatArray, IntArray


class Collective(StrEnum):
    """The operations a profile holds; values are the names used in files and pictures."""

    ALL_REDUCE = "all_reduce"
    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_TO_ALL = "all2all"
    BROADCAST = "broadcast"
    P2P = "p2p"


def busbw_factor(kind: Collective, ranks: IntArray | int) -> FloatArray:
    """busbw / algbw for ``ranks`` members (algbw = size_bytes / seconds).

    all_reduce 2(n-1)/n; all_gather, reduce_scatter and all-to-all (n-1)/n; broadcast and p2p 1.
    """
    n = np.asarray(ranks, dtype=np.float64)
    if kind is Collective.ALL_REDUCE:
        return 2.0 * (n - 1.0) / n
    if kind in (Collective.ALL_GATHER, Collective.REDUCE_SCATTER, Collective.ALL_TO_ALL):
        return (n - 1.0) / n
    return np.ones_like(n)
