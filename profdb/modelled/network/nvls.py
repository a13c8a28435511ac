"""NVLink SHARP: the switch reduces and copies."""

import numpy as np

from profdb.modelled.network import shares
from profdb.modelled.network.links import (
    Shape,
    network_rate,
    own_latency_s,
    scale_up_rate,
)
from profdb.modelled.network.nccl_constants import (
    NVLS_HOP_S,
    NVLS_MAX_RANKS,
    NVLS_TREE_NET_HOP_S,
    Protocol,
    tree_correction,
)
from spec.arrays import FloatArray
from spec.cluster.cluster import ClusterSpec
from spec.collectives import Collective


def nvls_seconds(cluster: ClusterSpec, kind: Collective, size: FloatArray, shape: Shape) -> FloatArray:
    """NCCL nvls.cc: the switch reduces and copies; across domains only all_reduce (NVLSTree).

    In an all_reduce each rank's links carry its whole buffer to the switch and its part of the sum back,
    and the same the other way round: 1 + 1/n of the buffer one way.
    """
    ranks = np.maximum(shape.ranks, 1.0)
    nccl = cluster.gpu.architecture.nccl
    if nccl is None or nccl.nvls_share == 0.0:
        return np.full(size.shape, np.inf)
    link = scale_up_rate(cluster, shape.intra) * nccl.nvls_share * shares.NVLS_SHARE
    if kind is not Collective.ALL_REDUCE:
        usable = (shape.inter == 1) & (shape.intra <= NVLS_MAX_RANKS)
        return np.where(usable, NVLS_HOP_S + size * (ranks - 1.0) / ranks / link, np.inf)
    outside = np.where(shape.inter > 1, network_rate(cluster, shape) * shares.LONG_SHARE, np.inf)
    outside = outside * np.where(shape.inter == 2, 2.0, 1.0)
    outside = outside * tree_correction(Protocol.SIMPLE, size)
    depth = np.ceil(np.log2(np.maximum(shape.inter, 1)))
    hop = NVLS_TREE_NET_HOP_S + own_latency_s(cluster.domains[-1], Protocol.SIMPLE)
    start = np.where(shape.inter > 1, shares.NVLS_TREE_START_S, 0.0)
    latency = NVLS_HOP_S + start + 2.0 * depth * hop
    inside_s = size * (1.0 + 1.0 / shape.intra) / link
    outside_s = size * 2.0 * (ranks - 1.0) / ranks / outside
    return np.where(shape.intra > 1, latency + np.maximum(inside_s, outside_s), np.inf)
