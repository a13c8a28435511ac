"""Rates and hop latencies of a cluster's links for a group of ranks.

Inside a scale-up domain each GPU owns its links, so sibling groups do not slow each other. The links out
of a domain (the NICs of a node, the link between two processors) are shared: a group has those of its
own ranks, at least one, and never more than an equal part of the domain's.

Constants are NCCL's: NVIDIA/nccl, src/graph/tuning.cc (2.27) and src/graph/topo.h; latencies there are microseconds and
rates GB/s, here seconds and bytes/s. Those by architecture are in configs/architectures.
"""

from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np

from spec.arrays import BoolArray, FloatArray, IntArray
from spec.cluster.cluster import ClusterSpec, NetworkDomain
from spec.errors import ConfigError

# Constants that NCCL's tuning model lacks but a time needs, shared by every GPU. Other files read them as
# ``links.LONG_SHARE``, so that a fit may replace them.

# Fitted: to nccl-tests timings of A100, H100, H200 and B200 nodes together (aiconfigurator's NCCL tables).
LONG_SHARE = 0.93  # of NCCL's link rate, by Ring/Simple on long messages
OWN_CHUNK = 0.45  # cost of a rank's own chunk (copied, not sent) in steps of a ring over NVLink
NVLS_SHARE = 0.95  # of NCCL's NVLS rate, by long messages

# Fitted: to published nccl-tests runs of 2 to 32 nodes over InfiniBand, RoCE, EFA and TCPXO (benchmarks/multinode_accuracy.py).
NETWORK_START_S = 18e-6  # of a collective before its first hop between nodes: proxy threads wake and post
NVLS_TREE_START_S = 150e-6  # of NVLSTree between nodes: its chunks fill before the network runs

# Fitted: share of a NIC's rate that one send reaches. Vidur's h100_dgx send_recv tends to 36 of 50 GB/s between nodes.
NIC_STREAM_SHARE = 0.73
# Fitted: share of a NIC's payload that collectives of one rank a node reach. The mean of three sources is 0.85 of the line:
# mscclpp's NDmv4 page 0.69 (all-gather 0.63, all-reduce 0.75), NVIDIA/nccl-tests issue 232 0.95, a guide to a
# pair of DGX Spark 0.92.
ONE_RANK_SHARE = 0.87
# Fitted: line rate lost per doubling of nodes beyond two (the slowest of more paths counts), the mean of eight
# sources of 16 nodes and more. A reduce-scatter series loses 0.05 (NVIDIA/nccl issue 1229), all-reduce and
# all-to-all over EFA 0.03 and 0.02, the other five all-reduces and all-gathers nothing beyond latency.
RATE_LOSS = 0.0125

# Payload over line rate of a 200 or 400 Gb/s NIC. Source: 4096-byte packets carry about 70 bytes of
# InfiniBand or RoCE headers (InfiniBand Architecture Specification vol. 1, sections 5.2 and 9.2).
NIC_EFFICIENCY = 4096.0 / (4096.0 + 70.0)

# Payload rate over raw rate of a link: PCI_BW = 12 GB/s of a gen3 x16 slot's 16.
PCIE_EFFICIENCY = 12.0 / 16.0
# The same through the processor's memory (NCCL's SHM), every GPU sending and receiving: 10.2 GB/s each way of
# A40 (NVIDIA/nccl-tests issue 74, bidirectional copies with P2P disabled: 19.1 to 21.2 both ways) and 15 of
# RTX 4090 (NVIDIA/nccl issue 814: 30), both of gen4 x16's 32. Assumption: NCCL's kernels reach what these
# copies do, and hops take as long as between peers.
HOST_MEMORY_EFFICIENCY = (10.2 + 15.0) / 2.0 / 32.0

# llMaxBws, columns of 2 and of 4 or more nodes: they follow the host CPU, the Intel row.
LL_MAX_RATE_NODES = (39.0e9, 20.4e9)

NOWHERE = np.zeros(1, dtype=np.int64)


class Protocol(IntEnum):
    """LL: flag in every 8 bytes; LL128: flag in every 128 bytes; Simple: whole chunks."""

    LL = 0
    LL128 = 1
    SIMPLE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkLatency:
    """Seconds of one hop by protocol (LL, LL128, Simple), for the ring and the tree."""

    ring: tuple[float, float, float]
    tree: tuple[float, float, float]


# hwLatencies.
NVLINK_LATENCY = LinkLatency(ring=(0.6e-6, 1.9e-6, 3.4e-6), tree=(0.6e-6, 1.25e-6, 4.0e-6))
PCIE_LATENCY = LinkLatency(ring=(1.0e-6, 2.5e-6, 5.7e-6), tree=(1.0e-6, 1.9e-6, 4.0e-6))
LINK_LATENCIES: dict[str, LinkLatency] = {
    "nvlink": NVLINK_LATENCY,
    # RCCL's table calls AMD's mesh NVLINK too; HCCL's is not published.
    "mesh": NVLINK_LATENCY,
    "pcie": PCIE_LATENCY,
    # NCCL has no row for two processors of one server: a hop between them goes over PCIe.
    "socket": PCIE_LATENCY,
    "network": LinkLatency(ring=(2.7e-6, 4.0e-6, 14.0e-6), tree=(5.0e-6, 8.5e-6, 14.0e-6)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CommGroup:
    """A group of ranks: ``intra`` ranks in each of ``inter`` scale-up domains, ``siblings`` such groups per domain at
    once. On clusters of three domains also ``outer_intra`` ranks and ``outer_siblings`` groups in a second domain (0:
    not given, as many as lie side by side). 1-D int64 arrays of one length."""

    intra: IntArray
    inter: IntArray
    siblings: IntArray
    outer_intra: IntArray = field(default_factory=lambda: NOWHERE)
    outer_siblings: IntArray = field(default_factory=lambda: NOWHERE)

    @property
    def ranks(self) -> FloatArray:
        """Returns the number of ranks of the group."""
        return np.asarray(self.intra * self.inter, dtype=np.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Uplink:
    """The links out of one level of domains: their kind, the group's ranks in one domain of the level (``members``)
    and of the next larger (``reached``), and how many groups share them."""

    domain: NetworkDomain
    inner_ranks: int
    links: float
    members: IntArray
    reached: FloatArray
    siblings: IntArray

    @property
    def crossed(self) -> BoolArray:
        """Returns which groups have ranks on both sides."""
        return np.asarray(self.reached > self.members, dtype=np.bool_)

    @property
    def rate(self) -> FloatArray:
        """Returns the payload bytes/s that one group sends over the uplink, one way; infinite where it does not cross
        it.

        NIC rates are line rates; NCCL's figures for the links between processors are payload rates. Between more than
        two nodes the slowest of more paths counts (``RATE_LOSS``).
        """
        per_gpu = self.domain.bandwidth
        # A domain with fewer NICs than GPUs: a single rank still has a whole NIC, if no other group uses it.
        one_link = per_gpu * self.inner_ranks / min(self.links, self.inner_ranks)
        own_rate = np.maximum(per_gpu * self.members, one_link)
        # An equal part of the domain's links, if all siblings send at once.
        equal_part = per_gpu * self.inner_ranks / np.maximum(self.siblings, 1)
        rate = np.minimum(own_rate, equal_part)
        if self.domain.link != "socket":
            doublings = np.maximum(np.log2(np.maximum(self.reached / np.maximum(self.members, 1), 1.0)) - 1.0, 0.0)
            rate = rate * (self.domain.payload_share or NIC_EFFICIENCY) / (1.0 + RATE_LOSS * doublings)
        return np.asarray(np.where(self.crossed, rate, np.inf), dtype=np.float64)


def uplinks(cluster: ClusterSpec, group: CommGroup) -> tuple[Uplink, ...]:
    """Returns the uplinks of every level of domains, innermost first. A group crosses a level's uplink if it has more
    ranks in the next larger domain: two ranks in two servers use no link between processors."""
    # Without ``outer_intra`` a group lies on neighbouring ranks, and the rest of the second domain is full of such
    # groups.
    side_by_side = np.minimum(group.ranks, float(cluster.middle_ranks or 1)).astype(np.int64)
    is_given = group.outer_intra > 0
    outer_intra = np.where(is_given, group.outer_intra, side_by_side)
    alone = np.maximum(cluster.middle_ranks // side_by_side, 1)
    outer_siblings = np.where(is_given, group.outer_siblings, alone)
    # Ranks and siblings in one domain of each level but the outermost, which has no way out.
    levels = [(group.intra, group.siblings), (outer_intra, outer_siblings)][: len(cluster.domains) - 1]
    reached = [*(members for members, _ in levels[1:]), group.ranks]
    result: list[Uplink] = []
    for level, (members, siblings) in enumerate(levels):
        inner, outer = cluster.domains[level : level + 2]
        # NICs of one inner domain: its part of the node's.
        nics = max(cluster.nics_per_node, 1) * inner.ranks / cluster.gpus_per_node
        result.append(
            Uplink(
                domain=outer,
                inner_ranks=inner.ranks,
                links=outer.links or (nics if outer is cluster.domains[-1] else inner.ranks),
                members=np.asarray(members, dtype=np.int64),
                reached=np.asarray(reached[level], dtype=np.float64),
                siblings=np.asarray(siblings, dtype=np.int64),
            )
        )
    return tuple(result)


def scale_up_rate(cluster: ClusterSpec, intra: IntArray) -> FloatArray:
    """Returns payload bytes/s per GPU, one way, for groups of ``intra`` ranks inside the scale-up domain. Behind a
    switch they have all of a GPU's links; in a mesh only those to each other. A ring has as many turns as its GPU with
    fewest links has of them."""
    domain = cluster.domains[0]
    if domain.link != "mesh":
        return np.full(intra.shape, _switched_rate(cluster, domain))
    links = np.array([domain.group_links(max(ranks, 2)) for ranks in range(domain.ranks + 1)], dtype=np.float64)
    share = links[np.minimum(intra, domain.ranks)] / links[-1]
    return np.asarray(domain.bandwidth * (domain.payload_share or 1.0) * share, dtype=np.float64)


def _switched_rate(cluster: ClusterSpec, domain: NetworkDomain) -> float:
    if domain.link == "nvlink":
        nccl = cluster.gpu.architecture.nccl
        if nccl is None:
            raise ConfigError(
                where=cluster.name,
                key="gpu.architecture",
                value=cluster.gpu.architecture.name,
                allowed="for an NVLink domain an architecture with an [nccl] table",
            )
        return domain.bandwidth * nccl.nvlink_share
    if domain.link == "pcie":
        return domain.bandwidth * (PCIE_EFFICIENCY if domain.peer_access else HOST_MEMORY_EFFICIENCY)
    return domain.bandwidth


def network_rate(cluster: ClusterSpec, group: CommGroup) -> FloatArray:
    """Returns the payload bytes/s that one group sends out of a domain, one way, over all its links together: that of
    the slowest uplink it crosses. Infinite for groups inside one domain."""
    rates = [uplink.rate for uplink in uplinks(cluster, group)]
    return np.asarray(np.minimum.reduce([np.full(group.intra.shape, np.inf), *rates]), dtype=np.float64)


def bus_rate(cluster: ClusterSpec, group: CommGroup) -> FloatArray:
    """Returns bytes/s around the ring: the slower of the links inside a domain and the group's NICs."""
    inside = np.where(group.intra > 1, scale_up_rate(cluster, group.intra), np.inf)
    outside = np.where(group.inter > 1, network_rate(cluster, group), np.inf)
    return np.asarray(np.minimum(inside, outside), dtype=np.float64)


def long_share(cluster: ClusterSpec, group: CommGroup) -> FloatArray:
    """Returns the share of the rate that long messages of a collective reach: less where a node has one rank."""
    alone = outside_server(cluster, group) & (group.intra == 1)
    return np.where(alone, ONE_RANK_SHARE, LONG_SHARE)


def ll_cap(cluster: ClusterSpec, group: CommGroup) -> FloatArray:
    """Returns NCCL's cap on the rate of LL: by architecture in one server, by node count beyond."""
    nccl = cluster.gpu.architecture.nccl
    alone = nccl.ll_max_rate if nccl else np.inf
    two, more = LL_MAX_RATE_NODES
    return np.where(~outside_server(cluster, group), alone, np.where(group.inter == 2, two, more))


def outside_server(cluster: ClusterSpec, group: CommGroup) -> BoolArray:
    """Returns whether a group sends over a network, and not only between the processors of a server."""
    crossed = [uplink.crossed for uplink in uplinks(cluster, group) if uplink.domain.link != "socket"]
    return np.asarray(np.any([np.zeros(group.intra.shape, dtype=np.bool_), *crossed], axis=0), dtype=np.bool_)


def outer_latency_s(cluster: ClusterSpec, group: CommGroup, protocol: Protocol, *, tree: bool = False) -> FloatArray:
    """Returns the latency of a hop over the outermost domain that a group reaches into; 0 inside one domain. With one
    rank per node no other step hides it: NCCL then uses the tree's figure (``interLat`` where ppn is 1)."""
    seconds = np.zeros(group.intra.shape)
    for uplink in uplinks(cluster, group):
        alone = link_latency_s(uplink.domain, protocol, tree=True)
        latency = np.where(group.intra == 1, alone, link_latency_s(uplink.domain, protocol, tree=tree))
        seconds = np.where(uplink.crossed, latency, seconds)
    return seconds


def link_latency_s(domain: NetworkDomain, protocol: Protocol, *, tree: bool = False) -> float:
    """Returns the latency of one hop over a domain.

    It is NCCL's figure for the kind of link and protocol, plus ``own_latency_s``. A domain in host memory has only
    its own latency.
    """
    if domain.link not in LINK_LATENCIES:
        return domain.latency_s
    latencies = LINK_LATENCIES[domain.link]
    return (latencies.tree if tree else latencies.ring)[protocol] + own_latency_s(domain, protocol)


def start_seconds(cluster: ClusterSpec, group: CommGroup) -> FloatArray:
    """Returns the time of a collective between servers before its first hop, beyond NCCL's base."""
    return np.where(outside_server(cluster, group), NETWORK_START_S, 0.0)


def own_latency_s(domain: NetworkDomain, protocol: Protocol) -> float:
    """Returns how much ``latency_s`` of the hardware spec exceeds NCCL's Ring/LL figure. NCCL adds a network's own
    ``latencyInter`` to each hop, and once more under Simple for the flush (``interLat`` in tuning.cc)."""
    own = (
        max(domain.latency_s - LINK_LATENCIES[domain.link].ring[Protocol.LL], 0.0)
        if domain.link in LINK_LATENCIES
        else 0.0
    )
    return own * (2.0 if protocol is Protocol.SIMPLE else 1.0)
