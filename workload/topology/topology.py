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

from spec.files import UnreadableFileError, read_bytes, replaced_file
from workload.findings import Finding, Severity, WorkloadError

# The units ns-3 knows (DataRate and Time).
BANDWIDTH = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,9})?)([KMGk]?)bps")
LATENCY = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,12})?)(ns|us|ms|s)")
BITS = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9}
SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    """What a link is made of, as written: bandwidth ("400Gbps"), latency ("0.0005ms"), error rate ("0")."""

    bandwidth: str
    latency: str
    error_rate: str

    @property
    def bytes_per_s(self) -> float:
        """One direction."""
        return bandwidth_bits(self.bandwidth) / 8

    @property
    def latency_s(self) -> float:
        """Seconds of one hop."""
        return latency_seconds(self.latency)


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


def write_topology(path: str | os.PathLike[str], topology: Topology) -> None:
    """Write ``topology``; ExportError when ``path`` cannot be written."""
    nodes, nv_switches, others, links = topology.counts
    with replaced_file(path) as handle:
        handle.write(
            f"{nodes} {topology.gpus_per_server} {nv_switches} {others} {links} {topology.gpu_type}\n"
        )
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


def read_topology(path: str | os.PathLike[str]) -> tuple[Topology | None, list[Finding]]:
    """The topology of a file, None when it is broken, and its findings.

    Raises WorkloadError when there is no text file to read.
    """
    where = Path(path)
    try:
        lines = read_bytes(where, MAX_FILE_BYTES).decode("ascii").split("\n")
    except (UnreadableFileError, UnicodeDecodeError) as error:
        reason = "is no ASCII text" if isinstance(error, UnicodeDecodeError) else error
        raise WorkloadError(f"{where}: no topology file: {reason}") from error
    findings: list[Finding] = []
    header = _header(lines[0], findings)
    if header is None:
        return None, findings
    nodes, per_server, num_nv, num_other, num_links, gpu_type = header
    num_gpus = nodes - num_nv - num_other
    _check_switches(lines[1] if len(lines) > 1 else "", num_gpus, nodes, findings)
    links = _links(lines, nodes, findings)
    if len(links) != num_links and not findings:
        _add(findings, 1, Severity.BROKEN, "links", f"{num_links} links announced, {len(links)} found")
    elif len(links) < nodes - 1:
        # Said before anything of that many nodes is laid out.
        message = f"{len(links)} links cannot join {nodes} nodes"
        _add(findings, 1, Severity.BROKEN, "cut-off", message)
    if any(each.severity is Severity.BROKEN for each in findings):
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
    return topology, findings + _graph_findings(topology, [line for _, line in links])


def _header(line: str, findings: list[Finding]) -> tuple[int, int, int, int, int, str] | None:
    words = line.split()
    if len(words) != 6:
        _add(
            findings,
            1,
            Severity.BROKEN,
            "header",
            f"{len(words)} fields; line 1 has 6: {', '.join(_HEADER)}, GPU type",
        )
        return None
    numbers = []
    for name, word in zip(_HEADER, words, strict=False):
        if not word.isdigit() or len(word) > 9:
            _add(findings, 1, Severity.BROKEN, "header", f"{name} = {word[:40]!r} is no count")
            return None
        numbers.append(int(word))
    nodes, per_server, num_nv, num_other, num_links = numbers
    num_gpus = nodes - num_nv - num_other
    if num_gpus < 1 or per_server < 1:
        message = f"{nodes} nodes less {num_nv + num_other} switches leave {num_gpus} GPUs in servers of {per_server}"
        _add(findings, 1, Severity.BROKEN, "header", message)
        return None
    if num_gpus % per_server:
        message = f"{num_gpus} GPUs are no whole number of servers of {per_server}"
        _add(findings, 1, Severity.WRONG, "servers", message)
    return nodes, per_server, num_nv, num_other, num_links, words[5]


def _check_switches(line: str, num_gpus: int, nodes: int, findings: list[Finding]) -> None:
    words = line.split()
    if len(words) != nodes - num_gpus:
        message = f"{len(words)} switch ids; line 1 counts {nodes - num_gpus} switches"
        _add(findings, 2, Severity.BROKEN, "switches", message)
        return
    for word, expected in zip(words, range(num_gpus, nodes), strict=True):
        if word != str(expected):
            message = f"switch id {word[:40]!r} where {expected} belongs; ids ascend from {num_gpus}"
            _add(findings, 2, Severity.BROKEN, "switches", message)
            return


def _links(lines: list[str], nodes: int, findings: list[Finding]) -> list[tuple[Link, int]]:
    links: list[tuple[Link, int]] = []
    wires: dict[tuple[str, ...], Wire] = {}
    for number, line in enumerate(lines[2:], start=3):
        words = line.split()
        if not words:
            continue
        if len(words) != 5:
            _add(findings, number, Severity.BROKEN, "fields", f"{len(words)} fields; a link has 5")
            continue
        ends = [int(word) if word.isdigit() and len(word) < 10 else nodes for word in words[:2]]
        if max(ends) >= nodes or ends[0] == ends[1]:
            message = (
                f"{words[0][:20]} to {words[1][:20]}: two different nodes of 0 to {nodes - 1} belong here"
            )
            _add(findings, number, Severity.BROKEN, "node", message)
            continue
        key = tuple(words[2:])
        if key not in wires:
            try:
                bandwidth_bits(words[2])
                latency_seconds(words[3])
                error_share(words[4])
            except WorkloadError as error:
                _add(findings, number, Severity.BROKEN, "wire", str(error))
                continue
            wires[key] = Wire(bandwidth=words[2], latency=words[3], error_rate=words[4])
        links.append((Link(src=ends[0], dst=ends[1], wire=wires[key]), number))
    return links


def _graph_findings(topology: Topology, lines: list[int]) -> list[Finding]:
    """Links given twice, GPUs joined to GPUs, NV switches of several servers, and parts cut off."""
    findings: list[Finding] = []
    gpus = topology.num_gpus
    seen: Counter[tuple[int, int]] = Counter()
    for link, line in zip(topology.links, lines, strict=True):
        pair = (min(link.src, link.dst), max(link.src, link.dst))
        seen[pair] += 1
        if seen[pair] == 2:
            _add(findings, line, Severity.WRONG, "twice", f"{link.src} and {link.dst} are linked twice")
        if max(pair) < gpus:
            _add(
                findings,
                line,
                Severity.WRONG,
                "gpu-gpu",
                f"GPU {link.src} and GPU {link.dst} have no switch between",
            )
        elif link.src > link.dst:
            message = f"{link.src} to {link.dst}: the lower layer comes first"
            _add(findings, line, Severity.NOTE, "order", message)
    unreached = _unreached(topology)
    if unreached:
        message = f"{len(unreached)} nodes cannot be reached from GPU 0, node {unreached[0]} among them"
        _add(findings, 1, Severity.WRONG, "cut-off", message)
    return findings + _server_findings(topology, lines)


def _server_findings(topology: Topology, lines: list[int]) -> list[Finding]:
    findings: list[Finding] = []
    server_of: dict[int, int] = {}
    nv_switches = range(topology.num_gpus, topology.num_gpus + topology.num_nv_switches)
    for link, line in zip(topology.links, lines, strict=True):
        low, high = min(link.src, link.dst), max(link.src, link.dst)
        if low < topology.num_gpus and high in nv_switches:
            server = low // topology.gpus_per_server
            if server_of.setdefault(high, server) != server:
                message = f"NV switch {high} serves GPUs of servers {server_of[high]} and {server}"
                _add(findings, line, Severity.WRONG, "nv-switch", message)
    return findings


def _unreached(topology: Topology) -> list[int]:
    neighbours: list[list[int]] = [[] for _ in range(topology.num_nodes)]
    for link in topology.links:
        neighbours[link.src].append(link.dst)
        neighbours[link.dst].append(link.src)
    reached = [False] * topology.num_nodes
    reached[0] = True
    front = [0]
    while front:
        for node in neighbours[front.pop()]:
            if not reached[node]:
                reached[node] = True
                front.append(node)
    return [node for node, known in enumerate(reached) if not known]


def _add(findings: list[Finding], line: int, severity: Severity, code: str, message: str) -> None:
    findings.append(Finding(line=line, severity=severity, code=code, message=message))
