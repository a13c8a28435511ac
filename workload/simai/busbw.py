"""Bandwidths of SimAI-Analytical: the bus bandwidth of a group from the links of its servers, the simulator's ratio
tables, and files of bandwidths.

Sizes, times, rates and shares pass through a C++ float in the simulator, so they do here (``single``).
"""

import csv
import os
import re
import struct
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from spec.collectives import Collective
from spec.files import MAX_FILE_BYTES, UnreadableFileError, atomic_file, read_file_text
from spec.program.kinds import plain_number
from workload.diagnostics import WorkloadError, read_lines
from workload.simai.format import SimaiGroup, SimaiHeader, uses_ratio


def single(value: float) -> float:
    """Returns ``value`` (below 3.4e38) rounded to the 24 bits of a C++ float."""
    return float(struct.unpack("f", struct.pack("f", value))[0])


# Bus bandwidth of a group from the links of a server. Source: SimAI 1.6/1.7, ``Layer::compute_time`` (how a group lies
# on servers, all integer divisions) and ``calculateBusBw`` in calbusbw.cc (ring and all-to-all; the algorithm is fixed
# to ring). Bandwidths are GiB/s whatever its help says.

# GiB/s of a GPU's NVLinks: calbusbw.h, SM80_NVLINK_BW and SM90_NVLINK_BW (20.0 and 20.6) times the links
# of the type (A100 12, A800 8, H100/H20 18, H800 8).
NVLINK_GIB: dict[str, float] = {"A100": 240.0, "A800": 160.0, "H100": 370.8, "H20": 370.8, "H800": 164.8}
# GiB/s of one NIC: calbusbw.h, CX6_BW, CX7_BW, BF3_BW.
NIC_GIB: dict[str, float] = {"cx6": 23.5, "cx7": 48.5, "bf3": 48.5}


@dataclass(frozen=True, slots=True, kw_only=True)
class SimaiNetwork:
    """Servers of ``gpus_per_server`` GPUs and ``nics_per_server`` NICs (-g_p_s, -n_p_s); GiB/s of one
    GPU's NVLinks (-nv) and of one NIC (-nic)."""

    gpus_per_server: int
    nics_per_server: int
    nvlink_gib: float
    nic_gib: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupShape:
    """A group in the simulator: ``nodes`` of ``gpus`` members that share ``nics``; ``tp_fills_server`` when a
    tensor-parallel group takes whole servers."""

    nodes: int
    gpus: int
    nics: int
    tp_fills_server: bool = False


def simai_network(
    *,
    gpus_per_server: int,
    nics_per_server: int,
    gpu_type: str | None = None,
    nic_type: str = "cx7",
    nvlink_gib: float | None = None,
    nic_gib: float | None = None,
) -> SimaiNetwork:
    """Returns the network of the simulator's options; an explicit bandwidth goes before a type.

    Raises WorkloadError for unknown types, which the simulator takes for free communication, and for numbers that are
    not positive."""
    if nvlink_gib is None:
        if gpu_type is None:
            raise WorkloadError("the NVLink bandwidth is unknown: give -nv (GiB/s per GPU) or -g_type")
        nvlink_gib = _look_up(NVLINK_GIB, gpu_type.upper(), "-g_type")
    if nic_gib is None:
        nic_gib = _look_up(NIC_GIB, nic_type.lower(), "-nic_t")
    numbers = {"-g_p_s": gpus_per_server, "-n_p_s": nics_per_server, "-nv": nvlink_gib, "-nic": nic_gib}
    for flag, value in numbers.items():
        if not 0 < value < float("inf"):
            raise WorkloadError(f"{flag} = {value}: must be positive and finite")
    return SimaiNetwork(
        gpus_per_server=gpus_per_server,
        nics_per_server=nics_per_server,
        nvlink_gib=single(nvlink_gib),
        nic_gib=single(nic_gib),
    )


def group_shape(group: SimaiGroup, ranks: int, header: SimaiHeader, network: SimaiNetwork) -> GroupShape:
    """Returns how a group of ``ranks`` lies on servers. Data-parallel ranks count as one server each, even where
    they share one."""
    tp, gpus, nics = header.tp, network.gpus_per_server, network.nics_per_server
    if group is SimaiGroup.TP:
        nodes, inside = (1, tp) if tp <= gpus else (tp // gpus, gpus)
    elif group is SimaiGroup.EP:
        # Members of an expert group are tp ranks apart; the tp groups of a server share its NICs.
        nodes = 1 if tp * ranks <= gpus else tp * ranks // gpus
        inside = max(gpus // tp, 1)
        if nodes > 1:
            nics = nics // gpus if tp > gpus else nics // tp
    else:
        # Ranks between two members: tp, or tp x ep for the experts' data-parallel groups.
        stride = tp if group is SimaiGroup.DP else tp * header.ep
        nodes, inside = ranks, max(gpus // stride, 1)
        nics = nics // min(stride, gpus)
    return GroupShape(nodes=nodes, gpus=inside, nics=nics, tp_fills_server=tp >= gpus)


def bus_bandwidth_gib(collective: Collective, shape: GroupShape, network: SimaiNetwork) -> tuple[float, bool]:
    """Returns the bus bandwidth (GiB/s) of a group and whether its NVLinks are the bottleneck.

    Raises WorkloadError when no NIC is left for the group: the simulator then counts its communication as free.
    """
    if shape.nics < 1 or shape.nodes < 1:
        raise WorkloadError(
            f"-n_p_s {network.nics_per_server}, -g_p_s {network.gpus_per_server}: {shape.nics} NICs and "
            f"{shape.nodes} servers for a group; SimAI would count its communication as free"
        )
    outside = single(network.nic_gib * shape.nics)
    if collective is Collective.ALL_TO_ALL:
        if shape.nodes == 1:
            return network.nvlink_gib, True
        # A GPU's share of the NICs carries what goes to other servers, of all that bus bandwidth counts.
        ranks = shape.nodes * shape.gpus
        return single(outside / shape.gpus) * (ranks - 1) / ((shape.nodes - 1) * shape.gpus), False
    if shape.nodes == 1:
        return network.nvlink_gib, False
    if shape.gpus == 1:
        return outside, False
    inside = network.nvlink_gib
    if outside > inside:
        # Rings may leave a server by other NICs than they entered, so that NVLink carries a share less.
        inside *= shape.gpus / (shape.gpus - 1)
    return (inside, True) if inside < outside else (outside, False)


def _look_up(table: dict[str, float], name: str, flag: str) -> float:
    if name not in table:
        raise WorkloadError(f"{flag} {name}: unknown; one of {', '.join(table)}")
    return table[name]


# The ratio tables of SimAI-Analytical (efficiency by size and servers), read from its own files: configs/simai_ratio,
# or astra-sim-alibabacloud/inputs/ratio of a checkout. Source of the look-up: SimAI 1.6/1.7, ``readCSV``, ``getValue``
# and ``cal_ratio``.

SHIPPED = Path("configs", "simai_ratio")
FILES = ("nic_ratio", "nvlink_ratio", "ata_ratio")
# Servers of a group -> column; other numbers use the column of 16 servers.
_COLUMNS = {1: 1, 2: 2, 4: 3, 8: 4, 16: 5, 32: 6, 64: 7, 128: 8, 9: 9}
_OTHER_COLUMN = 5
_ACROSS_TP_COLUMN = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class RatioTable:
    """Ratios ``values[row][column - 1]`` by rows of ascending ``sizes`` (bytes); an empty cell counts as 1."""

    sizes: tuple[float, ...]
    values: tuple[tuple[float, ...], ...]

    def ratio(self, size_bytes: int, column: int) -> float:
        """Returns the ratio at a size over that of the last row: linear between rows, constant below the first.

        Raises WorkloadError above the last row, where the simulator writes an empty result.
        """
        if size_bytes == 0:
            return 1.0
        cells = [row[column - 1] for row in self.values]
        if size_bytes < self.sizes[0]:
            return cells[0] / cells[-1]
        if size_bytes > self.sizes[-1]:
            raise WorkloadError(
                f"{size_bytes} bytes lie above the ratio tables ({self.sizes[-1]:.0f}); SimAI's result would be empty"
            )
        above = min(bisect_right(self.sizes, size_bytes), len(self.sizes) - 1)
        low, high = self.sizes[above - 1], self.sizes[above]
        share = (size_bytes - low) / (high - low)
        return (cells[above - 1] + (cells[above] - cells[above - 1]) * share) / cells[-1]


RatioTables = Mapping[str, RatioTable]
"""By FILES: for groups bound by NICs or of one server, for groups bound by NVLink, and for all-to-all."""


def read_ratio_tables(folder: str | os.PathLike[str]) -> RatioTables:
    """Returns the three tables of ``folder``; WorkloadError when one is missing or malformed."""
    return {name: _read_table(Path(folder) / f"{name}.csv") for name in FILES}


def ratio_of(
    tables: RatioTables,
    collective: Collective,
    group: SimaiGroup,
    size_bytes: int,
    shape: GroupShape,
    *,
    nvlink_bound: bool,
) -> float:
    """Returns the factor on the bus bandwidth of a collective; 1 for groups that SimAI does not correct."""
    if not uses_ratio(collective, group):
        return 1.0
    column = _COLUMNS.get(shape.nodes, _OTHER_COLUMN)
    if collective is not Collective.ALL_TO_ALL:
        return tables["nvlink_ratio" if nvlink_bound else "nic_ratio"].ratio(size_bytes, column)
    across = group is SimaiGroup.EP and shape.nodes > 1 and shape.tp_fills_server
    return tables["ata_ratio"].ratio(size_bytes, _ACROSS_TP_COLUMN if across else column)


def _read_table(path: Path) -> RatioTable:
    try:
        rows = list(csv.reader(read_file_text(path, MAX_FILE_BYTES).splitlines()))[1:]
    except (UnreadableFileError, csv.Error) as error:
        raise WorkloadError(f"{path}: ratio table: {error}") from error
    sizes: list[float] = []
    values: list[tuple[float, ...]] = []
    for number, cells in enumerate(rows, start=2):
        if not cells:
            continue
        try:
            row = [float(cell) if cell.strip() else 1.0 for cell in cells]
        except ValueError as error:
            raise WorkloadError(f"{path}: line {number}: {error}") from error
        if len(row) < 10 or not all(0 < each < float("inf") for each in row):
            raise WorkloadError(f"{path}: line {number}: needs a size and at least 9 positive ratios")
        sizes.append(row[0])
        values.append(tuple(row[1:]))
    if len(sizes) < 2 or sizes != sorted(set(sizes)):
        raise WorkloadError(f"{path}: needs at least two rows of ascending sizes")
    return RatioTable(sizes=tuple(sizes), values=tuple(values))


# Files of bus bandwidths by group, in the small yaml form of SimAI's tutorial, which its binary no longer reads.
#
#     name
#     TP:
#       allreduce,: 300
#       allgather,: null
#     PP:
#       busbw: 47.5
#
# Section lines are TP:, DP:, EP:, DP_EP: and PP:, entries ``word: number`` in GiB/s (a comma before the
# colon, comments after ``#`` and ``null`` are allowed, indentation means nothing). Only this form is read,
# not yaml in general. As in the tutorial, gathers, scatters and all-reduces of EP are those of the experts'
# data-parallel groups; a section DP_EP, which is our own, sets them separately.

SECTIONS: dict[str, SimaiGroup] = {group.name: group for group in SimaiGroup if group is not SimaiGroup.NONE}
WORDS: dict[str, Collective] = {
    "allreduce": Collective.ALL_REDUCE,
    "allgather": Collective.ALL_GATHER,
    "reducescatter": Collective.REDUCE_SCATTER,
    "alltoall": Collective.ALL_TO_ALL,
}
_PIPELINE = "PP"
_BUSBW = "busbw"
_ENTRY = re.compile(r"([A-Za-z_]+)\s*,?\s*:\s*(\S*)")
MAX_BUSBW_BYTES = 2**20
# Assumption: no link of one GPU carries a byte a second or a PiB/s; such a number is a mistake in the file.
_LEAST_GIB, _MOST_GIB = 1e-6, 2.0**20


@dataclass(frozen=True, slots=True, kw_only=True)
class BusBandwidths:
    """Bus bandwidth (GiB/s) by group and collective, and of a message between pipeline stages; None or absent:
    unknown."""

    name: str
    groups: dict[tuple[SimaiGroup, Collective], float]
    pipeline_gib: float | None = None


def read_busbw(path: str | os.PathLike[str]) -> BusBandwidths:
    """Returns the bandwidths of ``path``; WorkloadError names a line that is not of the form above."""
    where = Path(path)
    name, section = "", ""
    seen: set[tuple[str, str]] = set()
    groups: dict[tuple[SimaiGroup, Collective], float] = {}
    pipeline: float | None = None
    for number, line in enumerate(read_lines(where, MAX_BUSBW_BYTES), start=1):
        content = line.split("#", 1)[0].strip()
        place = f"{where}: line {number}"
        if not content:
            continue
        match = _ENTRY.fullmatch(content)
        if match is None:
            if name or section:
                raise WorkloadError(f"{place}: {content[:60]!r} is neither a section nor an entry")
            name = content
        # A word with a colon and nothing behind it starts a section.
        elif not match[2]:
            section = match[1]
            if section not in (*SECTIONS, _PIPELINE):
                raise WorkloadError(f"{place}: unknown section {section!r}; one of {', '.join((*SECTIONS, _PIPELINE))}")
        else:
            value = _bandwidth(match[2], place)
            if (section, match[1]) in seen:
                raise WorkloadError(f"{place}: {match[1]} of section {section} is given twice")
            seen.add((section, match[1]))
            if section == _PIPELINE and match[1] == _BUSBW:
                pipeline = value
            else:
                key = _key(section, match[1], place)
                if value is not None:
                    groups[key] = value
    for (group, collective), value in list(groups.items()):
        if group is SimaiGroup.EP and collective is not Collective.ALL_TO_ALL:
            groups.setdefault((SimaiGroup.DP_EP, collective), value)
    return BusBandwidths(name=name, groups=groups, pipeline_gib=pipeline)


def write_busbw(path: str | os.PathLike[str], bandwidths: BusBandwidths) -> None:
    """Writes the form that ``read_busbw`` reads; groups without an entry are left out."""
    lines = [bandwidths.name or "busbw"]
    for section, group in SECTIONS.items():
        if any(one is group for one, _ in bandwidths.groups):
            lines.append(f"{section}:")
            for word, collective in WORDS.items():
                value = bandwidths.groups.get((group, collective))
                lines.append(f"  {word},: {'null' if value is None else f'{value:.6g}'}")
    if bandwidths.pipeline_gib is not None:
        lines += [f"{_PIPELINE}:", f"  {_BUSBW}: {bandwidths.pipeline_gib:.6g}"]
    with atomic_file(path) as handle:
        handle.write("\n".join(lines) + "\n")


def _key(section: str, word: str, place: str) -> tuple[SimaiGroup, Collective]:
    if section not in SECTIONS or word not in WORDS:
        where = f"section {section!r}" if section else "before any section"
        raise WorkloadError(
            f"{place}: {word!r} {where} is unknown; one of {', '.join(WORDS)}, or {_BUSBW} under {_PIPELINE}"
        )
    return SECTIONS[section], WORDS[word]


def _bandwidth(value: str, place: str) -> float | None:
    if value in ("null", "~"):
        return None
    number = plain_number(value)
    if not _LEAST_GIB <= number <= _MOST_GIB:
        raise WorkloadError(f"{place}: {value[:60]!r} is no positive bandwidth in GiB/s (up to {_MOST_GIB:.0f})")
    return number
