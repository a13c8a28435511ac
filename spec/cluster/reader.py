"""Reading hardware specs: configs/clusters/<name>.toml -> ClusterSpec, configs/architectures/<name>.toml -> ArchitectureSpec.

Every figure has a source, of an architecture every word and flag as well, and every source a figure. docs/clusters.md
shows the form.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from difflib import get_close_matches
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

from spec.cluster.cluster import (
    ArchitectureSpec,
    ClusterSpec,
    Flash2Rates,
    Fp8Products,
    GpuSpec,
    HostSpec,
    NcclTuning,
    NetworkDomain,
    OperandReads,
    UnalignedRates,
)
from spec.dtypes import DTYPE_BYTES
from spec.errors import ConfigError
from spec.files import read_toml
from spec.section import Section


def read_sources(top: Section) -> dict[str, str]:
    """The ``[sources]`` table: where a figure, or the figures of a table, come from, by dotted path."""
    table = top.section("sources")
    return {key: table.text(key) for key in table.values}


def check_sources(top: Section, sources: Mapping[str, str], figures: tuple[str, ...]) -> None:
    """Raise ConfigError for a figure without a source of its own or on a table around it, and for a
    source in the file itself that belongs to no figure."""
    for figure in figures:
        if not is_sourced(figure, sources):
            allowed = "where this figure comes from (or a source for the table around it)"
            raise ConfigError(where=top.where, key=f"sources.{figure!r}", value=None, allowed=allowed)
    for key in top.section("sources").values:
        if not any(figure == key or figure.startswith(f"{key}.") for figure in figures):
            allowed = "the key of a figure"
            raise ConfigError(where=top.where, key=f"sources.{key!r}", value=key, allowed=allowed)


def is_sourced(figure: str, sources: Mapping[str, str]) -> bool:
    """Returns True where a figure (dotted key path) or a table around it has a source."""
    parts = figure.split(".")
    return any(".".join(parts[:length]) in sources for length in range(1, len(parts) + 1))


def facts_of(values: Mapping[str, object]) -> tuple[str, ...]:
    """Dotted paths of all numbers, words, flags and lists in a table and in the tables inside it; the tables
    of a list go by their name."""
    return tuple(path for path, _ in _leaves(values))


def figures_of(values: Mapping[str, object]) -> tuple[str, ...]:
    """Returns the paths of facts_of that are numbers."""
    return tuple(
        path for path, value in _leaves(values) if isinstance(value, int | float) and not isinstance(value, bool)
    )


def _leaves(values: Mapping[str, object], around: str = "") -> Iterator[tuple[str, object]]:
    for key, value in values.items():
        path = f"{around}.{key}" if around else key
        if isinstance(value, dict):
            yield from _leaves(value, path)
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            for table in value:
                yield from _leaves(table, f"{path}.{table['name']}")
        else:
            yield path, value


Item = TypeVar("Item")
ARCHITECTURE_FOLDER = Path("configs") / "architectures"

FP8_SCALES = ("tensor", "row", "block", "mx")
MAX_TILES = 16
TILE_SIDES = range(16, 1025, 16)

# Smallest and largest believable figure and its unit.
FLASH_FLOPS = (1e12, 1e18, "FLOP/s")
RATE = (1e9, 1e14, "bytes/s")
PER_CLOCK = (1.0, 1e5, "FLOPs a clock and multiprocessor")


def known_architectures(root: Path) -> tuple[str, ...]:
    """Names of the files under ``root``/configs/architectures (file stems), sorted."""
    return tuple(sorted(path.stem for path in (root / ARCHITECTURE_FOLDER).glob("*.toml")))


def read_architecture(name: str, *, root: Path) -> ArchitectureSpec:
    """The architecture of the file ``name``.toml under ``root``/configs/architectures.

    Raises ConfigError for an unknown name (listing the known ones), an unreadable file, a missing or
    unknown key, a wrong type, a figure that nobody would believe, or a fact without a source.
    """
    known = known_architectures(root)
    if name not in known:
        allowed = f"one of {', '.join(known)}" if known else f"a file under {root / ARCHITECTURE_FOLDER}"
        raise ConfigError(where="architecture", key="name", value=name, allowed=allowed)
    top = read_toml(root / ARCHITECTURE_FOLDER / f"{name}.toml")
    sources = read_sources(top)
    tensor_cores = top.section("tensor_cores")
    flash = top.section("flash_attention")
    architecture = ArchitectureSpec(
        name=name,
        operand_reads=OperandReads(tensor_cores.choice("operand_reads", [each.value for each in OperandReads])),
        asynchronous_products=tensor_cores.flag("asynchronous"),
        static_tiles=tensor_cores.flag("static_tiles"),
        wide_tiles=_tiles(tensor_cores, "wide_tiles"),
        unaligned=_maybe(tensor_cores, "unaligned", _unaligned),
        best_over_flash2=_all_of(flash.section("best_over_flash2"), lambda table: _ratios(table, 1.0, 10.0)),
        softmax_unhidden=flash.measure("softmax_unhidden", 0.0, 1.0) if flash.has("softmax_unhidden") else None,
        fp8_attention=_maybe(flash, "fp8", lambda table: _ratios(table, 0.3, 3.0)),
        flash2=_maybe(flash, "flash2", _flash2),
        fp8=_maybe(top, "fp8", _fp8),
        nccl=_maybe(top, "nccl", _nccl),
        own_elementwise=_maybe(top, "elementwise", lambda table: table.flag("own_kernels")) or False,
        sources=sources,
    )
    for section in (tensor_cores, flash, top):
        section.close()
    check_sources(top, sources, facts_of({key: top.values[key] for key in top.values if key != "sources"}))
    return architecture


def _all_of(table: Section, read: Callable[[Section], Item]) -> Item:
    """Returns what ``read`` makes of a table, of which it leaves no key out."""
    result = read(table)
    table.close()
    return result


def _maybe(top: Section, key: str, read: Callable[[Section], Item]) -> Item | None:
    """Returns what ``read`` makes of the table ``key``, or None without one."""
    return _all_of(top.section(key), read) if top.has(key) else None


def _tiles(table: Section, key: str) -> tuple[tuple[int, int], ...]:
    """Pairs of rows and columns; none when the key is absent."""
    value = table.values[key] if table.has(key) else []
    if not isinstance(value, list) or len(value) > MAX_TILES or not all(_is_tile(item) for item in value):
        table.fail(key, f"at most {MAX_TILES} pairs [rows, columns] of multiples of 16 up to 1024")
    return tuple((rows, columns) for rows, columns in value)


def _is_tile(value: object) -> bool:
    return (
        isinstance(value, list) and len(value) == 2 and all(type(side) is int and side in TILE_SIDES for side in value)
    )


def _ratios(table: Section, minimum: float, maximum: float) -> dict[str, float]:
    """Time of one kernel over another's, forward and backward."""
    return {direction: table.measure(direction, minimum, maximum) for direction in ("forward", "backward")}


def _unaligned(table: Section) -> UnalignedRates:
    return UnalignedRates(by_one=table.measure("by_one", *PER_CLOCK), by_two=table.measure("by_two", *PER_CLOCK))


def _flash2(table: Section) -> Flash2Rates:
    return Flash2Rates(
        forward=table.measure("forward", *FLASH_FLOPS),
        causal_forward=table.measure("causal_forward", *FLASH_FLOPS),
        backward=table.measure("backward", *FLASH_FLOPS),
        gpu_flops=table.measure("gpu_flops", *FLASH_FLOPS),
        num_sms=table.integer("num_sms", maximum=10_000),
        holds_under_load=table.flag("holds_under_load"),
    )


def _fp8(table: Section) -> Fp8Products:
    for key in ("scales", "grouped_scales"):
        if not set(table.texts(key)) <= set(FP8_SCALES):
            table.fail(key, f"a list of {', '.join(FP8_SCALES)}")
    return Fp8Products(
        scales=table.texts("scales"),
        grouped_scales=table.texts("grouped_scales"),
        transposed_copies=table.flag("transposed_copies"),
    )


def _nccl(table: Section) -> NcclTuning:
    return NcclTuning(
        ll_max_rate=table.measure("ll_max_rate", *RATE),
        nvlink_share=table.measure("nvlink_share", 0.1, 1.0),
        nvls_share=table.measure("nvls_share", 0.0, 1.0),
        ring_plateau=table.measure("ring_plateau", 1.0, 10.0),
        gathers_plateau=table.flag("gathers_plateau"),
    )


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
    slowdown = node.measure("host_slowdown", 0.1, 10.0, default=1.0)
    cluster = ClusterSpec(
        name=top.text("name"),
        gpu=gpu,
        gpus_per_node=node.integer("gpus", maximum=MAX_RANKS),
        domains=_domains(top),
        nics_per_node=node.integer("nics", minimum=0, maximum=MAX_RANKS),
        max_nodes=node.integer("max_nodes", maximum=MAX_RANKS),
        sources={**lent_sources, **own_sources},
        host_slowdown=slowdown,
        driver_slowdown=node.measure("driver_slowdown", 0.1, 10.0, default=slowdown),
        host=_maybe(top, "host", _host),
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
    allowed = f"a .toml file or one of {_names_like(path.stem, root)}"
    raise ConfigError(where="cluster", key="name or path", value=name_or_path, allowed=allowed)


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
        training_rate_ratio=table.measure("training_rate_ratio", 0.1, 1.0, default=1.0),
        training_clock_ratio=table.measure("training_clock_ratio", 0.1, 1.0, default=1.0),
    )
    table.close()
    return gpu


def _architecture(table: Section, root: Path) -> ArchitectureSpec:
    return read_architecture(table.choice("architecture", known_architectures(root)), root=root)


def _rates(table: Section, key: str) -> dict[str, float]:
    """FLOP/s by number format; at least one."""
    rates = table.section(key)
    result = {dtype: rates.measure(dtype, *FLOPS) for dtype in DTYPE_BYTES if rates.has(dtype)}
    rates.close()
    if not result:
        table.fail(key, f"FLOP/s of at least one format of {', '.join(DTYPE_BYTES)}")
    return result


def _host(table: Section) -> HostSpec:
    return HostSpec(
        link_bandwidth=table.measure("link_bandwidth", *HOST_LINK_BANDWIDTH),
        memory_bandwidth=table.measure("memory_bandwidth", *MEMORY_BANDWIDTH),
        links=table.integer_or("links", 0, maximum=MAX_RANKS),
    )


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
                payload_share=table.measure("payload_share", 0.1, 1.0, default=0.0),
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
        allowed = "mesh for the first domain alone, of at least 2 ranks"
        raise ConfigError(where=top.where, key="domains.link", value="mesh", allowed=allowed)
    nested = all(outer % within == 0 for within, outer in pairwise(inner))
    if not inner or ranks[-1] != 0 or 0 in inner or inner != sorted(set(inner)) or not nested:
        allowed = "two or three, growing by whole multiples from inside out, the last one 0 (unlimited)"
        raise ConfigError(where=top.where, key="domains.ranks", value=ranks, allowed=allowed)
    if inner[0] % cluster.gpus_per_node and cluster.gpus_per_node % inner[0]:
        allowed = f"a multiple or a divisor of node.gpus = {cluster.gpus_per_node}"
        raise ConfigError(where=top.where, key="domains[0].ranks", value=inner[0], allowed=allowed)


def sheet_of_gpu(name: str, *, root: Path) -> ClusterSpec | None:
    """The sheet under ``root`` whose GPU is called ``name``, whatever the case; None when there is none.

    Of several sheets with one GPU it is the one that has its table, which alone names the driver's names.
    """
    result: ClusterSpec | None = None
    wanted = name.strip().casefold()
    for stem in known_clusters(root):
        cluster = read_cluster(stem, root=root)
        names = (stem, cluster.name, cluster.gpu.name, *cluster.gpu.device_names)
        if wanted in (each.casefold() for each in names):
            result = cluster if result is None or cluster.gpu.device_names else result
    return result
