"""Where the router sends tokens: rows per rank, and how many ranks or domains each token visits."""

import numpy as np

from ops.context import LayerContext
from spec.arrays import FloatArray, IntArray
from spec.model import MoeSpec


def routed_rows(context: LayerContext, moe: MoeSpec, own_rows: IntArray) -> IntArray:
    """Token rows one rank's experts work on: topk copies spread by the job's stated imbalance, or with a
    capacity factor that many times topk, dropped or padded to it (GShard, arXiv 2006.16668 sec. 2.2)."""
    copies = moe.topk * context.job.moe_imbalance
    if moe.capacity_factor is not None:
        copies = moe.topk * moe.capacity_factor
    rows: IntArray = np.ceil(own_rows * copies).astype(np.int64)
    return rows


def places_visited(places: IntArray, num_experts: int, topk: int) -> FloatArray:
    """How many of ``places`` (ranks, or domains of ranks), among which the experts are spread evenly, hold
    at least one of a token's ``topk`` experts; float64 of the length of ``places``.

    The expectation over uniformly drawn distinct experts: ``p (1 - C(E - E/p, k) / C(E, k))``, the
    hypergeometric chance of missing a place. Assumption: routing is uniform (benchmarks force it).
    """
    count = np.asarray(places, dtype=np.float64)
    elsewhere = num_experts - num_experts / np.maximum(count, 1.0)
    missed = np.ones_like(count)
    for drawn in range(topk):
        missed = missed * np.maximum(elsewhere - drawn, 0.0) / (num_experts - drawn)
    return np.asarray(count * (1.0 - missed), dtype=np.float64)
