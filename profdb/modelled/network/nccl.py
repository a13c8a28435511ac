"""Collectives as NCCL chooses and times them: ring, tree, NVLS and PAT; the fastest counts.

A group of one rank costs nothing. ``size_bytes`` is the whole array on one rank (spec.collectives).

Source: NVIDIA/nccl, src/graph/tuning.cc (2.27) and src/tuning/cost_model.cc, ring.cc, tree.cc, nvls.cc, pat.cc (2.30),
``ncclTunerConstantsDefaults``. Latencies there are microseconds and rates GB/s; here seconds and bytes/s.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from profdb.modelled.network import links
from profdb.modelled.network.links import (
    CommGroup,
    Protocol,
    bus_rate,
    link_latency_s,
    ll_cap,
    long_share,
    network_rate,
    outer_latency_s,
    outside_server,
    own_latency_s,
    scale_up_rate,
    start_seconds,
)
from spec.arrays import FloatArray
from spec.cluster.cluster import ClusterSpec
from spec.collectives import Collective

RELATIVE_STD = 0.2  # Fitted: residuals of the timings to which the shares of links were fitted

REDUCED = (Collective.ALL_REDUCE,)
GATHERED = (Collective.ALL_GATHER, Collective.REDUCE_SCATTER)
COPIED = (Collective.BROADCAST,)

# baseLatencies (Tree and Ring rows): the cost of a launch before the first hop.
RING_BASE_S = (6.6e-6, 14.0e-6, 8.4e-6)
TREE_BASE_S = (6.8e-6, 14.0e-6, 8.4e-6)

# hwLatencies of NVLS and NVLSTree (the latter's row of the network), and PAT's terms of pat.cc: base, a hop over the
# network, a term per rank, and its share of the bus rate.
NVLS_LATENCY_S = 25.0e-6
NVLS_TREE_NET_LATENCY_S = 20.9e-6
PAT_BASE_S = 8.0e-6
PAT_NET_LATENCY_S = 14.0e-6 / 3.5
PAT_RANK_S = 2.8e-6
PAT_RATE = 0.75

# getNetOverhead: posting one network step from an Intel host; Simple posts three times.
NET_OVERHEAD_S = (1.0e-6, 1.0e-6, 3.0e-6)

# Share of the rate that carries data: LL half; LL128 120 of 128 bytes, which ring.cc takes as 0.92.
RING_LL_SHARE = 0.5
RING_LL128_SHARE = 0.92
TREE_SHARE = 0.92
TREE_LL_SHARE = 1.0 / 3.8
TREE_LL128_SHARE = (7.0 / 9.0, 120.0 / 128.0)  # within one server, between servers

# enqueue.cc, calcCollChunking: 128 KiB are a rank's part of a loop of a channel of NVLS, and less where so many loops
# are not filled.
NVLS_CHUNK_BYTES = 128 * 2**10
NVLS_SMALLER_CHUNKS = ((64.0, 64 * 2**10), (8.0, 32 * 2**10), (2.0, 16 * 2**10))

# Ranks of one domain that NVLS serves in all_gather and reduce_scatter.
NVLS_MAX_RANKS = 32

# Between nodes LL128 needs GPUs and NICs below one PCIe switch (tuning.cc, ``typeInter``); published runs
# between nodes follow Simple from 2 MiB on.
LL128_MAX_BYTES = 2 * 2**20

# "Plateau effect of ring": its condition in bytes per channel and rank; 16 channels (Assumption: what
# DGX-class systems use).
PLATEAU_BYTES = 64 * 16

# treeCorrectionFactor[protocol][log2(bytes / 64)], rows LL, LL128, Simple, columns 64 bytes to 512 MiB; the column of
# ones added below is for larger sizes.
_TREE_CORRECTION_ROWS = (
    "1 1 1 1 .9 .8 .7 .7 .7 .7 .6 .5 .4 .4 .5 .6 .7 .8 .9 1 1 1 1 1",
    "1 1 1 1 1 .9 .8 .8 .8 .7 .6 .6 .6 .6 .6 .6 .8 .9 .9 .9 .9 1 1 1",
    ".9 .9 .9 .9 .9 .9 .9 .8 .7 .6 .6 .5 .5 .5 .5 .6 .7 .8 .7 .7 .8 .9 .9 .9",
)
TREE_CORRECTION: FloatArray = np.array([f"{row} 1".split() for row in _TREE_CORRECTION_ROWS], dtype=np.float64)


def ring_seconds(cluster: ClusterSpec, kind: Collective, size: FloatArray, group: CommGroup) -> FloatArray:
    """Returns the time of the ring with its fastest protocol; processes that share a host's memory have only Simple."""
    protocols = (Protocol.SIMPLE,) if cluster.domains[0].link == "memory" else tuple(Protocol)
    times = [_ring_with(cluster, kind, size, group, protocol) for protocol in protocols]
    return np.asarray(np.minimum.reduce(times), dtype=np.float64)


def ring_steps(kind: Collective, ranks: FloatArray) -> FloatArray:
    """Returns the steps of the ring: 2(n-1), n-1, or n for broadcast (NCCL ncclTuningGetNsteps)."""
    if kind is Collective.ALL_REDUCE:
        return 2.0 * (ranks - 1.0)
    if kind is Collective.BROADCAST:
        return ranks
    return ranks - 1.0


def ring_rate(cluster: ClusterSpec, group: CommGroup, protocol: Protocol) -> FloatArray:
    """Returns the payload bytes/s of the ring under a protocol."""
    bus = bus_rate(cluster, group)
    if protocol is Protocol.SIMPLE:
        return bus * long_share(cluster, group)
    if protocol is Protocol.LL128:
        return bus * RING_LL128_SHARE
    return np.asarray(np.minimum(bus * RING_LL_SHARE, ll_cap(cluster, group)), dtype=np.float64)


def ring_latency(cluster: ClusterSpec, kind: Collective, group: CommGroup, protocol: Protocol) -> FloatArray:
    """Returns the base latency plus one hop latency per step.

    A turn around the ring has ``inter`` links between domains, and the last chunk to arrive has passed all of them
    (NCCL counts one fewer; aws-ofi-nccl's tuner, src/tuner/nccl_ofi_model.cpp, has 2 inter for all_reduce, as here).
    """
    steps = ring_steps(kind, group.ranks)
    # all_reduce turns twice: reduce-scatter, then all-gather. ``crossing`` counts the steps between domains,
    # nInterSteps of tuning.cc.
    rounds = 2.0 if kind is Collective.ALL_REDUCE else 1.0
    crossing = np.where(group.inter > 1, np.minimum(rounds * group.inter, steps), 0.0)
    inner = np.full(group.inter.shape, link_latency_s(cluster.domains[0], protocol))
    # A ring between nodes posts to the network in every step, so a step inside a node takes at least netOverhead.
    inner = np.where(outside_server(cluster, group), np.maximum(inner, NET_OVERHEAD_S[protocol]), inner)
    outer = outer_latency_s(cluster, group, protocol)
    base = 0.0 if cluster.domains[0].link == "memory" else RING_BASE_S[protocol]
    start = base + start_seconds(cluster, group)
    return np.asarray(start + (steps - crossing) * inner + crossing * outer, dtype=np.float64)


def _ring_with(
    cluster: ClusterSpec, kind: Collective, size: FloatArray, group: CommGroup, protocol: Protocol
) -> FloatArray:
    ranks = np.maximum(group.ranks, 1.0)
    steps = ring_steps(kind, ranks)
    latency = ring_latency(cluster, kind, group, protocol)
    nccl = cluster.gpu.architecture.nccl
    # The plateau of a ring under Simple: from a message size on its latency is longer by a factor, for all_reduce
    # between servers and, on some architectures, for gathers within one.
    if protocol is Protocol.SIMPLE and nccl and cluster.domains[0].link != "memory":
        across = outside_server(cluster, group)
        gathered = nccl.gathers_plateau and kind in GATHERED
        plateaus = across if kind is Collective.ALL_REDUCE else ~across & gathered
        latency = np.where(plateaus & (size >= PLATEAU_BYTES * ranks), latency * nccl.ring_plateau, latency)
    rate = ring_rate(cluster, group, protocol)
    if protocol is Protocol.LL128:
        # Infinite: another protocol is used there.
        latency = np.where(outside_server(cluster, group) & (size >= LL128_MAX_BYTES), np.inf, latency)
    # Each step moves one chunk, a part 1/n of the buffer; the rank's own chunk is copied besides.
    seconds = latency + size / ranks * (steps / rate + own_chunk(cluster, group, rate))
    return np.asarray(seconds, dtype=np.float64)


def own_chunk(cluster: ClusterSpec, group: CommGroup, ring: FloatArray) -> FloatArray:
    """Returns seconds per byte of a rank's own chunk.

    It is copied inside the GPU: ``OWN_CHUNK`` of a step over NVLink, as measured, also when steps cross nodes; behind
    a slower link (Assumption) one read and one write at the HBM rate.
    """
    link = cluster.domains[0].link
    if link in ("nvlink", "mesh"):
        return np.where(group.inter > 1, links.OWN_CHUNK / scale_up_rate(cluster, group.intra), links.OWN_CHUNK / ring)
    if link == "memory":
        return links.OWN_CHUNK / ring
    return np.full(ring.shape, 2.0 / cluster.gpu.memory_bandwidth)


def tree_seconds(cluster: ClusterSpec, kind: Collective, size: FloatArray, group: CommGroup) -> FloatArray:
    """Returns the time of the tree with its fastest protocol."""
    times = [_tree_with(cluster, size, group, protocol) for protocol in Protocol]
    return np.asarray(np.minimum.reduce(times), dtype=np.float64)


def _tree_with(cluster: ClusterSpec, size: FloatArray, group: CommGroup, protocol: Protocol) -> FloatArray:
    """Returns the time of NCCL's tree (tree.cc): down and up a chain inside the domain and a double binary tree
    across domains.

    Each rank forwards the buffer twice. Between domains a node is a leaf of one tree and an inner node of the other,
    so twice the buffer leaves it as well. With two nodes each is the other's only child, so half of the buffer goes
    up and half comes down.
    """
    inside = np.where(group.intra > 1, scale_up_rate(cluster, group.intra), np.inf)
    # Two nodes send half as much each, which the model writes as twice the rate.
    outside = network_rate(cluster, group) * np.where(group.inter == 2, 2.0, 1.0)
    rate = np.minimum(inside, outside) * TREE_SHARE
    if protocol is Protocol.LL:
        rate = np.minimum(rate * TREE_LL_SHARE, ll_cap(cluster, group))
    elif protocol is Protocol.LL128:
        rate = rate * np.where(~outside_server(cluster, group), TREE_LL128_SHARE[0], TREE_LL128_SHARE[1])
    # 0.5: the whole buffer passes twice, up and down.
    rate = 0.5 * rate * long_share(cluster, group) * tree_correction(protocol, size)
    inner = link_latency_s(cluster.domains[0], protocol, tree=True)
    outer = outer_latency_s(cluster, group, protocol, tree=True)
    depth = np.ceil(np.log2(np.maximum(group.inter, 1)))
    latency = (
        # Up and down the chain of a node's ranks and the tree of nodes, one hop per rank and per level.
        TREE_BASE_S[protocol] + start_seconds(cluster, group) + 2.0 * ((group.intra - 1.0) * inner + depth * outer)
    )
    if protocol is Protocol.LL128:
        latency = np.where(outside_server(cluster, group) & (size >= LL128_MAX_BYTES), np.inf, latency)
    return np.asarray(latency + size / rate, dtype=np.float64)


def tree_correction(protocol: Protocol, size_bytes: FloatArray) -> FloatArray:
    """Returns the share of the rate that trees reach at a size; their pipelines fill slowly."""
    column = np.log2(np.maximum(size_bytes / 64.0, 1.0)).astype(np.int64)
    return np.asarray(TREE_CORRECTION[protocol][np.minimum(column, TREE_CORRECTION.shape[1] - 1)])


def nvls_seconds(cluster: ClusterSpec, kind: Collective, size: FloatArray, group: CommGroup) -> FloatArray:
    """Returns the time of NVLS (nvls.cc), in which the switch reduces and copies; infinite where it does not exist.
    Across domains only all_reduce has it (NVLSTree).

    In an all_reduce each rank's links carry its whole buffer to the switch and its part of the sum back, and the same
    in the other direction: 1 + 1/n of the buffer each way. A loop of all channels is scattered, reduced and gathered
    (device/all_reduce.h), each beside those of the loops around it, so the first two loops' time comes on top; of
    all_gather and reduce_scatter, which have two such stages, one.
    """
    ranks = np.maximum(group.ranks, 1.0)
    nccl = cluster.gpu.architecture.nccl
    if nccl is None or nccl.nvls_share == 0.0:
        return np.full(size.shape, np.inf)
    link = scale_up_rate(cluster, group.intra) * nccl.nvls_share * links.NVLS_SHARE
    loop = np.where(group.inter == 1, nvls_loop_bytes(size, nccl.nvls_channels * ranks), 0.0)
    if kind is not Collective.ALL_REDUCE:
        # Gathers: the switch copies or reduces the n - 1 parts of the others.
        usable = (group.inter == 1) & (group.intra <= NVLS_MAX_RANKS)
        return np.where(usable, NVLS_LATENCY_S + (size + loop) * (ranks - 1.0) / ranks / link, np.inf)
    outside = np.where(group.inter > 1, network_rate(cluster, group) * links.LONG_SHARE, np.inf)
    # A tree between nodes, as in ``_tree_with``: with two nodes half of the buffer crosses each way.
    outside = outside * np.where(group.inter == 2, 2.0, 1.0)
    outside = outside * tree_correction(Protocol.SIMPLE, size)
    depth = np.ceil(np.log2(np.maximum(group.inter, 1)))
    net_latency = NVLS_TREE_NET_LATENCY_S + own_latency_s(cluster.domains[-1], Protocol.SIMPLE)
    start = np.where(group.inter > 1, links.NVLS_TREE_START_S, 0.0)
    latency = NVLS_LATENCY_S + start + 2.0 * depth * net_latency
    # Work inside the domain and between domains is pipelined: the slower of the two counts.
    inside_s = (size + 2.0 * loop) * (1.0 + 1.0 / group.intra) / link
    outside_s = size * 2.0 * (ranks - 1.0) / ranks / outside
    return np.where(group.intra > 1, latency + np.maximum(inside_s, outside_s), np.inf)


def nvls_loop_bytes(size: FloatArray, parts: FloatArray) -> FloatArray:
    """Returns the bytes of one loop of NVLS, cut in ``parts``: channels times ranks."""
    chunk = np.full(size.shape, float(NVLS_CHUNK_BYTES))
    for loops, smaller in NVLS_SMALLER_CHUNKS:
        chunk = np.where(size < loops * parts * chunk, np.minimum(chunk, smaller), chunk)
    return np.asarray(np.minimum(size, parts * chunk), dtype=np.float64)


def pat_seconds(cluster: ClusterSpec, kind: Collective, size: FloatArray, group: CommGroup) -> FloatArray:
    """Returns the time of PAT (pat.cc): all_gather and reduce_scatter over one rank per node, logarithmic in hops;
    infinite for other groups."""
    ranks = np.maximum(group.ranks, 1.0)
    depth = np.ceil(np.log2(ranks))
    latency = PAT_BASE_S + start_seconds(cluster, group) + depth * PAT_NET_LATENCY_S + ranks * PAT_RANK_S
    seconds = latency + size / (bus_rate(cluster, group) * PAT_RATE * long_share(cluster, group))
    return np.where((group.intra == 1) & outside_server(cluster, group), seconds, np.inf)


@dataclass(frozen=True, slots=True, kw_only=True)
class Algorithm:
    """One of NCCL's algorithms: the collectives it runs (``kinds``), their ``seconds`` (infinite for a group it
    cannot serve), and the clusters on which it ``exists``; arrays of one length."""

    kinds: tuple[Collective, ...]
    seconds: Callable[[ClusterSpec, Collective, FloatArray, CommGroup], FloatArray]
    exists: Callable[[ClusterSpec], bool]


def everywhere(cluster: ClusterSpec) -> bool:
    """Returns True: on every machine."""
    return True


def between_gpus(cluster: ClusterSpec) -> bool:
    """Returns whether ranks are GPUs with a link, not processes that share a host's memory."""
    return cluster.domains[0].link != "memory"


def in_the_switch(cluster: ClusterSpec) -> bool:
    """Returns whether the switch of the innermost domain reduces."""
    return cluster.domains[0].in_network_reduction


ALGORITHMS: tuple[Algorithm, ...] = (
    Algorithm(kinds=(*REDUCED, *GATHERED, *COPIED), seconds=ring_seconds, exists=everywhere),
    Algorithm(kinds=REDUCED, seconds=tree_seconds, exists=between_gpus),
    Algorithm(kinds=(*REDUCED, *GATHERED), seconds=nvls_seconds, exists=in_the_switch),
    Algorithm(kinds=GATHERED, seconds=pat_seconds, exists=between_gpus),
)


def collective_seconds(cluster: ClusterSpec, kind: Collective, size_bytes: FloatArray, group: CommGroup) -> FloatArray:
    """Returns the time of all_reduce, all_gather, reduce_scatter or broadcast with the fastest algorithm; arrays of
    one length."""
    size = np.asarray(size_bytes, dtype=np.float64)
    best = np.full(size.shape, np.inf)
    for one in ALGORITHMS:
        if kind in one.kinds and one.exists(cluster):
            best = np.minimum(best, one.seconds(cluster, kind, size, group))
    return np.where((group.ranks <= 1.0) | (size == 0.0), 0.0, best)
