"""PAT: all_gather and reduce_scatter over one rank per node."""

import numpy as np

from profdb.modelled.network.bus import bus_rate, long_share
from profdb.modelled.network.links import (
    Shape,
    outside_server,
    start_seconds,
)
from profdb.modelled.network.nccl_constants import (
    PAT_BASE_S,
    PAT_NET_HOP_S,
    PAT_RANK_S,
    PAT_RATE,
)
from spec.arrays import FloatArray
from spec.cluster.cluster import ClusterSpec
from spec.collectives import Collective


def pat_seconds(cluster: ClusterSpec, kind: Collective, size: FloatArray, shape: Shape) -> FloatArray:
    """NCCL pat.cc: all_gather and reduce_scatter over one rank per node, logarithmic in hops."""
    ranks = np.maximum(shape.ranks, 1.0)
    depth = np.ceil(np.log2(ranks))
    latency = PAT_BASE_S + start_seconds(cluster, shape) + depth * PAT_NET_HOP_S + ranks * PAT_RANK_S
    seconds = latency + size / (bus_rate(cluster, shape) * PAT_RATE * long_share(cluster, shape))
    return np.where((shape.intra == 1) & outside_server(cluster, shape), seconds, np.inf)
