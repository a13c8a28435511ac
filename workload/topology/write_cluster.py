"""A topology file as a cluster sheet, which gen_profiler_data.py and the solver read (docs/clusters.md)."""

import json
import tomllib
from pathlib import Path

from spec.cluster.cluster import ClusterSpec
from spec.cluster.reader import CLUSTER_FOLDER, known_clusters, read_cluster
from spec.errors import ConfigError
from spec.replaced_file import replaced_file
from workload.topology.as_cluster import cluster_with_topology
from workload.topology.topology import Topology


def write_cluster(topology: Topology, like: str, path: Path, *, root: Path) -> ClusterSpec:
    """Write ``topology`` with the GPU, latencies and switches of the sheet ``like`` to ``path`` (.toml); the
    cluster as it reads back.

    Raises ConfigError for an unknown sheet or another ending, WorkloadError where network and sheet do not
    fit.
    """
    if path.suffix != ".toml":
        raise ConfigError(where="topology", key="--write_cluster", value=str(path), allowed="a .toml file")
    if like not in known_clusters(root):
        raise ConfigError(
            where="topology", key="--cluster", value=like, allowed=f"one of {', '.join(known_clusters(root))}"
        )
    made = cluster_with_topology(read_cluster(like, root=root), topology)
    table = tomllib.loads((root / CLUSTER_FOLDER / f"{like}.toml").read_text(encoding="utf-8"))
    lender = table["gpu"] if isinstance(table["gpu"], str) else like
    with replaced_file(path) as handle:
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
