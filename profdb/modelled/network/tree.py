"""NCCL's double binary tree, for all_reduce."""

import numpy as np

from profdb.modelled.network.bus import ll_cap, long_share
from profdb.modelled.network.links import (
    Shape,
    hop_seconds,
    network_rate,
    outer_hop_seconds,
    outside_server,
    scale_up_rate,
    start_seconds,
)
from profdb.modelled.network.nccl_constants import (
    LL128_MAX_BYTES,
    TREE_BASE_S,
    TREE_LL128_SHARE,
    TREE_LL_SHARE,
    TREE_SHARE,
    Protocol,
    tree_correction,
)
from spec.arrays import FloatArray
from spec.cluster.cluster import ClusterSpec
from spec.collectives import Collective


def tree_seconds(cluster: ClusterSpec, kind: Collective, size: FloatArray, shape: Shape) -> FloatArray:
    """The fastest protocol."""
    times = [_with_protocol(cluster, size, shape, protocol) for protocol in Protocol]
    return np.asarray(np.minimum.reduce(times), dtype=np.float64)


def _with_protocol(cluster: ClusterSpec, size: FloatArray, shape: Shape, protocol: Protocol) -> FloatArray:
    """NCCL tree.cc: down and up a chain inside the domain and a double binary tree across domains.

    Each rank passes the buffer on twice. Between domains a node is a leaf of one tree and inside the other, which
    is twice the buffer out of it as well, but of two nodes: each is the other's only child, so half goes up
    and half comes down.
    """
    inside = np.where(shape.intra > 1, scale_up_rate(cluster, shape.intra), np.inf)
    outside = network_rate(cluster, shape) * np.where(shape.inter == 2, 2.0, 1.0)
    rate = np.minimum(inside, outside) * TREE_SHARE
    if protocol is Protocol.LL:
        rate = np.minimum(rate * TREE_LL_SHARE, ll_cap(cluster, shape))
    elif protocol is Protocol.LL128:
        rate = rate * np.where(~outside_server(cluster, shape), TREE_LL128_SHARE[0], TREE_LL128_SHARE[1])
    rate = 0.5 * rate * long_share(cluster, shape) * tree_correction(protocol, size)
    inner = hop_seconds(cluster.domains[0], protocol, tree=True)
    outer = outer_hop_seconds(cluster, shape, protocol, tree=True)
    depth = np.ceil(np.log2(np.maximum(shape.inter, 1)))
    latency = (
        TREE_BASE_S[protocol]
        + start_seconds(cluster, shape)
        + 2.0 * ((shape.intra - 1.0) * inner + depth * outer)
    )
    if protocol is Protocol.LL128:
        latency = np.where(outside_server(cluster, shape) & (size >= LL128_MAX_BYTES), np.inf, latency)
    return np.asarray(latency + size / rate, dtype=np.float64)
