"""NCCL's double binary tree, for all_reduce."""

import numpy as np

from profdb.modelled.network import shares
from profdb.modelled.network.bus import bus_rate, ll_cap
from profdb.modelled.network.links import (
    Shape,
    hop_seconds,
    outer_hop_seconds,
    outside_server,
)
from profdb.modelled.network.nccl_constants import (
    TREE_BASE_S,
    TREE_CORRECTION,
    TREE_LL128_SHARE,
    TREE_LL_SHARE,
    TREE_SHARE,
    Protocol,
)
from spec.arrays import FloatArray
from spec.cluster.cluster import ClusterSpec
from spec.collectives import Collective


def tree_seconds(cluster: ClusterSpec, kind: Collective, size: FloatArray, shape: Shape) -> FloatArray:
    """The fastest protocol."""
    times = [_with_protocol(cluster, size, shape, protocol) for protocol in Protocol]
    return np.asarray(np.minimum.reduce(times), dtype=np.float64)


def _with_protocol(cluster: ClusterSpec, size: FloatArray, shape: Shape, protocol: Protocol) -> FloatArray:
    """NCCL tree.cc: down and up a chain inside the domain and a double binary tree across domains."""
    rate = bus_rate(cluster, shape) * TREE_SHARE
    if protocol is Protocol.LL:
        rate = np.minimum(rate * TREE_LL_SHARE, ll_cap(cluster, shape))
    elif protocol is Protocol.LL128:
        rate = rate * np.where(~outside_server(cluster, shape), TREE_LL128_SHARE[0], TREE_LL128_SHARE[1])
    column = np.clip(np.log2(np.maximum(size / 64.0, 1.0)).astype(np.int64), 0, 23)
    rate = 0.5 * rate * shares.LONG_SHARE * TREE_CORRECTION[protocol][column]
    inner = hop_seconds(cluster.domains[0], protocol, tree=True)
    outer = outer_hop_seconds(cluster, shape, protocol, tree=True)
    depth = np.ceil(np.log2(np.maximum(shape.inter, 1)))
    latency = TREE_BASE_S[protocol] + 2.0 * ((shape.intra - 1.0) * inner + depth * outer)
    return np.asarray(latency + size / rate, dtype=np.float64)
