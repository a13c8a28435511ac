"""The rate around a group, and NCCL's cap on its low-latency protocol."""

import numpy as np

from profdb.modelled.network import shares
from profdb.modelled.network.links import (
    Shape,
    network_rate,
    outside_server,
    scale_up_rate,
)
from profdb.modelled.network.nccl_constants import (
    LL_MAX_RATE_NODES,
)
from spec.arrays import FloatArray
from spec.cluster.cluster import ClusterSpec


def bus_rate(cluster: ClusterSpec, shape: Shape) -> FloatArray:
    """Bytes/s around the ring: the slower of the links inside a domain and the group's NICs."""
    inside = np.where(shape.intra > 1, scale_up_rate(cluster, shape.intra), np.inf)
    outside = np.where(shape.inter > 1, network_rate(cluster, shape), np.inf)
    return np.asarray(np.minimum(inside, outside), dtype=np.float64)


def long_share(cluster: ClusterSpec, shape: Shape) -> FloatArray:
    """Share of the rate that long messages of a collective reach: less where a node holds one rank."""
    alone = outside_server(cluster, shape) & (shape.intra == 1)
    return np.where(alone, shares.ONE_RANK_SHARE, shares.LONG_SHARE)


def ll_cap(cluster: ClusterSpec, shape: Shape) -> FloatArray:
    """NCCL's cap on LL, by architecture in one server and by node count beyond."""
    nccl = cluster.gpu.architecture.nccl
    alone = nccl.ll_max_rate if nccl else np.inf
    two, more = LL_MAX_RATE_NODES
    return np.where(~outside_server(cluster, shape), alone, np.where(shape.inter == 2, two, more))
