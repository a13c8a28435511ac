"""Bus bandwidth of each group as SimAI-Analytical derives it from a server's links.

Source: SimAI 1.6/1.7, ``Layer::compute_time`` (how a group lies on servers, all integer divisions) and
``calculateBusBw`` in calbusbw.cc (ring and all-to-all; the algorithm is pinned to ring). Bandwidths are
GiB/s whatever its help says.
"""

from dataclasses import dataclass

from spec.collectives import Collective
from workload.simai.closed_form.single_precision import single
from workload.simai.format import SimaiHeader
from workload.simai.tokens import SimaiGroup
from workload.workload_error import WorkloadError

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
    """How the simulator sees a group: ``nodes`` of ``gpus`` members that share ``nics``; ``tp_fills_server``
    when a tensor-parallel group takes whole servers."""

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
    """A network from the simulator's options; a given bandwidth goes before a type.

    Raises WorkloadError for unknown types and for numbers that are not positive; the simulator takes an
    unknown type for free communication.
    """
    if nvlink_gib is None:
        if gpu_type is None:
            raise WorkloadError("the NVLink bandwidth is unknown: give -nv (GiB/s per GPU) or -g_type")
        nvlink_gib = _known(NVLINK_GIB, gpu_type.upper(), "-g_type")
    if nic_gib is None:
        nic_gib = _known(NIC_GIB, nic_type.lower(), "-nic_t")
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
    """How a group of ``ranks`` lies on servers. Data-parallel ranks count as one server each, even where
    they share one."""
    tp, gpus, nics = header.tp, network.gpus_per_server, network.nics_per_server
    fills = tp >= gpus
    if group is SimaiGroup.TP:
        nodes, inside = (1, tp) if tp <= gpus else (tp // gpus, gpus)
    elif group is SimaiGroup.EP:
        nodes = 1 if tp * ranks <= gpus else tp * ranks // gpus
        inside = max(gpus // tp, 1)
        if nodes > 1:
            nics = nics // gpus if tp > gpus else nics // tp
    else:
        taken = tp if group is SimaiGroup.DP else tp * header.ep
        nodes, inside = ranks, max(gpus // taken, 1)
        nics = nics // min(taken, gpus)
    return GroupShape(nodes=nodes, gpus=inside, nics=nics, tp_fills_server=fills)


def bus_bandwidth_gib(collective: Collective, shape: GroupShape, network: SimaiNetwork) -> tuple[float, bool]:
    """Bus bandwidth (GiB/s) of a group and whether its NVLinks are the bottleneck.

    Raises WorkloadError when no NIC is left for the group: the simulator then counts its communication
    as free.
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


def _known(table: dict[str, float], name: str, flag: str) -> float:
    if name not in table:
        raise WorkloadError(f"{flag} {name}: unknown; known: {', '.join(table)}")
    return table[name]
