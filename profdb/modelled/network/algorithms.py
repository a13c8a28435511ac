"""The algorithms that NCCL chooses from, a line each; the fastest counts.

A group of one rank costs nothing. ``size_bytes`` is the whole array on one rank (spec.collectives).
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from profdb.modelled.network.links import Shape
from profdb.modelled.network.nvls import nvls_seconds
from profdb.modelled.network.pat import pat_seconds
from profdb.modelled.network.ring import ring_seconds
from profdb.modelled.network.tree import tree_seconds
from spec.arrays import FloatArray
from spec.cluster.cluster import ClusterSpec
from spec.collectives import Collective

RELATIVE_STD = 0.2  # Fitted: residuals of the timings of profdb.modelled.network.shares

REDUCED = (Collective.ALL_REDUCE,)
GATHERED = (Collective.ALL_GATHER, Collective.REDUCE_SCATTER)
COPIED = (Collective.BROADCAST,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Algorithm:
    """``seconds`` of the collectives ``kinds`` on clusters that ``exists`` is true of, infinite for a group that
    it cannot serve; arrays of one length."""

    kinds: tuple[Collective, ...]
    seconds: Callable[[ClusterSpec, Collective, FloatArray, Shape], FloatArray]
    exists: Callable[[ClusterSpec], bool]


def everywhere(cluster: ClusterSpec) -> bool:
    """On every machine."""
    return True


def between_gpus(cluster: ClusterSpec) -> bool:
    """Where ranks are GPUs with a link, not processes that share a memory."""
    return cluster.domains[0].link != "memory"


def in_the_switch(cluster: ClusterSpec) -> bool:
    """Where the switch of the innermost domain reduces."""
    return cluster.domains[0].in_network_reduction


ALGORITHMS: tuple[Algorithm, ...] = (
    Algorithm(kinds=(*REDUCED, *GATHERED, *COPIED), seconds=ring_seconds, exists=everywhere),
    Algorithm(kinds=REDUCED, seconds=tree_seconds, exists=between_gpus),
    Algorithm(kinds=(*REDUCED, *GATHERED), seconds=nvls_seconds, exists=in_the_switch),
    Algorithm(kinds=GATHERED, seconds=pat_seconds, exists=between_gpus),
)


def collective_seconds(
    cluster: ClusterSpec, kind: Collective, size_bytes: FloatArray, shape: Shape
) -> FloatArray:
    """Seconds of all_reduce, all_gather, reduce_scatter or broadcast; arrays of one length."""
    size = np.asarray(size_bytes, dtype=np.float64)
    best = np.full(size.shape, np.inf)
    for one in ALGORITHMS:
        if kind in one.kinds and one.exists(cluster):
            best = np.minimum(best, one.seconds(cluster, kind, size, shape))
    return np.where((shape.ranks <= 1.0) | (size == 0.0), 0.0, best)
