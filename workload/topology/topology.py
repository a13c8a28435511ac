"""The nouns of a topology file and its writer.

    line 1: <nodes> <gpus per server> <NV switches> <other switches> <links> <GPU type>
    line 2: all switch ids, ascending, each followed by a space
    then:   <src> <dst> <bandwidth> <latency> <error rate>

GPUs are 0..g-1, then come the NV switches, then the other switches from the lowest layer up. A link is
written once, its source in the lower layer. Layout as SimAI's gen_Topo_Template.py writes it.
"""

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass

from spec.replaced_file import replaced_file
from workload.workload_error import WorkloadError

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
