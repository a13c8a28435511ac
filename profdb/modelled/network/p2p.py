"""One message between two ranks: NCCL send/recv over the NVLink pair or one rank's NIC.

Base and hop latency of NCCL's ring protocols (a send is one step of it), payload rate of the link.
"""

import numpy as np

from profdb.modelled.network import shares
from profdb.modelled.network.bus import ll_cap
from profdb.modelled.network.links import (
    Shape,
    hop_seconds,
    network_rate,
    outer_hop_seconds,
    outside_server,
    scale_up_rate,
)
from profdb.modelled.network.nccl_constants import RING_BASE_S, RING_LL_SHARE, Protocol
from spec.arrays import FloatArray
from spec.cluster.cluster import ClusterSpec

RELATIVE_STD = 0.25  # Assumption: somewhat worse known than collectives


def p2p_seconds(cluster: ClusterSpec, size_bytes: FloatArray, shape: Shape) -> FloatArray:
    """Seconds of one message; arrays of one length. ``shape`` is (2, 1) inside a scale-up domain and
    (1, 2) across; ``siblings`` pairs per domain send at once. Nothing to send costs nothing."""
    size = np.asarray(size_bytes, dtype=np.float64)
    across = shape.inter > 1
    one = Shape(
        intra=np.minimum(shape.intra, 1),
        inter=shape.inter,
        siblings=shape.siblings,
        outer_intra=shape.outer_intra,
        outer_siblings=shape.outer_siblings,
    )
    stream = np.where(outside_server(cluster, shape), shares.NIC_STREAM_SHARE, shares.LONG_SHARE)
    outside = network_rate(cluster, one) * stream
    inside = scale_up_rate(cluster, shape.intra) * shares.LONG_SHARE
    rate = np.where(across, outside, inside)
    best = np.full(size.shape, np.inf)
    for protocol in (Protocol.LL, Protocol.SIMPLE):
        inner_hop = hop_seconds(cluster.domains[0], protocol)
        hop = np.where(across, outer_hop_seconds(cluster, shape, protocol), inner_hop)
        base = 0.0 if cluster.domains[0].link == "memory" else RING_BASE_S[protocol]
        share = RING_LL_SHARE if protocol is Protocol.LL else 1.0
        reached = np.minimum(rate * share, ll_cap(cluster, shape) if protocol is Protocol.LL else np.inf)
        best = np.minimum(best, base + hop + size / reached)
    return np.where(size == 0.0, 0.0, best)
