"""NCCL's ring, for every collective.

Steps, base and hop latencies, protocol shares and caps are NCCL's (profdb.modelled.network.nccl_constants).
"""

import numpy as np

from profdb.modelled.network import shares
from profdb.modelled.network.bus import bus_rate, ll_cap, long_share
from profdb.modelled.network.links import (
    Shape,
    hop_seconds,
    outer_hop_seconds,
    outside_server,
    scale_up_rate,
    start_seconds,
)
from profdb.modelled.network.nccl_constants import (
    LL128_MAX_BYTES,
    NET_OVERHEAD_S,
    PLATEAU_BYTES,
    RING_BASE_S,
    RING_LL128_SHARE,
    RING_LL_SHARE,
    Protocol,
)
from spec.arrays import FloatArray
from spec.cluster.cluster import ClusterSpec
from spec.collectives import Collective

GATHERED = (Collective.ALL_GATHER, Collective.REDUCE_SCATTER)


def ring_seconds(cluster: ClusterSpec, kind: Collective, size: FloatArray, shape: Shape) -> FloatArray:
    """The fastest protocol; between processes of one server's memory only the plain one exists."""
    protocols = (Protocol.SIMPLE,) if cluster.domains[0].link == "memory" else tuple(Protocol)
    times = [_with_protocol(cluster, kind, size, shape, protocol) for protocol in protocols]
    return np.asarray(np.minimum.reduce(times), dtype=np.float64)


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
        return bus * long_share(cluster, shape)
    if protocol is Protocol.LL128:
        return bus * RING_LL128_SHARE
    return np.asarray(np.minimum(bus * RING_LL_SHARE, ll_cap(cluster, shape)), dtype=np.float64)


def ring_latency(cluster: ClusterSpec, kind: Collective, shape: Shape, protocol: Protocol) -> FloatArray:
    """Base plus one hop latency per step.

    A turn has ``inter`` links between domains, and the last chunk to arrive has passed them all (NCCL counts
    one fewer; aws-ofi-nccl's tuner, src/tuner/nccl_ofi_model.cpp, takes 2 inter for all_reduce, as here).
    """
    steps = ring_steps(kind, shape.ranks)
    turns = 2.0 if kind is Collective.ALL_REDUCE else 1.0
    crossing = np.where(shape.inter > 1, np.minimum(turns * shape.inter, steps), 0.0)
    inner = np.full(shape.inter.shape, hop_seconds(cluster.domains[0], protocol))
    inner = np.where(outside_server(cluster, shape), np.maximum(inner, NET_OVERHEAD_S[protocol]), inner)
    outer = outer_hop_seconds(cluster, shape, protocol)
    base = 0.0 if cluster.domains[0].link == "memory" else RING_BASE_S[protocol]
    start = base + start_seconds(cluster, shape)
    return np.asarray(start + (steps - crossing) * inner + crossing * outer, dtype=np.float64)


def _with_protocol(
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
    if protocol is Protocol.LL128:
        latency = np.where(outside_server(cluster, shape) & (size >= LL128_MAX_BYTES), np.inf, latency)
    seconds = latency + size / ranks * (steps / rate + own_chunk(cluster, shape, rate))
    return np.asarray(seconds, dtype=np.float64)


def own_chunk(cluster: ClusterSpec, shape: Shape, ring: FloatArray) -> FloatArray:
    """Seconds per byte of a rank's own chunk.

    A copy inside the GPU: shares.OWN_CHUNK of a step over NVLink, where it was seen, whatever the step takes
    between nodes; behind a slower link Assumption: read and written once at the HBM rate.
    """
    link = cluster.domains[0].link
    if link in ("nvlink", "mesh"):
        return np.where(
            shape.inter > 1, shares.OWN_CHUNK / scale_up_rate(cluster, shape.intra), shares.OWN_CHUNK / ring
        )
    if link == "memory":
        return shares.OWN_CHUNK / ring
    return np.full(ring.shape, 2.0 / cluster.gpu.memory_bandwidth)
