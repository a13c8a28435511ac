"""Reading a hardware sheet: configs/clusters/<name>.toml -> ClusterSpec.

A sheet is data with a source behind each figure. docs/clusters.md shows the form.
"""

import os
from dataclasses import replace
from difflib import get_close_matches
from itertools import pairwise
from pathlib import Path

from spec.cluster.architecture import ArchitectureSpec
from spec.cluster.architecture_reader import known_architectures, read_architecture
from spec.cluster.cluster import ClusterSpec, GpuSpec, HostSpec, NetworkDomain
from spec.cluster.sources import check_sources, figures_of, read_sources
from spec.dtypes import DTYPE_BYTES
from spec.errors import ConfigError
from spec.section import Section
from spec.text_file import read_toml

MOST_NAMED = 8
CLUSTER_FOLDER = Path("configs") / "clusters"

LINKS = ("nvlink", "mesh", "pcie", "socket", "network", "memory")
MAX_DOMAINS = 3
MAX_RANKS = 10**7

# Smallest and largest believable figure and its unit. They exist to catch a figure in another unit
# (GB for bytes, TFLOP/s for FLOP/s, microseconds for seconds), not to judge hardware.
FLOPS = (1e9, 1e19, "FLOP/s")
MEMORY_BYTES = (1e8, 1e14, "bytes")
MEMORY_BANDWIDTH = (1e9, 1e15, "bytes/s")
CLOCK_HZ = (1e8, 1e11, "Hz")
CACHE_BYTES = (0.0, 1e12, "bytes")
POWER_W = (1.0, 1e5, "W")
BANDWIDTH = (1e6, 1e14, "bytes/s")
HOST_LINK_BANDWIDTH = (1e8, 1e13, "bytes/s")
LATENCY_S = (0.0, 1e-1, "s")


def known_clusters(root: Path) -> tuple[str, ...]:
    """Names of the sheets under ``root``/configs/clusters (file stems), sorted."""
    return tuple(sorted(path.stem for path in (root / CLUSTER_FOLDER).glob("*.toml")))


def read_cluster(name_or_path: str, *, root: Path) -> ClusterSpec:
    """The cluster of a sheet, by name (stem under ``root``/configs/clusters) or by path; its architecture
    is a file under ``root``/configs/architectures.

    Raises ConfigError for an unknown name (listing those like it), an unreadable file, a missing or
    unknown key, a wrong type, a negative or non-finite number, an unknown GPU, or a figure without a
    source.
    """
    top = read_toml(_sheet_path(name_or_path, root))
    own_sources = read_sources(top)
    gpu, lent_sources = _gpu(top, root)
    node = top.section("node")
    slowdown = node.measure("host_slowdown", 0.1, 10.0) if node.has("host_slowdown") else 1.0
    cluster = ClusterSpec(
        name=top.text("name"),
        gpu=gpu,
        gpus_per_node=node.integer("gpus", maximum=MAX_RANKS),
        domains=_domains(top),
        nics_per_node=node.integer("nics", minimum=0, maximum=MAX_RANKS),
        max_nodes=node.integer("max_nodes", maximum=MAX_RANKS),
        sources={**lent_sources, **own_sources},
        host_slowdown=slowdown,
        driver_slowdown=node.measure("driver_slowdown", 0.1, 10.0)
        if node.has("driver_slowdown")
        else slowdown,
        host=_host(top.section("host")) if top.has("host") else None,
    )
    node.close()
    top.close()
    borrowed = ("gpu",) if isinstance(top.values["gpu"], str) else ()
    check_sources(top, cluster.sources, (*figures_of(top.values), *borrowed))
    _check_shape(top, cluster)
    return cluster


def _sheet_path(name_or_path: str, root: Path) -> Path:
    if name_or_path in known_clusters(root):
        return root / CLUSTER_FOLDER / f"{name_or_path}.toml"
    path = Path(name_or_path)
    if path.suffix == ".toml" and os.path.isfile(path):
        return path
    raise ConfigError(
        where="cluster",
        key="name or path",
        value=name_or_path,
        allowed=f"a .toml file or one of {_names_like(path.stem, root)}",
    )


def _names_like(name: str, root: Path) -> str:
    """The sheets whose names are nearest, and how many there are."""
    known = known_clusters(root)
    near = get_close_matches(name, known, n=MOST_NAMED, cutoff=0.0)
    more = f" and {len(known) - len(near)} more in {CLUSTER_FOLDER}" if len(known) > len(near) else ""
    return f"{', '.join(near)}{more}" if near else "(no sheets found)"


def _gpu(top: Section, root: Path) -> tuple[GpuSpec, dict[str, str]]:
    """The GPU and the sources of its figures; ``gpu = "<sheet>"`` borrows another sheet's GPU."""
    if not isinstance(top.values.get("gpu"), str):
        return _read_gpu(top.section("gpu"), root), {}
    lender = top.text("gpu")
    lenders = {name: root / CLUSTER_FOLDER / f"{name}.toml" for name in known_clusters(root)}
    other = read_toml(lenders[lender]) if lender in lenders else None
    if other is None or not isinstance(other.values.get("gpu"), dict):
        top.fail("gpu", f"a [gpu] table or the name of a sheet that has one: {', '.join(lenders)}")
    # Only the sheet that has the table is recognised by its driver's name: several sites lend one GPU.
    gpu = replace(_read_gpu(other.section("gpu"), root), device_names=())
    lent = {key: text for key, text in read_sources(other).items() if key.split(".")[0] == "gpu"}
    return gpu, lent


def _read_gpu(table: Section, root: Path) -> GpuSpec:
    gpu = GpuSpec(
        name=table.text("name"),
        architecture=_architecture(table, root),
        device_names=table.texts("device_names"),
        peak_flops=_rates(table, "peak_flops"),
        sustained_flops=_rates(table, "sustained_flops") if table.has("sustained_flops") else {},
        memory_bytes=table.measure("memory_bytes", *MEMORY_BYTES),
        memory_bandwidth=table.measure("memory_bandwidth", *MEMORY_BANDWIDTH),
        num_sms=table.integer("num_sms", maximum=MAX_RANKS),
        boost_clock_hz=table.measure("boost_clock_hz", *CLOCK_HZ),
        l2_bytes=table.measure("l2_bytes", *CACHE_BYTES),
        power_w=table.measure("power_w", *POWER_W),
        training_rate_ratio=table.measure("training_rate_ratio", 0.1, 1.0)
        if table.has("training_rate_ratio")
        else 1.0,
        training_clock_ratio=table.measure("training_clock_ratio", 0.1, 1.0)
        if table.has("training_clock_ratio")
        else 1.0,
    )
    table.close()
    return gpu


def _architecture(table: Section, root: Path) -> ArchitectureSpec:
    return read_architecture(table.choice("architecture", known_architectures(root)), root=root)


def _rates(table: Section, key: str) -> dict[str, float]:
    """FLOP/s by number format; at least one."""
    rates = table.section(key)
    found = {dtype: rates.measure(dtype, *FLOPS) for dtype in DTYPE_BYTES if rates.has(dtype)}
    rates.close()
    if not found:
        table.fail(key, f"FLOP/s of at least one format of {', '.join(DTYPE_BYTES)}")
    return found


def _host(table: Section) -> HostSpec:
    host = HostSpec(
        link_bandwidth=table.measure("link_bandwidth", *HOST_LINK_BANDWIDTH),
        memory_bandwidth=table.measure("memory_bandwidth", *MEMORY_BANDWIDTH),
        links=table.integer_or("links", 0, maximum=MAX_RANKS),
    )
    table.close()
    return host


def _domains(top: Section) -> tuple[NetworkDomain, ...]:
    domains = []
    for table in top.sections("domains", named_by="name", maximum=MAX_DOMAINS):
        domains.append(
            NetworkDomain(
                name=table.text("name"),
                link=table.choice("link", LINKS),
                ranks=table.integer("ranks", minimum=0, maximum=MAX_RANKS),
                bandwidth=table.measure("bandwidth", *BANDWIDTH),
                latency_s=table.measure("latency_s", *LATENCY_S),
                in_network_reduction=table.flag("in_network_reduction", False),
                links=table.integer_or("links", 0, maximum=MAX_RANKS),
                payload_share=table.measure("payload_share", 0.1, 1.0) if table.has("payload_share") else 0.0,
                peer_access=table.flag("peer_access", True),
            )
        )
        if not domains[-1].peer_access and domains[-1].link != "pcie":
            table.fail("peer_access", 'true, or link = "pcie"')
        table.close()
    return tuple(domains)


def _check_shape(top: Section, cluster: ClusterSpec) -> None:
    """Domains grow from inside out and end in one that reaches every node."""
    ranks = [domain.ranks for domain in cluster.domains]
    inner = ranks[:-1]
    meshed = [domain.name for domain in cluster.domains[1:] if domain.link == "mesh"]
    if meshed or (cluster.domains[0].link == "mesh" and cluster.domains[0].ranks < 2):
        raise ConfigError(
            where=top.where,
            key="domains.link",
            value="mesh",
            allowed="mesh for the first domain alone, of at least 2 ranks",
        )
    nested = all(outer % within == 0 for within, outer in pairwise(inner))
    if not inner or ranks[-1] != 0 or 0 in inner or inner != sorted(set(inner)) or not nested:
        raise ConfigError(
            where=top.where,
            key="domains.ranks",
            value=ranks,
            allowed="two or three, growing by whole multiples from inside out, the last one 0 (unlimited)",
        )
    if inner[0] % cluster.gpus_per_node and cluster.gpus_per_node % inner[0]:
        raise ConfigError(
            where=top.where,
            key="domains[0].ranks",
            value=inner[0],
            allowed=f"a multiple or a divisor of node.gpus = {cluster.gpus_per_node}",
        )
