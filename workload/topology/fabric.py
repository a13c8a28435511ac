"""Two-layer Ethernet fabrics over servers with NV switches: rail-optimised or not, one or two ToRs.

GPUs of a segment share ASWs (access switches); every ASW reaches PSWs (pod switches). Rail-optimised: GPU k
of every server of a segment hangs on the segment's k-th ASW (Spectrum-X; AlibabaHPN with two NIC ports on two
sets of ASWs, whose planes may be apart). Otherwise consecutive GPUs share an ASW (DCN+). One pod only.

Layout and capacities: SimAI's gen_Topo_Template.py and its README.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from workload.topology.topology import Link, Topology, Wire
from workload.workload_error import WorkloadError


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """The size and shape of a fabric.

    ``nics_per_asw`` GPU ports on one ASW, ``num_psw`` PSWs, ``asw_per_psw`` ASWs that one PSW can take (per
    plane), ``num_asw`` only to be checked (None: whatever is needed).
    """

    rail: bool
    dual_tor: bool = False
    dual_plane: bool = False
    num_gpus: int
    gpus_per_server: int
    nv_switches_per_server: int
    nics_per_asw: int
    num_psw: int
    asw_per_psw: int
    num_asw: int | None = None

    @property
    def asw_per_segment(self) -> int:
        """ASWs of one segment on one side."""
        return self.gpus_per_server if self.rail else 1

    @property
    def segments(self) -> int:
        """Segments that hold all GPUs."""
        return -(-self.num_gpus // (self.asw_per_segment * self.nics_per_asw))

    @property
    def sides(self) -> int:
        """2 when every GPU has ports on two ASWs."""
        return 2 if self.dual_tor else 1

    @property
    def most_segments(self) -> int:
        """Segments that the PSWs' ports can take."""
        if self.rail:
            return self.asw_per_psw // self.gpus_per_server
        return self.asw_per_psw // self.sides


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricWires:
    """Links from GPU to NV switch, from NIC to ASW, and from ASW to PSW."""

    nvlink: Wire
    nic: Wire
    uplink: Wire


def fabric_topology(fabric: Fabric, wires: FabricWires, *, file_name: str, gpu_type: str) -> Topology:
    """All nodes and links of ``fabric``. Raises WorkloadError for sizes that do not fit."""
    check_fabric(fabric)
    num_asw = fabric.sides * fabric.segments * fabric.asw_per_segment
    num_nv = fabric.num_gpus // fabric.gpus_per_server * fabric.nv_switches_per_server
    return Topology(
        file_name=file_name,
        gpu_type=gpu_type,
        num_gpus=fabric.num_gpus,
        gpus_per_server=fabric.gpus_per_server,
        num_nv_switches=num_nv,
        num_other_switches=num_asw + fabric.num_psw,
        links=(
            *_gpu_links(fabric, wires, first_asw=fabric.num_gpus + num_nv),
            *_uplinks(fabric, wires.uplink, first_asw=fabric.num_gpus + num_nv),
        ),
    )


def check_fabric(fabric: Fabric) -> None:
    """Raise WorkloadError when the parts do not fit together."""
    sizes = {
        "-g": fabric.num_gpus,
        "-gps": fabric.gpus_per_server,
        "-nsps": fabric.nv_switches_per_server,
        "-npa": fabric.nics_per_asw,
        "-psn": fabric.num_psw,
        "-app": fabric.asw_per_psw,
    }
    for flag, value in sizes.items():
        if not 1 <= value <= 2**20:
            raise WorkloadError(f"{flag} {value}: must be 1 to {2**20}")
    if fabric.num_gpus % fabric.gpus_per_server:
        raise WorkloadError(
            f"-g {fabric.num_gpus}: must be a multiple of the server's {fabric.gpus_per_server} GPUs (-gps)"
        )
    if fabric.segments > fabric.most_segments:
        most = fabric.most_segments * fabric.asw_per_segment * fabric.nics_per_asw
        raise WorkloadError(
            f"-g {fabric.num_gpus}: one pod holds {most} GPUs with -app {fabric.asw_per_psw}, "
            f"-npa {fabric.nics_per_asw}, -gps {fabric.gpus_per_server}"
        )
    needed = fabric.sides * fabric.segments * fabric.asw_per_segment
    if fabric.num_asw is not None and fabric.num_asw != needed:
        raise WorkloadError(
            f"-asn {fabric.num_asw}: these GPUs take {needed} ASWs; leave -asn out or give that"
        )
    if fabric.dual_plane and (fabric.num_psw % 2 or not fabric.dual_tor):
        raise WorkloadError(f"-psn {fabric.num_psw}: two planes need two ToRs and an even number of PSWs")


def _gpu_links(fabric: Fabric, wires: FabricWires, *, first_asw: int) -> Iterator[Link]:
    side = fabric.segments * fabric.asw_per_segment
    per_server, nv_switches = fabric.gpus_per_server, fabric.nv_switches_per_server
    for gpu in range(fabric.num_gpus):
        first_nv = fabric.num_gpus + gpu // per_server * nv_switches
        for switch in range(first_nv, first_nv + nv_switches):
            yield Link(src=gpu, dst=switch, wire=wires.nvlink)
        segment = gpu // (fabric.asw_per_segment * fabric.nics_per_asw)
        place = segment * fabric.asw_per_segment + gpu % fabric.asw_per_segment
        for number in range(fabric.sides):
            yield Link(src=gpu, dst=first_asw + number * side + place, wire=wires.nic)


def _uplinks(fabric: Fabric, wire: Wire, *, first_asw: int) -> Iterator[Link]:
    side = fabric.segments * fabric.asw_per_segment
    first_psw = first_asw + fabric.sides * side
    planes = 2 if fabric.dual_plane else 1
    for asw in range(fabric.sides * side):
        plane = asw // side if fabric.dual_plane else 0
        share = fabric.num_psw // planes
        for psw in range(plane * share, (plane + 1) * share):
            yield Link(src=first_asw + asw, dst=first_psw + psw, wire=wire)
