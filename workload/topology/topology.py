"""The nouns of a topology file and its writer.

    line 1: <nodes> <gpus per server> <NV switches> <other switches> <links> <GPU type>
    line 2: all switch ids, ascending, each followed by a space
    then:   <src> <dst> <bandwidth> <latency> <error rate>

GPUs are 0..g-1, then come the NV switches, then the other switches from the lowest layer up. A link is
written once, its source in the lower layer. Layout as SimAI's gen_Topo_Template.py writes it.
"""

import os
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from spec.errors import ExportError
from spec.files import UnreadableFileError, atomic_file, read_bytes
from workload.diagnostics import BROKEN, NOTE, WRONG, Findings, WorkloadError
from workload.pictures import save_figure

# The units ns-3 knows (DataRate and Time).
BANDWIDTH = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,9})?)([KMGk]?)bps")
LATENCY = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,12})?)(ns|us|ms|s)")
BITS = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9}
SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    """The wire of a link, as written: bandwidth ("400Gbps"), latency ("0.0005ms"), error rate ("0")."""

    bandwidth: str
    latency: str
    error_rate: str

    @property
    def bytes_per_s(self) -> float:
        """One direction."""
        return bandwidth_bits(self.bandwidth) / 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A cable between node ``src`` and the node ``dst`` above it."""

    src: int
    dst: int
    wire: Wire


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """GPUs, switches and links; ``file_name`` is the name its template gives it."""

    file_name: str
    gpu_type: str
    num_gpus: int
    gpus_per_server: int
    num_nv_switches: int
    num_other_switches: int
    links: tuple[Link, ...]

    @property
    def num_nodes(self) -> int:
        """GPUs and switches of every kind."""
        return self.num_gpus + self.num_nv_switches + self.num_other_switches

    @property
    def counts(self) -> tuple[int, int, int, int]:
        """Nodes, NV switches, other switches, links: line 1 but for the server size."""
        return (self.num_nodes, self.num_nv_switches, self.num_other_switches, len(self.links))

    @property
    def neighbours(self) -> list[list[int]]:
        """For every node those that a link joins it to."""
        result: list[list[int]] = [[] for _ in range(self.num_nodes)]
        for link in self.links:
            result[link.src].append(link.dst)
            result[link.dst].append(link.src)
        return result


def write_topology(path: str | os.PathLike[str], topology: Topology) -> None:
    """Write ``topology``; ExportError when ``path`` cannot be written."""
    nodes, nv_switches, others, links = topology.counts
    with atomic_file(path) as handle:
        handle.write(f"{nodes} {topology.gpus_per_server} {nv_switches} {others} {links} {topology.gpu_type}\n")
        handle.writelines(f"{switch} " for switch in range(topology.num_gpus, nodes))
        handle.write("\n")
        handle.writelines(_lines(topology.links))


def bandwidth_bits(word: str) -> float:
    """Bits per second of a word such as 400Gbps; WorkloadError for anything else."""
    match = BANDWIDTH.fullmatch(word)
    if match is None or float(match[1]) == 0:
        raise WorkloadError(f"bandwidth {word[:40]!r}: a number above 0 with bps, Kbps, Mbps or Gbps")
    return float(match[1]) * BITS[match[2]]


def latency_seconds(word: str) -> float:
    """Seconds of a word such as 0.0005ms; WorkloadError for anything else."""
    match = LATENCY.fullmatch(word)
    if match is None:
        raise WorkloadError(f"latency {word[:40]!r}: a number with ns, us, ms or s")
    return float(match[1]) * SECONDS[match[2]]


def error_share(word: str) -> float:
    """A share 0..1 of damaged packets; WorkloadError for anything else."""
    try:
        share = float(word)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise WorkloadError(f"error rate {word[:40]!r}: a share of 0 to 1")
    return share


def _lines(links: Iterable[Link]) -> Iterable[str]:
    for link in links:
        wire = link.wire
        yield f"{link.src} {link.dst} {wire.bandwidth} {wire.latency} {wire.error_rate}\n"


# Read a topology file and say what is wrong with it, line by line.

MAX_FILE_BYTES = 2**28
_HEADER = ("nodes", "gpus per server", "NV switches", "other switches", "links")


def read_topology(path: str | os.PathLike[str]) -> tuple[Topology | None, Findings]:
    """The topology of a file, None when it is broken, and its findings.

    Raises WorkloadError when there is no text file to read.
    """
    where = Path(path)
    try:
        lines = read_bytes(where, MAX_FILE_BYTES).decode("ascii").split("\n")
    except (UnreadableFileError, UnicodeDecodeError) as error:
        reason = "is no ASCII text" if isinstance(error, UnicodeDecodeError) else error
        raise WorkloadError(f"{where}: no topology file: {reason}") from error
    findings = Findings()
    header = _header(lines[0], findings)
    if header is None:
        return None, findings
    nodes, per_server, num_nv, num_other, num_links, gpu_type = header
    num_gpus = nodes - num_nv - num_other
    _check_switches(lines[1] if len(lines) > 1 else "", num_gpus, nodes, findings)
    links = _links(lines, nodes, findings)
    if len(links) != num_links and not findings:
        findings.add(1, BROKEN, "links", f"{num_links} links announced, {len(links)} found")
    elif len(links) < nodes - 1:
        # Said before anything of that many nodes is laid out.
        findings.add(1, BROKEN, "cut-off", f"{len(links)} links cannot join {nodes} nodes")
    if any(each.severity is BROKEN for each in findings):
        return None, findings
    topology = Topology(
        file_name=where.name,
        gpu_type=gpu_type,
        num_gpus=num_gpus,
        gpus_per_server=per_server,
        num_nv_switches=num_nv,
        num_other_switches=num_other,
        links=tuple(link for link, _ in links),
    )
    _check_graph(topology, [line for _, line in links], findings)
    return topology, findings


def _header(line: str, findings: Findings) -> tuple[int, int, int, int, int, str] | None:
    words = line.split()
    if len(words) != 6:
        message = f"{len(words)} fields; line 1 has 6: {', '.join(_HEADER)}, GPU type"
        findings.add(1, BROKEN, "header", message)
        return None
    numbers = []
    for name, word in zip(_HEADER, words, strict=False):
        if not word.isdigit() or len(word) > 9:
            findings.add(1, BROKEN, "header", f"{name} = {word[:40]!r} is no count")
            return None
        numbers.append(int(word))
    nodes, per_server, num_nv, num_other, num_links = numbers
    num_gpus = nodes - num_nv - num_other
    if num_gpus < 1 or per_server < 1:
        message = f"{nodes} nodes less {num_nv + num_other} switches leave {num_gpus} GPUs in servers of {per_server}"
        findings.add(1, BROKEN, "header", message)
        return None
    if num_gpus % per_server:
        findings.add(1, WRONG, "servers", f"{num_gpus} GPUs are no whole number of servers of {per_server}")
    return nodes, per_server, num_nv, num_other, num_links, words[5]


def _check_switches(line: str, num_gpus: int, nodes: int, findings: Findings) -> None:
    words = line.split()
    if len(words) != nodes - num_gpus:
        message = f"{len(words)} switch ids; line 1 counts {nodes - num_gpus} switches"
        findings.add(2, BROKEN, "switches", message)
        return
    for word, expected in zip(words, range(num_gpus, nodes), strict=True):
        if word != str(expected):
            message = f"switch id {word[:40]!r} where {expected} belongs; ids ascend from {num_gpus}"
            findings.add(2, BROKEN, "switches", message)
            return


def _links(lines: list[str], nodes: int, findings: Findings) -> list[tuple[Link, int]]:
    links: list[tuple[Link, int]] = []
    wires: dict[tuple[str, ...], Wire] = {}
    for number, line in enumerate(lines[2:], start=3):
        words = line.split()
        if not words:
            continue
        if len(words) != 5:
            findings.add(number, BROKEN, "fields", f"{len(words)} fields; a link has 5")
            continue
        ends = [int(word) if word.isdigit() and len(word) < 10 else nodes for word in words[:2]]
        if max(ends) >= nodes or ends[0] == ends[1]:
            message = f"{words[0][:20]} to {words[1][:20]}: two different nodes of 0 to {nodes - 1} belong here"
            findings.add(number, BROKEN, "node", message)
            continue
        key = tuple(words[2:])
        if key not in wires:
            try:
                bandwidth_bits(words[2])
                latency_seconds(words[3])
                error_share(words[4])
            except WorkloadError as error:
                findings.add(number, BROKEN, "wire", str(error))
                continue
            wires[key] = Wire(bandwidth=words[2], latency=words[3], error_rate=words[4])
        links.append((Link(src=ends[0], dst=ends[1], wire=wires[key]), number))
    return links


def _check_graph(topology: Topology, lines: list[int], findings: Findings) -> None:
    """Links given twice, GPUs joined to GPUs, NV switches of several servers, and parts cut off."""
    gpus = topology.num_gpus
    seen: Counter[tuple[int, int]] = Counter()
    server_of: dict[int, int] = {}
    for link, line in zip(topology.links, lines, strict=True):
        low, high = min(link.src, link.dst), max(link.src, link.dst)
        seen[low, high] += 1
        if seen[low, high] == 2:
            findings.add(line, WRONG, "twice", f"{link.src} and {link.dst} are linked twice")
        if high < gpus:
            findings.add(line, WRONG, "gpu-gpu", f"GPU {link.src} and GPU {link.dst} have no switch between")
        elif link.src > link.dst:
            findings.add(line, NOTE, "order", f"{link.src} to {link.dst}: the lower layer comes first")
        server = low // topology.gpus_per_server
        nv_link = low < gpus <= high < gpus + topology.num_nv_switches
        if nv_link and server_of.setdefault(high, server) != server:
            message = f"NV switch {high} serves GPUs of servers {server_of[high]} and {server}"
            findings.add(line, WRONG, "nv-switch", message)
    unreached = _unreached(topology)
    if unreached:
        message = f"{len(unreached)} nodes cannot be reached from GPU 0, node {unreached[0]} among them"
        findings.add(1, WRONG, "cut-off", message)


def _unreached(topology: Topology) -> list[int]:
    neighbours = topology.neighbours
    reached, front = {0}, [0]
    while front:
        new = set(neighbours[front.pop()]) - reached
        reached |= new
        front += new
    return [node for node in range(topology.num_nodes) if node not in reached]


# A small topology as a picture: one row per layer, links coloured by bandwidth.

MAX_NODES = 400


def layers(topology: Topology) -> list[int]:
    """Layer of every node: GPUs 0, NV switches below them (-1, -2, ...), other switches above (1, 2, ...)."""
    gpus = topology.num_gpus
    nv_end = gpus + topology.num_nv_switches
    layer = [0] * gpus + [0] * (topology.num_nodes - gpus)
    neighbours = topology.neighbours
    front, distance = list(range(gpus)), 0
    known = set(front)
    while front:
        distance += 1
        front = sorted({node for place in front for node in neighbours[place]} - known)
        known.update(front)
        for node in front:
            layer[node] = -distance if node < nv_end else distance
    return layer


def draw_topology(topology: Topology, path: str | os.PathLike[str]) -> None:
    """Draw ``topology`` to ``path`` (.png, .jpg, .svg, .pdf).

    Raises ExportError above 400 nodes, or when the picture cannot be written.
    """
    from matplotlib.collections import LineCollection
    from matplotlib.figure import Figure

    if topology.num_nodes > MAX_NODES:
        raise ExportError(f"{topology.num_nodes} nodes cannot be drawn legibly; at most {MAX_NODES}")
    layer = layers(topology)
    places: dict[int, tuple[float, float]] = {}
    for row in sorted(set(layer)):
        members = [node for node, own in enumerate(layer) if own == row]
        for index, node in enumerate(members):
            places[node] = ((index + 0.5) / len(members), float(row))
    figure = Figure(figsize=(12.0, 6.0), layout="constrained")
    axes = figure.add_subplot()
    widths = sorted({link.wire.bandwidth for link in topology.links}, key=bandwidth_bits)
    for number, bandwidth in enumerate(widths):
        segments = [(places[link.src], places[link.dst]) for link in topology.links if link.wire.bandwidth == bandwidth]
        label = f"{bandwidth} ({len(segments)} links)"
        axes.add_collection(LineCollection(segments, colors=f"C{number}", linewidths=0.4, alpha=0.6, label=label))
    across, up = [place[0] for place in places.values()], [place[1] for place in places.values()]
    axes.scatter(across, up, s=10, color="black", zorder=3)
    rows = sorted(set(layer))
    axes.set_yticks(rows, [_row_name(topology, row, layer.count(row)) for row in rows])
    axes.set_xticks([])
    axes.set_title(topology.file_name)
    for handle in figure.legend(loc="outside lower center", ncols=4).legend_handles:
        if handle is not None:
            handle.set(linewidth=2.0, alpha=1.0)
    save_figure(figure, path)


def _row_name(topology: Topology, row: int, count: int) -> str:
    if row == 0:
        return f"{count} {topology.gpu_type}"
    return f"{count} NV switches" if row < 0 else f"{count} switches (layer {row})"
