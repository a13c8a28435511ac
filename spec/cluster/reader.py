"""Reading hardware specs: configs/clusters/<name>.toml -> ClusterSpec, configs/architectures/<name>.toml -> ArchitectureSpec.

Every figure has a source, of an architecture every word and flag as well, and every source a figure. docs/clusters.md
shows the form.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from spec.cluster.changes import CHANGE, changed_values
from spec.cluster.cluster import (
    MAX_RANKS,
    SLOWDOWN,
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
from spec.names import known_name, nearest
from spec.section import Range, Section

ARCHITECTURE_FOLDER = Path("configs") / "architectures"
CLUSTER_FOLDER = Path("configs") / "clusters"
USUAL_CARDS = {
    "h100": "h100-sxm",
    "a100": "a100-sxm-80g",
    "dgx-h100": "h100-sxm",
    "dgx-h200": "h200",
    "dgx-a100": "a100-sxm-80g",
}
"""GPUs of several hardware specs, and the one that is meant where nothing else is said: a DGX of the largest memory."""
MAX_DOMAINS = 3
MAX_TILES = 16
TILE_SIDES = range(16, 1025, 16)
FLOPS = Range(1e9, 1e19, "FLOP/s")


def cluster_names(root: Path) -> tuple[str, ...]:
    """Returns the names of the hardware specs under ``root``/configs/clusters (file stems), sorted."""
    return tuple(sorted(path.stem for path in (root / CLUSTER_FOLDER).glob("*.toml")))


def architecture_names(root: Path) -> tuple[str, ...]:
    """Returns the names of the files under ``root``/configs/architectures (file stems), sorted."""
    return tuple(sorted(path.stem for path in (root / ARCHITECTURE_FOLDER).glob("*.toml")))


def read_cluster(name_or_path: str, *, root: Path) -> ClusterSpec:
    """Returns the cluster of a hardware spec, by name (stem under ``root``/configs/clusters) or by path; its
    architecture is a file under ``root``/configs/architectures. ``:key=value`` behind it changes figures
    (spec/cluster/changes.py).

    Raises ConfigError for an unknown name (listing those like it), an unreadable file, a missing or
    unknown key, a wrong type, a negative or non-finite number, an unknown GPU, or a figure without a
    source.
    """
    given, *changes = CHANGE.split(name_or_path)
    names, path = cluster_names(root), Path(given)
    name = given if given in names else None
    if name is None and path.suffix != ".toml":
        name = known_name(given, names, USUAL_CARDS)
    if name is not None:
        path = root / CLUSTER_FOLDER / f"{name}.toml"
    elif path.suffix != ".toml" or not os.path.isfile(path):
        allowed = f"a .toml file or one of {_nearest(path.stem, names)}"
        raise ConfigError(where="cluster", key="name or path", value=given, allowed=allowed)
    top = read_toml(path)
    cluster = _cluster(top, root)
    # ``gpu = "NAME"`` needs a source like the figures of the file.
    borrowed = ["gpu"] if isinstance(top.values["gpu"], str) else []
    check_sources(top, cluster.sources, [*fact_paths(top.values, numbers=True), *borrowed])
    if changes:
        where = f"--cluster {name_or_path}"
        cluster = _cluster(
            Section(where=where, name="", values=changed_values(top.values, cluster, changes, where)), root
        )
    return cluster


def _cluster(top: Section, root: Path) -> ClusterSpec:
    """Returns the cluster of a file's sections; ConfigError as read_cluster."""
    sources = read_sources(top)
    gpu, gpu_sources = _gpu(top, root)
    domains = []
    for table in top.sections("domains", named_by="name", maximum=MAX_DOMAINS):
        domains.append(table.record(NetworkDomain))
        if not domains[-1].peer_access and domains[-1].link != "pcie":
            table.fail("peer_access", 'true, or link = "pcie"')
        table.close()
    node = top.section("node")
    slowdown = node.measure("host_slowdown", *SLOWDOWN, default=1.0)
    cluster = ClusterSpec(
        name=top.text("name"),
        gpu=gpu,
        gpus_per_node=node.integer("gpus", maximum=MAX_RANKS),
        domains=tuple(domains),
        nics_per_node=node.integer("nics", minimum=0, maximum=MAX_RANKS),
        max_nodes=node.integer("max_nodes", maximum=MAX_RANKS),
        sources={**gpu_sources, **sources},
        host_slowdown=slowdown,
        driver_slowdown=node.measure("driver_slowdown", *SLOWDOWN, default=slowdown),
        host=top.optional_record("host", HostSpec),
    )
    node.close()
    top.close()
    _check_domains(top, cluster)
    return cluster


def _nearest(name: str, names: tuple[str, ...]) -> str:
    """Returns the known names that are nearest, and how many more there are."""
    near = nearest(name, names)
    more = f" and {len(names) - len(near)} more in {CLUSTER_FOLDER}" if len(names) > len(near) else ""
    return f"{', '.join(near)}{more}" if near else "(no hardware specs found)"


def _gpu(top: Section, root: Path) -> tuple[GpuSpec, dict[str, str]]:
    """Returns the GPU, and the sources of its figures where they are another file's: ``gpu = "NAME"`` borrows the GPU
    of another hardware spec."""
    table, sources = top, dict[str, str]()
    borrowed = isinstance(top.values.get("gpu"), str)
    if borrowed:
        other = top.text("gpu")
        names = cluster_names(root)
        if other in names:
            table = read_toml(root / CLUSTER_FOLDER / f"{other}.toml")
        # A file that borrows its own GPU cannot be borrowed from: there is no chain of files.
        if not isinstance(table.values.get("gpu"), dict):
            top.fail("gpu", f"a [gpu] table or the name of a hardware spec that has one: {', '.join(names)}")
        sources = {key: text for key, text in read_sources(table).items() if key.split(".")[0] == "gpu"}
    table = table.section("gpu")
    gpu = table.record(
        GpuSpec,
        architecture=read_architecture(table.choice("architecture", architecture_names(root)), root=root),
        peak_flops=_rates(table, "peak_flops"),
        sustained_flops=_rates(table, "sustained_flops") if table.has("sustained_flops") else {},
    )
    table.close()
    # The driver's name of a GPU identifies the file with its table, not the others that borrow it.
    return (replace(gpu, device_names=()) if borrowed else gpu), sources


def _rates(table: Section, key: str) -> dict[str, float]:
    """Returns FLOP/s by number format, at least one."""
    rates = table.section(key)
    result = {dtype: rates.measure(dtype, *FLOPS) for dtype in DTYPE_BYTES if rates.has(dtype)}
    rates.close()
    if not result:
        table.fail(key, f"FLOP/s of at least one format of {', '.join(DTYPE_BYTES)}")
    return result


def _check_domains(top: Section, cluster: ClusterSpec) -> None:
    """Raises ConfigError unless domains grow from inside out and end in one that reaches every node."""
    ranks = [domain.ranks for domain in cluster.domains]
    inner = ranks[:-1]
    meshed = [domain.name for domain in cluster.domains[1:] if domain.link == "mesh"]
    if meshed or (cluster.domains[0].link == "mesh" and cluster.domains[0].ranks < 2):
        allowed = "mesh for the first domain alone, of at least 2 ranks"
        raise ConfigError(where=top.where, key="domains.link", value="mesh", allowed=allowed)
    _check_pairs(top, cluster.domains[0])
    # Inner domains have some GPUs, each domain more than the one in it, and a whole number of these.
    nested = all(outer % within == 0 for within, outer in pairwise(inner))
    if not inner or ranks[-1] != 0 or 0 in inner or inner != sorted(set(inner)) or not nested:
        allowed = "two or three, growing by whole multiples from inside out, the last one 0 (unlimited)"
        raise ConfigError(where=top.where, key="domains.ranks", value=ranks, allowed=allowed)
    if inner[0] % cluster.gpus_per_node and cluster.gpus_per_node % inner[0]:
        allowed = f"a multiple or a divisor of node.gpus = {cluster.gpus_per_node}"
        raise ConfigError(where=top.where, key="domains[0].ranks", value=inner[0], allowed=allowed)


def _check_pairs(top: Section, domain: NetworkDomain) -> None:
    """Raises ConfigError unless ``pair_links`` has every GPU's links to every other, and equal groups side by side are
    linked."""
    rows = [row.split() for row in domain.pair_links]
    if not rows:
        return
    counts = all(len(row) == domain.ranks and all(link in "0123456789" for link in row) for row in rows)
    sides = range(2, domain.ranks + 1)
    if (
        domain.link != "mesh"
        or not counts
        or [tuple(row) for row in rows] != list(zip(*rows, strict=True))
        or any(row[index] != "0" for index, row in enumerate(rows))
        or not all(domain.group_links(side) for side in sides if domain.ranks % side == 0)
    ):
        allowed = (
            f'of a mesh, {domain.ranks} rows of {domain.ranks} numbers of links, "0 1 2 ...": the same both ways, none of '
            "a GPU to itself, some in every group side by side"
        )
        raise ConfigError(
            where=top.where, key=f"domains.{domain.name}.pair_links", value=domain.pair_links, allowed=allowed
        )


def read_architecture(name: str, *, root: Path) -> ArchitectureSpec:
    """Returns the architecture of the file ``name``.toml under ``root``/configs/architectures.

    Raises ConfigError for an unknown name (listing the known ones), an unreadable file, a missing or
    unknown key, a wrong type, a figure out of range, or a fact without a source.
    """
    names = architecture_names(root)
    if name not in names:
        allowed = f"one of {', '.join(names)}" if names else f"a file under {root / ARCHITECTURE_FOLDER}"
        raise ConfigError(where="architecture", key="name", value=name, allowed=allowed)
    top = read_toml(root / ARCHITECTURE_FOLDER / f"{name}.toml")
    sources = read_sources(top)
    tensor_cores, flash, elementwise = (top.section(key) for key in ("tensor_cores", "flash_attention", "elementwise"))
    architecture = ArchitectureSpec(
        name=name,
        operand_reads=OperandReads(tensor_cores.choice("operand_reads", OperandReads)),
        asynchronous_products=tensor_cores.flag("asynchronous"),
        static_tiles=tensor_cores.flag("static_tiles"),
        wide_tiles=_tiles(tensor_cores, "wide_tiles") if tensor_cores.has("wide_tiles") else (),
        unaligned=tensor_cores.optional_record("unaligned", UnalignedRates),
        best_over_flash2=_ratios(flash, "best_over_flash2", Range(1.0, 10.0)),
        softmax_unhidden=flash.measure("softmax_unhidden", 0.0, 1.0) if flash.has("softmax_unhidden") else None,
        fp8_attention=_ratios(flash, "fp8", Range(0.3, 3.0)) if flash.has("fp8") else None,
        wide_queries=_ratios(flash, "wide_queries", Range(0.5, 3.0)) if flash.has("wide_queries") else None,
        flash2=flash.optional_record("flash2", Flash2Rates),
        fp8=top.optional_record("fp8", Fp8Products),
        nccl=top.optional_record("nccl", NcclTuning),
        own_elementwise=elementwise.flag("own_kernels", False),
        sources=sources,
    )
    for section in (tensor_cores, flash, elementwise, top):
        section.close()
    check_sources(top, sources, fact_paths({key: top.values[key] for key in top.values if key != "sources"}))
    return architecture


def _tiles(table: Section, key: str) -> tuple[tuple[int, int], ...]:
    """Returns pairs of rows and columns."""
    pairs = table.values[key]
    if not isinstance(pairs, list) or len(pairs) > MAX_TILES or not all(_is_tile(pair) for pair in pairs):
        table.fail(key, f"at most {MAX_TILES} pairs [rows, columns] of multiples of 16 up to 1024")
    return tuple((rows, columns) for rows, columns in pairs)


def _is_tile(value: object) -> bool:
    return (
        isinstance(value, list) and len(value) == 2 and all(type(side) is int and side in TILE_SIDES for side in value)
    )


def _ratios(top: Section, key: str, limits: Range) -> dict[str, float]:
    """Returns the time of one kernel over another's, forward and backward."""
    table = top.section(key)
    result = {direction: table.measure(direction, *limits) for direction in ("forward", "backward")}
    table.close()
    return result


def read_sources(top: Section) -> dict[str, str]:
    """Returns the ``[sources]`` table: where a figure, or the figures of a table, come from, by dotted path."""
    table = top.section("sources")
    return {key: table.text(key) for key in table.values}


def fact_paths(values: Mapping[str, object], around: str = "", *, numbers: bool = False) -> list[str]:
    """Returns the dotted paths of all numbers, words, flags and lists in a table and in the tables inside it, or of the
    ``numbers`` alone; the tables of a list go by their name. ``around`` is the path of the table itself."""
    result: list[str] = []
    for key, value in values.items():
        path = f"{around}.{key}" if around else key
        if isinstance(value, dict):
            result += fact_paths(value, path, numbers=numbers)
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            for table in value:
                result += fact_paths(table, f"{path}.{table['name']}", numbers=numbers)
        elif not numbers or (isinstance(value, int | float) and not isinstance(value, bool)):
            result.append(path)
    return result


def check_sources(top: Section, sources: Mapping[str, str], figures: Sequence[str]) -> None:
    """Raises ConfigError for a figure without a source of its own or on a table around it, and for a source in the file
    itself that belongs to no figure. A source belongs to all figures whose path begins with its key."""
    for figure in figures:
        if not any(f"{figure}.".startswith(f"{key}.") for key in sources):
            allowed = "where this figure comes from (or a source for the table around it)"
            raise ConfigError(where=top.where, key=f"sources.{figure!r}", value=None, allowed=allowed)
    for key in top.section("sources").values:
        if not any(f"{figure}.".startswith(f"{key}.") for figure in figures):
            allowed = "the key of a figure"
            raise ConfigError(where=top.where, key=f"sources.{key!r}", value=key, allowed=allowed)


def find_hardware_spec(name: str, *, root: Path) -> ClusterSpec | None:
    """Returns the hardware spec under ``root`` whose GPU has this name, in any case; None if there is none.

    Of several with one GPU it is the one that has the [gpu] table: it alone has the names that the driver reports.
    """
    result: ClusterSpec | None = None
    folded = name.strip().casefold()
    for stem in cluster_names(root):
        cluster = read_cluster(stem, root=root)
        names = (stem, cluster.name, cluster.gpu.name, *cluster.gpu.device_names)
        if folded in (each.casefold() for each in names):
            result = cluster if result is None or cluster.gpu.device_names else result
    return result
