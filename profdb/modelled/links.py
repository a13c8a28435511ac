"""What a group of ranks gets from the links of a cluster: rates and hop latencies.

Inside a scale-up domain each GPU owns its links, so sibling groups do not slow each other. Across
domains the NICs are shared: a group gets the NICs of its own ranks, at least one, and never more
than an equal part of the domain's.
"""

from dataclasses import dataclass

import numpy as np

from profdb.modelled.nccl_constants import (
    HOPS,
    NVLINK_EFFICIENCY,
    PCIE_EFFICIENCY,
    Protocol,
)
from spec.arrays import FloatArray, IntArray
from spec.cluster import ClusterSpec, NetworkDomain
from spec.errors import ConfigError

# Payload over line rate of a 200 or 400 Gb/s NIC. Source: 4096-byte packets carry about 70 bytes of
# InfiniBand or RoCE headers (InfiniBand Architecture Specification vol. 1, sections 5.2 and 9.2).
NIC_EFFICIENCY = 4096.0 / (4096.0 + 70.0)

ZERO_HOPS = (0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A group: ``intra`` ranks in each of ``inter`` scale-up domains, ``siblings`` such groups per
    domain at once; 1-D int64 arrays of one length."""

    intra: IntArray
    inter: IntArray
    siblings: IntArray

    @property
    def ranks(self) -> FloatArray:
        """Members of the group."""
        return np.asarray(self.intra * self.inter, dtype=np.float64)


def scale_up_rate(cluster: ClusterSpec) -> float:
    """Payload bytes/s per GPU, one way, inside the scale-up domain."""
    domain = cluster.domains[0]
    if domain.link == "nvlink":
        if cluster.gpu.architecture not in NVLINK_EFFICIENCY:
            raise ConfigError(
                where=cluster.name,
                key="gpu.architecture",
                value=cluster.gpu.architecture,
                allowed=f"for an NVLink domain one of {', '.join(NVLINK_EFFICIENCY)}",
            )
        return domain.bandwidth * NVLINK_EFFICIENCY[cluster.gpu.architecture]
    if domain.link == "pcie":
        return domain.bandwidth * PCIE_EFFICIENCY
    return domain.bandwidth


def network_rate(cluster: ClusterSpec, shape: Shape) -> FloatArray:
    """Payload bytes/s that one group sends out of a domain, one way, all its NICs together.

    A group that reaches beyond an outer domain is held to the slowest domain on its way. Infinite for
    groups inside one domain.
    """
    domain_ranks = cluster.scale_up_ranks
    per_gpu = np.full(shape.intra.shape, np.inf)
    reach = 0
    for domain in cluster.domains[1:]:
        crosses = (shape.inter > 1) & (shape.inter * domain_ranks > reach)
        per_gpu = np.where(crosses, np.minimum(per_gpu, domain.bandwidth), per_gpu)
        reach = domain.ranks
    nics_per_gpu = max(cluster.nics_per_node, 1) / cluster.gpus_per_node
    one_nic = per_gpu / min(nics_per_gpu, 1.0)
    wanted = np.maximum(per_gpu * shape.intra, one_nic)
    part = per_gpu * domain_ranks / shape.siblings
    return np.asarray(np.minimum(wanted, part) * NIC_EFFICIENCY, dtype=np.float64)


def hop_seconds(domain: NetworkDomain, protocol: Protocol, *, tree: bool = False) -> float:
    """Latency of one hop over a domain.

    NCCL's figure for the kind of link and protocol, plus what the sheet's ``latency_s`` has over
    NCCL's Ring/LL figure (as NCCL adds a network's own ``latencyInter``). A domain in host memory has
    only its own latency.
    """
    if domain.link not in HOPS:
        return domain.latency_s
    hops = HOPS[domain.link]
    own = max(domain.latency_s - hops.ring[Protocol.LL], 0.0)
    return (hops.tree if tree else hops.ring)[protocol] + own
