"""A cluster whose network is a topology file's: sizes and bandwidths from the file, the rest from a hardware spec."""

import json
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from spec.arrays import FloatArray
from spec.cluster.cluster import ClusterSpec, NetworkDomain
from spec.cluster.reader import CLUSTER_FOLDER, cluster_names, read_cluster
from spec.errors import ConfigError
from spec.files import atomic_file
from workload.diagnostics import WorkloadError
from workload.topology.topology import Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class TopologyShape:
    """Rates that a topology offers one GPU, one way, in bytes/s.

    ``server`` inside a server or rack, ``scale_up`` among the ``scale_up_ranks`` GPUs that NV switches
    join (less than ``server`` where racks are joined by fewer cables), ``scale_out`` over the other
    switches (0: there are none).
    """

    scale_up_ranks: int
    server: float
    scale_up: float
    scale_out: float


def topology_shape(topology: Topology) -> TopologyShape:
    """Sizes and bandwidths of ``topology``. Every GPU is taken for the worst connected one.

    Raises WorkloadError when NV switches join unequal sets of GPUs or less than a server, and when a GPU
    has no way to the others.
    """
    nv_end = topology.num_gpus + topology.num_nv_switches
    ranks = _scale_up_ranks(topology, nv_end)
    gpu_nv, gpu_out = np.zeros(topology.num_gpus), np.zeros(topology.num_gpus)
    rack_out = np.zeros(topology.num_gpus // topology.gpus_per_server)
    rack_of: dict[int, int] = {}
    for link in topology.links:
        low, high = min(link.src, link.dst), max(link.src, link.dst)
        width = link.wire.bytes_per_s
        if low < topology.num_gpus:
            (gpu_nv if high < nv_end else gpu_out)[low] += width
            if high < nv_end:
                rack_of[high] = low // topology.gpus_per_server
    for link in topology.links:
        ends = [node for node in (link.src, link.dst) if node in rack_of]
        if min(link.src, link.dst) >= topology.num_gpus and max(link.src, link.dst) < nv_end:
            for node in ends:
                rack_out[rack_of[node]] += link.wire.bytes_per_s
    server = float(gpu_nv.min())
    crowded = ranks > topology.gpus_per_server
    across = float(rack_out.min()) / topology.gpus_per_server if crowded else server
    out = float(gpu_out.min()) * _uplink_share(topology, nv_end)
    if ranks < topology.num_gpus and out == 0:
        raise WorkloadError(f"{topology.file_name}: some GPUs have no way to the others")
    return TopologyShape(scale_up_ranks=ranks, server=server, scale_up=min(server, across), scale_out=out)


def cluster_with_topology(cluster: ClusterSpec, topology: Topology) -> ClusterSpec:
    """``cluster`` with the servers, sizes and bandwidths of ``topology``.

    Latencies and in-network reduction stay the sheet's: those of the file are of the wire alone. Raises
    WorkloadError when the file names another GPU than the sheet.
    """
    if topology.gpu_type.upper() not in cluster.gpu.name.upper().replace("_", "-").split("-"):
        raise WorkloadError(
            f"{topology.file_name}: is made of {topology.gpu_type}, the cluster {cluster.name} of {cluster.gpu.name}"
        )
    shape = topology_shape(topology)
    inner, outer = cluster.domains[0], cluster.domains[-1]
    domains: list[NetworkDomain] = []
    if shape.scale_up_ranks > topology.gpus_per_server and shape.scale_up < shape.server:
        domains.append(replace(inner, name="rack", ranks=topology.gpus_per_server, bandwidth=shape.server))
    domains.append(replace(inner, ranks=shape.scale_up_ranks, bandwidth=shape.scale_up))
    named = [f"domains.{domain.name}" for domain in domains]
    if shape.scale_out:
        domains.append(replace(outer, bandwidth=shape.scale_out))
        named.append(f"domains.{outer.name}")
    elif len(domains) == 1:
        # No rank lies outside the NV switches (max_nodes), but a cluster's last domain reaches every node.
        domains.append(outer)
    domains[-1] = replace(domains[-1], ranks=0)
    source = f"topology file {topology.file_name}"
    return replace(
        cluster,
        name=f"{cluster.name} on {topology.file_name}",
        gpus_per_node=topology.gpus_per_server,
        domains=tuple(domains),
        nics_per_node=topology.gpus_per_server if shape.scale_out else cluster.nics_per_node,
        max_nodes=topology.num_gpus // topology.gpus_per_server,
        sources={**cluster.sources, **{f"domains.{domain.name}": source for domain in domains}, "node": source},
    )


def _scale_up_ranks(topology: Topology, nv_end: int) -> int:
    """GPUs of one set that NV switches join."""
    parent = list(range(nv_end))

    def root(node: int) -> int:
        while parent[node] != node:
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node

    for link in topology.links:
        if max(link.src, link.dst) < nv_end:
            parent[root(link.src)] = root(link.dst)
    roots = [root(gpu) for gpu in range(topology.num_gpus)]
    ranks = roots.count(roots[0])
    even = all(len(set(roots[start : start + ranks])) == 1 for start in range(0, len(roots), ranks))
    if not even or len(set(roots)) * ranks != len(roots) or ranks % topology.gpus_per_server:
        raise WorkloadError(f"{topology.file_name}: NV switches do not join whole, equal servers")
    return ranks


def _uplink_share(topology: Topology, nv_end: int) -> float:
    """Share of its GPUs' traffic that the uplinks of the most crowded access switch carry, at most 1; 1 where all
    GPUs hang on one set of switches."""
    down: FloatArray = np.zeros(topology.num_nodes)
    up: FloatArray = np.zeros(topology.num_nodes)
    reached: list[set[int]] = [set() for _ in range(topology.num_gpus // topology.gpus_per_server)]
    for link in topology.links:
        low, high = min(link.src, link.dst), max(link.src, link.dst)
        if high < nv_end:
            continue
        if low < topology.num_gpus:
            down[high] += link.wire.bytes_per_s
            reached[low // topology.gpus_per_server].add(high)
        else:
            up[low] += link.wire.bytes_per_s
    crowded = down > 0
    if not crowded.any() or all(switches == reached[0] for switches in reached):
        return 1.0
    return min(1.0, float((up[crowded] / down[crowded]).min()))


# A topology file as a cluster sheet, which gen_profiler_data.py and the solver read (docs/clusters.md).


def write_cluster(topology: Topology, like: str, path: Path, *, root: Path) -> ClusterSpec:
    """Write ``topology`` with the GPU, latencies and switches of the spec ``like`` to ``path`` (.toml); the
    cluster as it reads back.

    Raises ConfigError for an unknown sheet or another ending, WorkloadError where network and sheet do not
    fit.
    """
    if path.suffix != ".toml":
        raise ConfigError(where="topology", key="--write_cluster", value=str(path), allowed="a .toml file")
    if like not in cluster_names(root):
        raise ConfigError(
            where="topology", key="--cluster", value=like, allowed=f"one of {', '.join(cluster_names(root))}"
        )
    made = cluster_with_topology(read_cluster(like, root=root), topology)
    table = tomllib.loads((root / CLUSTER_FOLDER / f"{like}.toml").read_text(encoding="utf-8"))
    lender = table["gpu"] if isinstance(table["gpu"], str) else like
    with atomic_file(path) as handle:
        handle.write("\n".join(_lines(made, lender, path.stem)) + "\n")
    return read_cluster(str(path), root=root)


def _lines(cluster: ClusterSpec, lender: str, name: str) -> list[str]:
    lines = [f"name = {json.dumps(name)}", f"gpu = {json.dumps(lender)}", "", "[node]"]
    lines += [f"gpus = {cluster.gpus_per_node}", f"nics = {cluster.nics_per_node}"]
    lines.append(f"max_nodes = {cluster.max_nodes}")
    for domain in cluster.domains:
        lines += [
            "",
            "[[domains]]",
            f"name = {json.dumps(domain.name)}",
            f"link = {json.dumps(domain.link)}",
            f"ranks = {domain.ranks}",
            f"bandwidth = {domain.bandwidth!r}",
            f"latency_s = {domain.latency_s!r}",
            f"in_network_reduction = {str(domain.in_network_reduction).lower()}",
        ]
        lines += [f"links = {domain.links}"] if domain.links else []
    lines += ["", "[sources]", f'"gpu" = "sheet {lender}"']
    kept = {"node", *(f"domains.{domain.name}" for domain in cluster.domains)}
    for key, text in cluster.sources.items():
        figure = key.removesuffix(".latency_s")
        if key in kept or (figure != key and figure in kept):
            lines.append(f"{json.dumps(key)} = {json.dumps(text)}")
    return lines
