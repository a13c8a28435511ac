"""NVLink-only systems: one or two racks of 72 GPUs, and 576 GPUs over two layers of NV switches.

Sizes as a public fork of SimAI generates them: every GPU has one link to each of its rack's 18 NV switches
(NVIDIA GB200 NVL72: 18 NVLinks per GPU of 100 GB/s in both directions together, here 800Gbps as in that fork).
"""

from collections.abc import Iterator

from workload.topology.topology import Link, Topology, Wire, bandwidth_bits
from workload.workload_error import WorkloadError

SWITCHES_PER_RACK = 18
NVL72_GPUS = 72
NVL576_GPUS = 576
NVL576_RACK = 36
PLANES = 9
SWITCHES_PER_PLANE = 36


def nvl72(wire: Wire, *, gpus_per_rack: int, file_name: str, gpu_type: str) -> Topology:
    """72 GPUs in one rack (gpus_per_rack 72) or two (36).

    Between two racks each switch has one cable to its twin, half as wide as its links to its GPUs together
    (18 x 800 Gbps = 14400Gbps).
    """
    if gpus_per_rack not in (NVL72_GPUS, NVL72_GPUS // 2):
        raise WorkloadError(f"-gps {gpus_per_rack}: NVL has one rack of 72 or two of 36")
    racks = NVL72_GPUS // gpus_per_rack
    links = list(_rack_links(NVL72_GPUS, gpus_per_rack, wire))
    if racks == 2:
        bits = bandwidth_bits(wire.bandwidth) * gpus_per_rack / 2
        wide = Wire(bandwidth=f"{bits / 1e9:g}Gbps", latency=wire.latency, error_rate=wire.error_rate)
        first = NVL72_GPUS
        links += [
            Link(src=first + switch, dst=first + SWITCHES_PER_RACK + switch, wire=wide)
            for switch in range(SWITCHES_PER_RACK)
        ]
    return Topology(
        file_name=file_name,
        gpu_type=gpu_type,
        num_gpus=NVL72_GPUS,
        gpus_per_server=gpus_per_rack,
        num_nv_switches=racks * SWITCHES_PER_RACK,
        num_other_switches=0,
        links=tuple(links),
    )


def nvl576(wire: Wire, *, file_name: str, gpu_type: str) -> Topology:
    """576 GPUs in 16 racks of 36, whose 288 switches meet in 9 planes of 36 switches.

    Assumption: switches 2p and 2p+1 of every rack belong to plane p. A rack switch reaches all 36 switches of its
    plane at the width of a GPU link, so that what comes from its 36 GPUs can leave the rack.
    """
    racks = NVL576_GPUS // NVL576_RACK
    first_rack_switch = NVL576_GPUS
    first_plane_switch = first_rack_switch + racks * SWITCHES_PER_RACK
    links = list(_rack_links(NVL576_GPUS, NVL576_RACK, wire))
    for switch in range(racks * SWITCHES_PER_RACK):
        plane = switch % SWITCHES_PER_RACK // (SWITCHES_PER_RACK // PLANES)
        start = first_plane_switch + plane * SWITCHES_PER_PLANE
        links += [
            Link(src=first_rack_switch + switch, dst=target, wire=wire)
            for target in range(start, start + SWITCHES_PER_PLANE)
        ]
    return Topology(
        file_name=file_name,
        gpu_type=gpu_type,
        num_gpus=NVL576_GPUS,
        gpus_per_server=NVL576_RACK,
        num_nv_switches=racks * SWITCHES_PER_RACK + PLANES * SWITCHES_PER_PLANE,
        num_other_switches=0,
        links=tuple(links),
    )


def _rack_links(num_gpus: int, gpus_per_rack: int, wire: Wire) -> Iterator[Link]:
    for gpu in range(num_gpus):
        first = num_gpus + gpu // gpus_per_rack * SWITCHES_PER_RACK
        for switch in range(first, first + SWITCHES_PER_RACK):
            yield Link(src=gpu, dst=switch, wire=wire)
