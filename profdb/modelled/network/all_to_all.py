"""All-to-all as NCCL runs it: grouped sends and receives, every rank to every rank.

A rank of n sends size/n to each peer: those inside its domain over its own links, the others through
its share of every way out between them, all at once, so the slowest counts. Its own part is a copy.
"""

import numpy as np

from profdb.modelled.network import shares
from profdb.modelled.network.bus import ll_cap
from profdb.modelled.network.links import (
    Shape,
    hop_seconds,
    outer_hop_seconds,
    outside_server,
    scale_up_rate,
    start_seconds,
    ways_out,
)
from profdb.modelled.network.nccl_constants import NET_OVERHEAD_S, RING_BASE_S, RING_LL_SHARE, Protocol
from spec.arrays import FloatArray
from spec.cluster.cluster import ClusterSpec

RELATIVE_STD = 0.2  # Fitted: residuals against nccl-tests timings of A100, H100, H200, B200 nodes

# Fitted: share of NCCL's link rate that long all-to-alls reach, same timings, shared by every GPU.
LONG_SHARE = 0.88


def all_to_all_seconds(cluster: ClusterSpec, size_bytes: FloatArray, shape: Shape) -> FloatArray:
    """Seconds; arrays of one length. Nothing for a group of one or an empty buffer.

    Latency: base, one hop per peer inside the domain, one network hop, and NCCL's network posting
    overhead for each further peer outside.
    """
    size = np.asarray(size_bytes, dtype=np.float64)
    ranks = np.maximum(shape.ranks, 1.0)
    outer_peers = ranks - shape.intra
    inner_bytes = size * (shape.intra - 1.0 + shares.OWN_CHUNK) / ranks
    across = outside_server(cluster, shape)
    ways = ways_out(cluster, shape)
    best = np.full(size.shape, np.inf)
    memory = cluster.domains[0].link == "memory"
    for protocol in (Protocol.LL, Protocol.SIMPLE):
        share = RING_LL_SHARE if protocol is Protocol.LL else 1.0
        cap = ll_cap(cluster, shape) if protocol is Protocol.LL else np.inf
        inside = np.minimum(scale_up_rate(cluster, shape.intra) * LONG_SHARE * share, cap)
        base = 0.0 if memory else RING_BASE_S[protocol]
        hop, outer_hop = (
            hop_seconds(cluster.domains[0], protocol),
            outer_hop_seconds(cluster, shape, protocol),
        )
        latency = base + start_seconds(cluster, shape) + (shape.intra - 1.0) * hop + outer_hop
        latency = latency + np.where(across, outer_peers * NET_OVERHEAD_S[protocol], 0.0)
        slowest = inner_bytes / inside
        for way in ways:
            outer_bytes = size * (way.reached - way.members) / ranks
            outside = np.minimum(way.rate / np.maximum(way.members, 1) * LONG_SHARE * share, cap)
            slowest = np.maximum(slowest, np.where(way.crossed, outer_bytes / outside, 0.0))
        best = np.minimum(best, latency + slowest)
    return np.where((shape.ranks <= 1.0) | (size == 0.0), 0.0, best)
