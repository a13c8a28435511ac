"""Reading a hardware sheet: configs/clusters/<name>.toml -> ClusterSpec.

A sheet is data with a source behind each figure. docs/clusters.md shows the form.
"""

import tomllib
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from spec.cluster.cluster import ClusterSpec, GpuSpec, HostSpec, NetworkDomain
from spec.dtypes import DTYPE_BYTES
from spec.errors import ConfigError
from spec.readers.sheet import FLOPS_LIMITS, Sheet, is_sourced

CLUSTER_FOLDER = Path("configs") / "clusters"

ARCHITECTURES = ("volta", "ampere", "ada", "hopper", "blackwell", "cpu")
LINKS = ("nvlink", "pcie", "socket", "network", "memory")

SHEET_KEYS = ("name", "gpu", "node", "host", "domains", "sources")
GPU_KEYS = (
    "name",
    "architecture",
    "device_names",
    "peak_flops",
    "sustained_flops",
    "memory_bytes",
    "memory_bandwidth",
    "num_sms",
    "boost_clock_hz",
    "l2_bytes",
    "power_w",
    "training_rate_ratio",
)
NODE_KEYS = ("gpus", "nics", "max_nodes", "host_slowdown")
HOST_KEYS = ("link_bandwidth", "links", "memory_bandwidth")
DOMAIN_KEYS = ("name", "link", "ranks", "bandwidth", "latency_s", "in_network_reduction", "links")


def known_clusters(root: Path) -> tuple[str, ...]:
    """Names of the sheets under ``root``/configs/clusters (file stems), sorted."""
    return tuple(sorted(path.stem for path in (root / CLUSTER_FOLDER).glob("*.toml")))


def read_cluster(name_or_path: str, *, root: Path) -> ClusterSpec:
    """The cluster of a sheet, by name (stem under ``root``/configs/clusters) or by path.

    Raises ConfigError for an unknown name (listing the known ones), an unreadable file, a missing or
    unknown key, a wrong type, a negative or non-finite number, an unknown GPU, or a figure without a
    source.
    """
    path = _sheet_path(name_or_path, root)
    sheet = Sheet(where=str(path), table=_load(path))
    sheet.only(SHEET_KEYS)
    sources = _sources(sheet)
    gpu, gpu_sources = _gpu(sheet, sources, root)
    sources = {**gpu_sources, **sources}
    node = sheet.child("node")
    node.only(NODE_KEYS)
    domains = _domains(sheet)
    cluster = ClusterSpec(
        name=sheet.text("name"),
        gpu=gpu,
        gpus_per_node=node.count("gpus", minimum=1),
        domains=domains,
        nics_per_node=node.count("nics", minimum=0),
        max_nodes=node.count("max_nodes", minimum=1),
        sources=sources,
        host_slowdown=node.number("host_slowdown", (0.1, 10.0)) if "host_slowdown" in node.table else 1.0,
        host=_host(sheet.child("host")) if "host" in sheet.table else None,
    )
    _check_sources(sheet, sources)
    _check_shape(sheet, cluster)
    return cluster


def _sheet_path(name_or_path: str, root: Path) -> Path:
    if name_or_path in known_clusters(root):
        return root / CLUSTER_FOLDER / f"{name_or_path}.toml"
    path = Path(name_or_path)
    if path.suffix == ".toml" and path.is_file():
        return path
    raise ConfigError(
        where="cluster",
        key="name or path",
        value=name_or_path,
        allowed=f"a .toml file or one of {', '.join(known_clusters(root)) or '(no sheets found)'}",
    )


def _load(path: Path) -> dict[str, object]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(where=str(path), key="file", value=str(error), allowed="a readable file") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(where=str(path), key="file", value=str(error), allowed="TOML in UTF-8") from error


def _sources(sheet: Sheet) -> dict[str, str]:
    table = sheet.child("sources")
    return {key: table.text(key) for key in table.table}


def _gpu(sheet: Sheet, sources: dict[str, str], root: Path) -> tuple[GpuSpec, dict[str, str]]:
    """The GPU and the sources of its figures; ``gpu = "<sheet>"`` borrows another sheet's GPU."""
    if not isinstance(sheet.table.get("gpu"), str):
        return _read_gpu(sheet.child("gpu")), {}
    lender = sheet.text("gpu")
    lenders = {name: root / CLUSTER_FOLDER / f"{name}.toml" for name in known_clusters(root)}
    if lender not in lenders or not isinstance(_load(lenders[lender]).get("gpu"), dict):
        raise ConfigError(
            where=sheet.where,
            key="gpu",
            value=lender,
            allowed="a [gpu] table or the name of a sheet that has one: " + ", ".join(lenders),
        )
    other = Sheet(where=str(lenders[lender]), table=_load(lenders[lender]))
    # Only the sheet that has the table is recognised by its driver's name: several sites lend one GPU.
    gpu = replace(_read_gpu(other.child("gpu")), device_names=())
    lent = {key: text for key, text in _sources(other).items() if key.split(".")[0] == "gpu"}
    return gpu, lent


def _read_gpu(table: Sheet) -> GpuSpec:
    table.only(GPU_KEYS)
    return GpuSpec(
        name=table.text("name"),
        architecture=table.choice("architecture", ARCHITECTURES),
        device_names=table.texts("device_names"),
        peak_flops=_rates(table, "peak_flops"),
        sustained_flops=_rates(table, "sustained_flops") if "sustained_flops" in table.table else {},
        memory_bytes=table.number("memory_bytes"),
        memory_bandwidth=table.number("memory_bandwidth"),
        num_sms=table.count("num_sms", minimum=1),
        boost_clock_hz=table.number("boost_clock_hz"),
        l2_bytes=table.number("l2_bytes"),
        power_w=table.number("power_w"),
        training_rate_ratio=_ratio(table, "training_rate_ratio"),
    )


def _ratio(table: Sheet, key: str) -> float:
    """A share of 1, which it is when not given."""
    if key not in table.table:
        return 1.0
    return table.number(key, limits=(0.1, 1.0))


def _rates(table: Sheet, key: str) -> dict[str, float]:
    """FLOP/s by number format; at least one."""
    rates = table.child(key)
    rates.only(tuple(DTYPE_BYTES))
    if not rates.table:
        raise ConfigError(where=table.where, key=table.path(key), value={}, allowed="FLOP/s of a format")
    return {dtype: rates.number(dtype, FLOPS_LIMITS) for dtype in rates.table}


def _host(table: Sheet) -> HostSpec:
    table.only(HOST_KEYS)
    return HostSpec(
        link_bandwidth=table.number("link_bandwidth"),
        memory_bandwidth=table.number("memory_bandwidth"),
        links=table.count("links", minimum=1) if "links" in table.table else 0,
    )


def _domains(sheet: Sheet) -> tuple[NetworkDomain, ...]:
    domains = []
    for table in sheet.children("domains"):
        table.only(DOMAIN_KEYS)
        domains.append(
            NetworkDomain(
                name=table.text("name"),
                link=table.choice("link", LINKS),
                ranks=table.count("ranks", minimum=0),
                bandwidth=table.number("bandwidth"),
                latency_s=table.number("latency_s"),
                in_network_reduction=table.flag("in_network_reduction"),
                links=table.count("links", minimum=1) if "links" in table.table else 0,
            )
        )
    return tuple(domains)


def _check_sources(sheet: Sheet, sources: dict[str, str]) -> None:
    """Each figure has a source of its own or on a table around it, and each source a figure."""
    figures = sheet.figures()
    if isinstance(sheet.table.get("gpu"), str):
        figures = (*figures, "gpu")
    for figure in figures:
        if not is_sourced(figure, sources):
            raise ConfigError(
                where=sheet.where,
                key=f"sources.{figure!r}",
                value=None,
                allowed="where this figure comes from (or a source for the table around it)",
            )
    for key in sheet.child("sources").table:
        if not any(figure == key or figure.startswith(f"{key}.") for figure in figures):
            raise ConfigError(
                where=sheet.where, key=f"sources.{key!r}", value=key, allowed="the key of a figure"
            )


def _check_shape(sheet: Sheet, cluster: ClusterSpec) -> None:
    """Domains grow from inside out and end in one that reaches every node."""
    ranks = [domain.ranks for domain in cluster.domains]
    inner = ranks[:-1]
    nested = all(outer % within == 0 for within, outer in pairwise(inner))
    if ranks[-1] != 0 or 0 in inner or inner != sorted(set(inner)) or not nested or len(ranks) > 3:
        raise ConfigError(
            where=sheet.where,
            key="domains.ranks",
            value=ranks,
            allowed="two or three, growing by whole multiples from inside out, the last one 0 (unlimited)",
        )
    if inner and inner[0] % cluster.gpus_per_node and cluster.gpus_per_node % inner[0]:
        raise ConfigError(
            where=sheet.where,
            key="domains[0].ranks",
            value=inner[0],
            allowed=f"a multiple or a divisor of node.gpus = {cluster.gpus_per_node}",
        )
