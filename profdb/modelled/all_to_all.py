"""All-to-all as NCCL runs it: grouped sends and receives, every rank to every rank.

A rank of n sends size/n to each peer: those inside its domain over its own links, the others through
its share of the NICs, both at once, so the slower counts. Its own part is a copy.
"""

import numpy as np

from profdb.modelled.collective_ring_tree import OWN_CHUNK, ll_cap
from profdb.modelled.links import Shape, hop_seconds, network_rate, scale_up_rate
from profdb.modelled.nccl_constants import NET_OVERHEAD_S, RING_BASE_S, RING_LL_SHARE, Protocol
from spec.arrays import FloatArray
from spec.cluster import ClusterSpec

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
    inner_bytes = size * (shape.intra - 1.0 + OWN_CHUNK) / ranks
    outer_bytes = size * outer_peers / ranks
    nic_rate = network_rate(cluster, shape) / np.maximum(shape.intra, 1)
    best = np.full(size.shape, np.inf)
    memory = cluster.domains[0].link == "memory"
    for protocol in (Protocol.LL, Protocol.SIMPLE):
        share = RING_LL_SHARE if protocol is Protocol.LL else 1.0
        cap = ll_cap(cluster, shape) if protocol is Protocol.LL else np.inf
        inside = np.minimum(scale_up_rate(cluster) * LONG_SHARE * share, cap)
        outside = np.minimum(nic_rate * LONG_SHARE * share, cap)
        base = 0.0 if memory else RING_BASE_S[protocol]
        hop, net_hop = hop_seconds(cluster.domains[0], protocol), hop_seconds(cluster.domains[-1], protocol)
        latency = base + (shape.intra - 1.0) * hop
        latency = latency + np.where(outer_peers > 0, net_hop + outer_peers * NET_OVERHEAD_S[protocol], 0.0)
        best = np.minimum(best, latency + np.maximum(inner_bytes / inside, outer_bytes / outside))
    return np.where((shape.ranks <= 1.0) | (size == 0.0), 0.0, best)
