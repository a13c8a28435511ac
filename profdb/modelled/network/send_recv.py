"""All-to-all and single messages as NCCL runs them: grouped sends and receives.

In an all-to-all a rank of n sends size/n to each peer: to those inside its domain over its own links, to the others over
its share of every uplink in between. All are sent at once, so the slowest path counts. Its own part is a copy. A message
has the base and hop latency of NCCL's ring protocols (a send is one step of a ring), and the payload rate of the link.
"""

import numpy as np

from profdb.modelled.network import links
from profdb.modelled.network.links import (
    CommGroup,
    Protocol,
    link_latency_s,
    ll_cap,
    network_rate,
    outer_latency_s,
    outside_server,
    scale_up_rate,
    start_seconds,
    uplinks,
)
from profdb.modelled.network.nccl import NET_OVERHEAD_S, RING_BASE_S, RING_LL_SHARE
from spec.arrays import FloatArray
from spec.cluster.cluster import ClusterSpec

ALL_TO_ALL_STD = 0.2  # Fitted: residuals against nccl-tests timings of A100, H100, H200, B200 nodes

# Fitted: share of NCCL's link rate that long all-to-alls reach, same timings, shared by every GPU.
ALL_TO_ALL_SHARE = 0.88
P2P_STD = 0.25  # Assumption: somewhat less certain than collectives


def all_to_all_seconds(cluster: ClusterSpec, size_bytes: FloatArray, group: CommGroup) -> FloatArray:
    """Returns the time of an all-to-all; arrays of one length. 0 for a group of one rank or an empty buffer.

    Latency: base, one hop per peer inside the domain, one network hop, and NCCL's network posting overhead for each
    further peer outside.
    """
    size = np.asarray(size_bytes, dtype=np.float64)
    ranks = np.maximum(group.ranks, 1.0)
    outer_peers = ranks - group.intra
    inner_bytes = size * (group.intra - 1.0 + links.OWN_CHUNK) / ranks
    across = outside_server(cluster, group)
    levels = uplinks(cluster, group)
    best = np.full(size.shape, np.inf)
    memory = cluster.domains[0].link == "memory"
    # NCCL's sends and receives have no LL128.
    for protocol in (Protocol.LL, Protocol.SIMPLE):
        share = RING_LL_SHARE if protocol is Protocol.LL else 1.0
        cap = ll_cap(cluster, group) if protocol is Protocol.LL else np.inf
        inside = np.minimum(scale_up_rate(cluster, group.intra) * ALL_TO_ALL_SHARE * share, cap)
        base = 0.0 if memory else RING_BASE_S[protocol]
        inner, outer = (link_latency_s(cluster.domains[0], protocol), outer_latency_s(cluster, group, protocol))
        latency = base + start_seconds(cluster, group) + (group.intra - 1.0) * inner + outer
        latency = latency + np.where(across, outer_peers * NET_OVERHEAD_S[protocol], 0.0)
        # Paths in parallel: the links inside the domain, then each uplink with the bytes that cross it.
        slowest = inner_bytes / inside
        for uplink in levels:
            outer_bytes = size * (uplink.reached - uplink.members) / ranks
            outside = np.minimum(uplink.rate / np.maximum(uplink.members, 1) * ALL_TO_ALL_SHARE * share, cap)
            slowest = np.maximum(slowest, np.where(uplink.crossed, outer_bytes / outside, 0.0))
        best = np.minimum(best, latency + slowest)
    return np.where((group.ranks <= 1.0) | (size == 0.0), 0.0, best)


def p2p_seconds(cluster: ClusterSpec, size_bytes: FloatArray, group: CommGroup) -> FloatArray:
    """Returns the time of one message; arrays of one length; 0 for nothing to send. ``group`` is (2, 1) inside a
    scale-up domain and (1, 2) across; ``siblings`` pairs per domain send at once."""
    size = np.asarray(size_bytes, dtype=np.float64)
    across = group.inter > 1
    # The sender alone, one rank per domain: uplinks are shared by the siblings, not by a pair's two ranks.
    one = CommGroup(
        intra=np.minimum(group.intra, 1),
        inter=group.inter,
        siblings=group.siblings,
        outer_intra=group.outer_intra,
        outer_siblings=group.outer_siblings,
    )
    # One message is one stream, which reaches less of a NIC than a collective's many channels do.
    stream = np.where(outside_server(cluster, group), links.NIC_STREAM_SHARE, links.LONG_SHARE)
    outside = network_rate(cluster, one) * stream
    inside = scale_up_rate(cluster, group.intra) * links.LONG_SHARE
    rate = np.where(across, outside, inside)
    best = np.full(size.shape, np.inf)
    for protocol in (Protocol.LL, Protocol.SIMPLE):
        inner = link_latency_s(cluster.domains[0], protocol)
        link_latency = np.where(across, outer_latency_s(cluster, group, protocol), inner)
        base = 0.0 if cluster.domains[0].link == "memory" else RING_BASE_S[protocol]
        share = RING_LL_SHARE if protocol is Protocol.LL else 1.0
        reached = np.minimum(rate * share, ll_cap(cluster, group) if protocol is Protocol.LL else np.inf)
        best = np.minimum(best, base + link_latency + size / reached)
    return np.where(size == 0.0, 0.0, best)
