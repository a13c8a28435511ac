"""Collectives by NCCL's tuning model: ring, tree, NVLS, each with its protocols, the fastest counts.

Ring steps, base and hop latencies, protocol shares and caps are NCCL's (profdb.modelled.network.nccl_constants).
Two things NCCL does not need for choosing, but a time does, are ``Fitted:`` to nccl-tests timings of
A100, H100, H200 and B200 nodes together (aiconfigurator's NCCL tables) and shared by every GPU: the
share of NCCL's link rate that long messages reach, and the cost of a rank's own chunk.

A group of one rank costs nothing. ``size_bytes`` is the whole array on one rank (spec.collectives).
"""

import numpy as np

from profdb.modelled.network.links import (
    Shape,
    hop_seconds,
    network_rate,
    outer_hop_seconds,
    outside_server,
    scale_up_rate,
)
from profdb.modelled.network.nccl_constants import (
    LL_MAX_RATE_NODES,
    NET_OVERHEAD_S,
    NVLS_HOP_S,
    NVLS_MAX_RANKS,
    NVLS_TREE_NET_HOP_S,
    PAT_BASE_S,
    PAT_NET_HOP_S,
    PAT_RANK_S,
    PAT_RATE,
    PLATEAU_BYTES,
    RING_BASE_S,
    RING_LL128_SHARE,
    RING_LL_SHARE,
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

RELATIVE_STD = 0.2  # Fitted: residuals of the same timings

LONG_SHARE = 0.93  # Fitted: share of NCCL's link rate that Ring/Simple reaches on long messages
OWN_CHUNK = 0.45  # Fitted: cost of a rank's own chunk (copied, not sent) in steps of a ring over NVLink
NVLS_SHARE = 0.9  # Fitted: share of NCCL's NVLS rate that long messages reach

REDUCED = (Collective.ALL_REDUCE,)
GATHERED = (Collective.ALL_GATHER, Collective.REDUCE_SCATTER)


def ring_tree_seconds(
    cluster: ClusterSpec, kind: Collective, size_bytes: FloatArray, shape: Shape
) -> FloatArray:
    """Seconds of all_reduce, all_gather, reduce_scatter or broadcast; arrays of one length."""
    size = np.asarray(size_bytes, dtype=np.float64)
    best = np.full(size.shape, np.inf)
    protocols = (Protocol.SIMPLE,) if cluster.domains[0].link == "memory" else tuple(Protocol)
    for protocol in protocols:
        best = np.minimum(best, _ring(cluster, kind, size, shape, protocol))
        if kind is Collective.ALL_REDUCE and cluster.domains[0].link != "memory":
            best = np.minimum(best, _tree(cluster, size, shape, protocol))
    if cluster.domains[0].in_network_reduction and kind in (*REDUCED, *GATHERED):
        best = np.minimum(best, _nvls(cluster, kind, size, shape))
    if kind in GATHERED and cluster.domains[0].link != "memory":
        best = np.minimum(best, _pat(cluster, size, shape))
    return np.where((shape.ranks <= 1.0) | (size == 0.0), 0.0, best)


def bus_rate(cluster: ClusterSpec, shape: Shape) -> FloatArray:
    """Bytes/s around the ring: the slower of the links inside a domain and the group's NICs."""
    inside = np.where(shape.intra > 1, scale_up_rate(cluster), np.inf)
    outside = np.where(shape.inter > 1, network_rate(cluster, shape), np.inf)
    return np.asarray(np.minimum(inside, outside), dtype=np.float64)


def ring_steps(kind: Collective, ranks: FloatArray) -> FloatArray:
    """Steps of the ring: 2(n-1), n-1, or n for broadcast (NCCL ncclTuningGetNsteps)."""
    if kind is Collective.ALL_REDUCE:
        return 2.0 * (ranks - 1.0)
    if kind is Collective.BROADCAST:
        return ranks
    return ranks - 1.0


def ring_rate(cluster: ClusterSpec, shape: Shape, protocol: Protocol) -> FloatArray:
    """Payload bytes/s of the ring under a protocol."""
    bus = bus_rate(cluster, shape)
    if protocol is Protocol.SIMPLE:
        return bus * LONG_SHARE
    if protocol is Protocol.LL128:
        return bus * RING_LL128_SHARE
    return np.asarray(np.minimum(bus * RING_LL_SHARE, ll_cap(cluster, shape)), dtype=np.float64)


def ll_cap(cluster: ClusterSpec, shape: Shape) -> FloatArray:
    """NCCL's cap on LL, by architecture in one server and by node count beyond."""
    nccl = cluster.gpu.architecture.nccl
    alone = nccl.ll_max_rate if nccl else np.inf
    two, more = LL_MAX_RATE_NODES
    return np.where(~outside_server(cluster, shape), alone, np.where(shape.inter == 2, two, more))


def ring_latency(cluster: ClusterSpec, kind: Collective, shape: Shape, protocol: Protocol) -> FloatArray:
    """Base plus one hop latency per step; ``inter - 1`` of a turn's steps cross the network."""
    steps = ring_steps(kind, shape.ranks)
    turns = 2.0 if kind is Collective.ALL_REDUCE else 1.0
    crossing = np.where(shape.intra > 1, turns * (shape.inter - 1.0), steps)
    crossing = np.where(shape.inter > 1, crossing, 0.0)
    inner = np.full(shape.inter.shape, hop_seconds(cluster.domains[0], protocol))
    inner = np.where(outside_server(cluster, shape), np.maximum(inner, NET_OVERHEAD_S[protocol]), inner)
    outer = outer_hop_seconds(cluster, shape, protocol)
    base = 0.0 if cluster.domains[0].link == "memory" else RING_BASE_S[protocol]
    return np.asarray(base + (steps - crossing) * inner + crossing * outer, dtype=np.float64)


def _ring(
    cluster: ClusterSpec, kind: Collective, size: FloatArray, shape: Shape, protocol: Protocol
) -> FloatArray:
    ranks = np.maximum(shape.ranks, 1.0)
    steps = ring_steps(kind, ranks)
    latency = ring_latency(cluster, kind, shape, protocol)
    nccl = cluster.gpu.architecture.nccl
    if protocol is Protocol.SIMPLE and nccl and cluster.domains[0].link != "memory":
        across = outside_server(cluster, shape)
        gathered = nccl.gathers_plateau and kind in GATHERED
        held = across if kind is Collective.ALL_REDUCE else ~across & gathered
        latency = np.where(held & (size >= PLATEAU_BYTES * ranks), latency * nccl.ring_plateau, latency)
    rate = ring_rate(cluster, shape, protocol)
    seconds = latency + size / ranks * (steps / rate + own_chunk(cluster, shape, rate))
    return np.asarray(seconds, dtype=np.float64)


def own_chunk(cluster: ClusterSpec, shape: Shape, ring: FloatArray) -> FloatArray:
    """Seconds per byte of a rank's own chunk.

    A copy inside the GPU: OWN_CHUNK of a step over NVLink, where it was seen, whatever the step takes
    between nodes; behind a slower link Assumption: read and written once at the HBM rate.
    """
    link = cluster.domains[0].link
    if link == "nvlink":
        return np.where(shape.inter > 1, OWN_CHUNK / scale_up_rate(cluster), OWN_CHUNK / ring)
    if link == "memory":
        return OWN_CHUNK / ring
    return np.full(ring.shape, 2.0 / cluster.gpu.memory_bandwidth)


def _tree(cluster: ClusterSpec, size: FloatArray, shape: Shape, protocol: Protocol) -> FloatArray:
    """NCCL tree.cc: down and up a chain inside the domain and a double binary tree across domains."""
    rate = bus_rate(cluster, shape) * TREE_SHARE
    if protocol is Protocol.LL:
        rate = np.minimum(rate * TREE_LL_SHARE, ll_cap(cluster, shape))
    elif protocol is Protocol.LL128:
        rate = rate * np.where(~outside_server(cluster, shape), TREE_LL128_SHARE[0], TREE_LL128_SHARE[1])
    column = np.clip(np.log2(np.maximum(size / 64.0, 1.0)).astype(np.int64), 0, 23)
    rate = 0.5 * rate * LONG_SHARE * TREE_CORRECTION[protocol][column]
    inner = hop_seconds(cluster.domains[0], protocol, tree=True)
    outer = outer_hop_seconds(cluster, shape, protocol, tree=True)
    depth = np.ceil(np.log2(np.maximum(shape.inter, 1)))
    latency = TREE_BASE_S[protocol] + 2.0 * ((shape.intra - 1.0) * inner + depth * outer)
    return np.asarray(latency + size / rate, dtype=np.float64)


def _nvls(cluster: ClusterSpec, kind: Collective, size: FloatArray, shape: Shape) -> FloatArray:
    """NCCL nvls.cc: the switch reduces and copies; across domains only all_reduce (NVLSTree).

    In an all_reduce each rank's links carry its whole buffer to the switch and its part of the sum back,
    and the same the other way round: 1 + 1/n of the buffer one way.
    """
    ranks = np.maximum(shape.ranks, 1.0)
    nccl = cluster.gpu.architecture.nccl
    if nccl is None or nccl.nvls_share == 0.0:
        return np.full(size.shape, np.inf)
    link = scale_up_rate(cluster) * nccl.nvls_share * NVLS_SHARE
    if kind is not Collective.ALL_REDUCE:
        usable = (shape.inter == 1) & (shape.intra <= NVLS_MAX_RANKS)
        return np.where(usable, NVLS_HOP_S + size * (ranks - 1.0) / ranks / link, np.inf)
    outside = np.where(shape.inter > 1, network_rate(cluster, shape) * LONG_SHARE, np.inf)
    outside = outside * np.where(shape.inter == 2, 2.0, 1.0)
    depth = np.ceil(np.log2(np.maximum(shape.inter, 1)))
    latency = NVLS_HOP_S + 2.0 * depth * NVLS_TREE_NET_HOP_S
    inside_s = size * (1.0 + 1.0 / shape.intra) / link
    outside_s = size * 2.0 * (ranks - 1.0) / ranks / outside
    return np.where(shape.intra > 1, latency + np.maximum(inside_s, outside_s), np.inf)


def _pat(cluster: ClusterSpec, size: FloatArray, shape: Shape) -> FloatArray:
    """NCCL pat.cc: all_gather and reduce_scatter over one rank per node, logarithmic in hops."""
    ranks = np.maximum(shape.ranks, 1.0)
    depth = np.ceil(np.log2(ranks))
    latency = PAT_BASE_S + depth * PAT_NET_HOP_S + ranks * PAT_RANK_S
    seconds = latency + size / (bus_rate(cluster, shape) * PAT_RATE * LONG_SHARE)
    return np.where((shape.intra == 1) & outside_server(cluster, shape), seconds, np.inf)
