"""Two-layer Ethernet fabrics over servers with NV switches: rail-optimised or not, one or two ToRs.

GPUs of a segment share ASWs (access switches); every ASW reaches PSWs (pod switches). Rail-optimised: GPU k
of every server of a segment hangs on the segment's k-th ASW (Spectrum-X; AlibabaHPN with two NIC ports on two
sets of ASWs, whose planes may be apart). Otherwise consecutive GPUs share an ASW (DCN+). One pod only.

Layout and capacities: SimAI's gen_Topo_Template.py and its README.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from workload.diagnostics import WorkloadError
from workload.topology.topology import Link, Topology, Wire, bandwidth_bits, error_share, latency_seconds

NICS_PER_ASW = 64
ASW_PER_PSW = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """A topology's sizes, shape and links, by the flags of SimAI's gen_Topo_Template.py.

    ``nics_per_asw`` GPU ports on one ASW, ``num_psw`` PSWs, ``asw_per_psw`` ASWs that one PSW can take (per
    plane), ``num_asw`` only to be checked (None: whatever is needed).
    """

    template: str | None = None
    rail_optimised: bool = False
    dual_tor: bool = False
    dual_plane: bool = False
    gpus: int = 32
    gpus_per_server: int = 8
    nv_switches_per_server: int = 1
    gpu_type: str = "H100"
    nvlink_bandwidth: str = "2880Gbps"
    nv_latency: str = "0.000025ms"
    bandwidth: str = "400Gbps"
    latency: str = "0.0005ms"
    num_asw: int | None = None
    nics_per_asw: int = NICS_PER_ASW
    num_psw: int = 64
    uplink_bandwidth: str = "400Gbps"
    asw_per_psw: int = ASW_PER_PSW
    error_rate: str = "0"

    @property
    def nvlink(self) -> Wire:
        """The link from a GPU to an NV switch."""
        return Wire(bandwidth=self.nvlink_bandwidth, latency=self.nv_latency, error_rate=self.error_rate)

    @property
    def nic(self) -> Wire:
        """The link from a NIC to an ASW."""
        return Wire(bandwidth=self.bandwidth, latency=self.latency, error_rate=self.error_rate)

    @property
    def asw_per_segment(self) -> int:
        """ASWs of one segment on one side."""
        return self.gpus_per_server if self.rail_optimised else 1

    @property
    def segments(self) -> int:
        """Segments that hold all GPUs."""
        return -(-self.gpus // (self.asw_per_segment * self.nics_per_asw))

    @property
    def sides(self) -> int:
        """2 when every GPU has ports on two ASWs."""
        return 2 if self.dual_tor else 1

    @property
    def most_segments(self) -> int:
        """Segments that the PSWs' ports can take."""
        return self.asw_per_psw // (self.gpus_per_server if self.rail_optimised else self.sides)


def fabric_topology(fabric: Fabric) -> Topology:
    """All nodes and links of ``fabric``. Raises WorkloadError for sizes that do not fit."""
    check_fabric(fabric)
    num_asw = fabric.sides * fabric.segments * fabric.asw_per_segment
    num_nv = fabric.gpus // fabric.gpus_per_server * fabric.nv_switches_per_server
    first_asw = fabric.gpus + num_nv
    links = (*_gpu_links(fabric, first_asw=first_asw), *_uplinks(fabric, first_asw=first_asw))
    return _topology(fabric, links, num_nv, num_asw + fabric.num_psw)


def _topology(fabric: Fabric, links: Iterable[Link], num_nv: int, num_other: int = 0) -> Topology:
    return Topology(
        file_name=_name(fabric),
        gpu_type=fabric.gpu_type,
        num_gpus=fabric.gpus,
        gpus_per_server=fabric.gpus_per_server,
        num_nv_switches=num_nv,
        num_other_switches=num_other,
        links=tuple(links),
    )


def check_fabric(fabric: Fabric) -> None:
    """Raise WorkloadError when the parts do not fit together."""
    sizes = {
        "-g": fabric.gpus,
        "-gps": fabric.gpus_per_server,
        "-nsps": fabric.nv_switches_per_server,
        "-npa": fabric.nics_per_asw,
        "-psn": fabric.num_psw,
        "-app": fabric.asw_per_psw,
    }
    for flag, value in sizes.items():
        if not 1 <= value <= 2**20:
            raise WorkloadError(f"{flag} {value}: must be 1 to {2**20}")
    if fabric.gpus % fabric.gpus_per_server:
        raise WorkloadError(
            f"-g {fabric.gpus}: must be a multiple of the server's {fabric.gpus_per_server} GPUs (-gps)"
        )
    if fabric.segments > fabric.most_segments:
        most = fabric.most_segments * fabric.asw_per_segment * fabric.nics_per_asw
        raise WorkloadError(
            f"-g {fabric.gpus}: one pod holds {most} GPUs with -app {fabric.asw_per_psw}, "
            f"-npa {fabric.nics_per_asw}, -gps {fabric.gpus_per_server}"
        )
    needed = fabric.sides * fabric.segments * fabric.asw_per_segment
    if fabric.num_asw is not None and fabric.num_asw != needed:
        raise WorkloadError(f"-asn {fabric.num_asw}: these GPUs take {needed} ASWs; leave -asn out or give that")
    if fabric.dual_plane and (fabric.num_psw % 2 or not fabric.dual_tor):
        raise WorkloadError(f"-psn {fabric.num_psw}: two planes need two ToRs and an even number of PSWs")


def _gpu_links(fabric: Fabric, *, first_asw: int) -> Iterator[Link]:
    side = fabric.segments * fabric.asw_per_segment
    per_server, nv_switches = fabric.gpus_per_server, fabric.nv_switches_per_server
    for gpu in range(fabric.gpus):
        first_nv = fabric.gpus + gpu // per_server * nv_switches
        for switch in range(first_nv, first_nv + nv_switches):
            yield Link(src=gpu, dst=switch, wire=fabric.nvlink)
        segment = gpu // (fabric.asw_per_segment * fabric.nics_per_asw)
        place = segment * fabric.asw_per_segment + gpu % fabric.asw_per_segment
        for number in range(fabric.sides):
            yield Link(src=gpu, dst=first_asw + number * side + place, wire=fabric.nic)


def _uplinks(fabric: Fabric, *, first_asw: int) -> Iterator[Link]:
    side = fabric.segments * fabric.asw_per_segment
    first_psw = first_asw + fabric.sides * side
    planes = 2 if fabric.dual_plane else 1
    wire = replace(fabric.nic, bandwidth=fabric.uplink_bandwidth)
    for asw in range(fabric.sides * side):
        plane = asw // side if fabric.dual_plane else 0
        share = fabric.num_psw // planes
        for psw in range(plane * share, (plane + 1) * share):
            yield Link(src=first_asw + asw, dst=first_psw + psw, wire=wire)


# An NVLink-only system: 72 GPUs in one rack or two. Every GPU has one link to each of its rack's 18 NV switches
# (NVIDIA GB200 NVL72: 18 NVLinks per GPU of 100 GB/s in both directions together, here 800Gbps as in a public fork of
# SimAI).

SWITCHES_PER_RACK = 18
NVL72_GPUS = 72


def nvl72(fabric: Fabric) -> Topology:
    """72 GPUs in one rack or two of 36.

    Between two racks each switch has one cable to its twin, half as wide as its links to its GPUs together
    (18 x 800 Gbps = 14400Gbps).
    """
    wire, gpus_per_rack = fabric.nvlink, fabric.gpus_per_server
    if fabric.gpus != NVL72_GPUS:
        raise WorkloadError(f"-g {fabric.gpus}: this template has {NVL72_GPUS}")
    if gpus_per_rack not in (NVL72_GPUS, NVL72_GPUS // 2):
        raise WorkloadError(f"-gps {gpus_per_rack}: NVL has one rack of 72 or two of 36")
    if fabric.nv_switches_per_server != SWITCHES_PER_RACK:
        raise WorkloadError(f"-nsps {fabric.nv_switches_per_server}: a rack of NVL has {SWITCHES_PER_RACK}")
    racks = NVL72_GPUS // gpus_per_rack
    links = list(_rack_links(NVL72_GPUS, gpus_per_rack, wire))
    if racks == 2:
        bits = bandwidth_bits(wire.bandwidth) * gpus_per_rack / 2
        wide = replace(wire, bandwidth=f"{bits / 1e9:g}Gbps")
        first = NVL72_GPUS
        links += [
            Link(src=first + switch, dst=first + SWITCHES_PER_RACK + switch, wire=wide)
            for switch in range(SWITCHES_PER_RACK)
        ]
    return _topology(fabric, links, racks * SWITCHES_PER_RACK)


def _rack_links(num_gpus: int, gpus_per_rack: int, wire: Wire) -> Iterator[Link]:
    for gpu in range(num_gpus):
        first = num_gpus + gpu // gpus_per_rack * SWITCHES_PER_RACK
        for switch in range(first, first + SWITCHES_PER_RACK):
            yield Link(src=gpu, dst=switch, wire=wire)


# Named topologies and their defaults, by the flags of SimAI's gen_Topo_Template.py.
#
# Unlike there, an unknown name, sizes that do not fit and a wrong number of ASWs are errors.

SPECTRUM_X = "Spectrum-X"
HPN = "AlibabaHPN"
DCN = "DCN+"
NVL = "NVL"
# Fields of Fabric that each template sets where the command line does not.
TEMPLATES: dict[str, Mapping[str, Any]] = {
    SPECTRUM_X: {"gpus": 4096, "rail_optimised": True},
    HPN: {"gpus": 15360, "bandwidth": "200Gbps", "nics_per_asw": 128, "num_psw": 120, "asw_per_psw": 240}
    | {"rail_optimised": True, "dual_tor": True},
    DCN: {"gpus": 512, "asw_per_psw": 8, "num_psw": 8},
    NVL: {"gpu_type": "B200", "nvlink_bandwidth": "800Gbps", "gpus": NVL72_GPUS, "gpus_per_server": NVL72_GPUS}
    | {"nv_switches_per_server": SWITCHES_PER_RACK},
}
# Flags that a template would ignore, by the fields they set.
_SWITCHES = {"rail_optimised": "--ro", "dual_tor": "--dt", "dual_plane": "--dp"}
_SIZES = {"num_asw": "-asn", "nics_per_asw": "-npa", "num_psw": "-psn", "uplink_bandwidth": "-apbw"}
IGNORED: dict[str, Mapping[str, str]] = {
    SPECTRUM_X: {"dual_tor": "--dt", "dual_plane": "--dp"},
    DCN: {"rail_optimised": "--ro", "dual_plane": "--dp"},
    NVL: {**_SWITCHES, **_SIZES, "asw_per_psw": "-app"},
}


def build_topology(flags: Mapping[str, Any]) -> Topology:
    """Returns the topology of a template and the fields of Fabric in ``flags`` (None and False: not given);
    WorkloadError when there is none."""
    given = {name: value for name, value in flags.items() if value is not None and value is not False}
    template = given.get("template", "")
    if "template" in given and template not in TEMPLATES:
        raise WorkloadError(f"-topo {template}: unknown; known: {', '.join(TEMPLATES)}")
    ignored = dict(IGNORED.get(template, {}))
    if not template and not (given.get("rail_optimised") and given.get("dual_tor")):
        ignored = {"dual_plane": "--dp without --ro and --dt"}
    for field, flag in ignored.items():
        if field in given:
            raise WorkloadError(f"{flag}: has no meaning for {template or 'a topology without -topo'}")
    defaults = dict(TEMPLATES.get(template, {}))
    if template == HPN and "dual_plane" in given:
        defaults["asw_per_psw"] = 120
    if template == DCN and "dual_tor" in given:
        defaults |= {"bandwidth": "200Gbps", "nics_per_asw": 128}
    fabric = Fabric(**(defaults | given))
    _check_words(fabric)
    return (nvl72 if template == NVL else fabric_topology)(fabric)


def _check_words(fabric: Fabric) -> None:
    """Raises WorkloadError for units and a GPU type that cannot be, before anything is built."""
    for word in (fabric.nvlink_bandwidth, fabric.bandwidth, fabric.uplink_bandwidth):
        bandwidth_bits(word)
    for word in (fabric.nv_latency, fabric.latency):
        latency_seconds(word)
    error_share(fabric.error_rate)
    name = fabric.gpu_type
    if not name or not name.isascii() or not name.replace("-", "").replace("_", "").isalnum():
        raise WorkloadError(f"-gt {name!r}: one word of letters, digits, - and _")


def _name(flags: Fabric) -> str:
    """The file name gen_Topo_Template.py gives."""
    size = f"{flags.gpus}g_{flags.gpus_per_server}gps"
    kind = f"{flags.bandwidth}_{flags.gpu_type}"
    tors = ("DualToR_DualPlane" if flags.dual_plane else "DualToR_SinglePlane") if flags.rail_optimised else "DualToR"
    if flags.template == NVL:
        return f"NVL{flags.gpus}_{size}_{kind}"
    if flags.template == DCN:
        return f"DCN+{'DualToR' if flags.dual_tor else 'SingleToR'}_{size}_{kind}"
    if flags.dual_tor:
        prefix = flags.template or ("Rail_Opti" if flags.rail_optimised else "No_Rail_Opti")
        return f"{prefix}_{size}_{tors}_{kind}"
    if flags.rail_optimised:
        return f"{flags.template or 'Rail_Opti_SingleToR'}_{size}_{kind}"
    return f"No_Rail_Opti_{size}_SingleToR_{kind}"
