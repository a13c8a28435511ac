"""Collectives and their bandwidth factors.

``size_bytes`` of a collective is the whole array on one rank, as nccl-tests counts it: all_gather
output, reduce_scatter input, all_reduce, broadcast and reduce buffer, all-to-all buffer of one rank, what
gather's root ends with and scatter's root begins with, p2p message.

Source of the factors: nccl-tests, doc/PERFORMANCE.md, "Bus bandwidth"; of gather, scatter and hypercube the
programs themselves (src/gather.cu, scatter.cu, hypercube.cu, GetBw).
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
    REDUCE = "reduce"
    GATHER = "gather"
    SCATTER = "scatter"
    HYPERCUBE = "hypercube"


TRAINING_COLLECTIVES: tuple[Collective, ...] = (
    Collective.ALL_REDUCE,
    Collective.ALL_GATHER,
    Collective.REDUCE_SCATTER,
    Collective.ALL_TO_ALL,
    Collective.BROADCAST,
    Collective.P2P,
)
"""What a training step runs, a sweep measures and a hardware spec can model; the others are only imported."""

GROUP_COLLECTIVES: tuple[Collective, ...] = tuple(kind for kind in TRAINING_COLLECTIVES if kind is not Collective.P2P)
"""Those of them that a whole group runs."""

SPREAD_BY_SHARES = frozenset(
    {
        Collective.ALL_GATHER,
        Collective.REDUCE_SCATTER,
        Collective.ALL_TO_ALL,
        Collective.GATHER,
        Collective.SCATTER,
        Collective.HYPERCUBE,
    }
)
"""Those in which a rank's own n-th part of the array never travels."""


def busbw_factor(kind: Collective, ranks: IntArray | int) -> FloatArray:
    """busbw / algbw for ``ranks`` members (algbw = size_bytes / seconds).

    all_reduce 2(n-1)/n; all_gather, reduce_scatter, all-to-all, gather, scatter and hypercube (an all-gather
    by pairs) (n-1)/n; broadcast, reduce and p2p 1.
    """
    n = np.asarray(ranks, dtype=np.float64)
    if kind is Collective.ALL_REDUCE:
        return 2.0 * (n - 1.0) / n
    if kind in SPREAD_BY_SHARES:
        return (n - 1.0) / n
    return np.ones_like(n)
