"""Named topologies and their defaults, by the flags of SimAI's gen_Topo_Template.py.

Unlike there, an unknown name, sizes that do not fit and a wrong number of ASWs are errors.
"""

from dataclasses import dataclass, replace

from workload.topology.fabric import Fabric, FabricWires, fabric_topology
from workload.topology.nvl import NVL72_GPUS, NVL576_GPUS, NVL576_RACK, nvl72, nvl576
from workload.topology.topology import Topology, Wire, bandwidth_bits, error_share, latency_seconds
from workload.workload_error import WorkloadError

SPECTRUM_X = "Spectrum-X"
HPN = "AlibabaHPN"
DCN = "DCN+"
NVL = "NVL"
NVL576 = "NVL576"
TEMPLATES = (SPECTRUM_X, HPN, DCN, NVL, NVL576)

NICS_PER_ASW = 64
ASW_PER_PSW = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class TopologyFlags:
    """The flags as given; None takes the template's default. Bandwidths and latencies are words with a unit."""

    template: str | None = None
    rail_optimised: bool = False
    dual_tor: bool = False
    dual_plane: bool = False
    gpus: int | None = None
    gpus_per_server: int | None = None
    nv_switches_per_server: int | None = None
    gpu_type: str | None = None
    nvlink_bandwidth: str | None = None
    nv_latency: str | None = None
    bandwidth: str | None = None
    latency: str | None = None
    num_asw: int | None = None
    nics_per_asw: int | None = None
    num_psw: int | None = None
    uplink_bandwidth: str | None = None
    asw_per_psw: int | None = None
    error_rate: str | None = None


# What every template starts from, then what each one changes.
_BASE = TopologyFlags(
    gpus=32,
    gpus_per_server=8,
    nv_switches_per_server=1,
    gpu_type="H100",
    nvlink_bandwidth="2880Gbps",
    nv_latency="0.000025ms",
    bandwidth="400Gbps",
    latency="0.0005ms",
    nics_per_asw=NICS_PER_ASW,
    num_psw=64,
    uplink_bandwidth="400Gbps",
    asw_per_psw=ASW_PER_PSW,
    error_rate="0",
)
_RACK = {"gpu_type": "B200", "nvlink_bandwidth": "800Gbps"}


def build_topology(flags: TopologyFlags) -> Topology:
    """The topology that ``flags`` ask for; WorkloadError when there is none."""
    if flags.template is not None and flags.template not in TEMPLATES:
        raise WorkloadError(f"-topo {flags.template}: unknown; known: {', '.join(TEMPLATES)}")
    _check_combination(flags)
    full = _filled(flags)
    _check_words(full)
    nvlink = Wire(
        bandwidth=full.nvlink_bandwidth or "", latency=full.nv_latency or "", error_rate=full.error_rate or ""
    )
    gpu_type = full.gpu_type or ""
    if full.template == NVL:
        _exactly("-g", full.gpus, NVL72_GPUS)
        return nvl72(
            nvlink, gpus_per_rack=full.gpus_per_server or 0, file_name=_name(full), gpu_type=gpu_type
        )
    if full.template == NVL576:
        _exactly("-g", full.gpus, NVL576_GPUS)
        _exactly("-gps", full.gpus_per_server, NVL576_RACK)
        return nvl576(nvlink, file_name=_name(full), gpu_type=gpu_type)
    nic = replace(nvlink, bandwidth=full.bandwidth or "", latency=full.latency or "")
    wires = FabricWires(nvlink=nvlink, nic=nic, uplink=replace(nic, bandwidth=full.uplink_bandwidth or ""))
    return fabric_topology(_fabric(full), wires, file_name=_name(full), gpu_type=gpu_type)


def _filled(flags: TopologyFlags) -> TopologyFlags:
    """Every None replaced by the template's default, and the shape the template stands for."""
    defaults = {name: getattr(_BASE, name) for name in TopologyFlags.__dataclass_fields__}
    shape: dict[str, object] = {}
    if flags.template == SPECTRUM_X:
        defaults |= {"gpus": 4096}
        shape = {"rail_optimised": True}
    elif flags.template == HPN:
        defaults |= {"gpus": 15360, "bandwidth": "200Gbps", "nics_per_asw": 128, "num_psw": 120}
        defaults |= {"asw_per_psw": 120 if flags.dual_plane else 240}
        shape = {"rail_optimised": True, "dual_tor": True}
    elif flags.template == DCN:
        defaults |= {"gpus": 512, "asw_per_psw": 8, "num_psw": 8}
        if flags.dual_tor:
            defaults |= {"bandwidth": "200Gbps", "nics_per_asw": 128}
    elif flags.template == NVL:
        defaults |= {**_RACK, "gpus": NVL72_GPUS, "gpus_per_server": NVL72_GPUS}
    elif flags.template == NVL576:
        defaults |= {**_RACK, "gpus": NVL576_GPUS, "gpus_per_server": NVL576_RACK}
    given = {name: getattr(flags, name) for name in defaults}
    merged = {name: defaults[name] if value is None else value for name, value in given.items()}
    return TopologyFlags(**{**merged, **shape})


def _check_combination(flags: TopologyFlags) -> None:
    """Refuse switches that a template would ignore."""
    refused = {
        SPECTRUM_X: {"--dt": flags.dual_tor, "--dp": flags.dual_plane},
        HPN: {},
        DCN: {"--ro": flags.rail_optimised, "--dp": flags.dual_plane},
    }
    if flags.template in (NVL, NVL576):
        ignored: dict[str, object] = {
            "--ro": flags.rail_optimised,
            "--dt": flags.dual_tor,
            "--dp": flags.dual_plane,
            "-asn": flags.num_asw,
            "-npa": flags.nics_per_asw,
            "-psn": flags.num_psw,
            "-apbw": flags.uplink_bandwidth,
            "-app": flags.asw_per_psw,
            "-nsps": flags.nv_switches_per_server,
        }
    elif flags.template is None:
        ignored = {
            "--dp without --ro and --dt": flags.dual_plane and not (flags.rail_optimised and flags.dual_tor)
        }
    else:
        ignored = dict(refused[flags.template])
    for flag, given in ignored.items():
        if given is not None and given is not False:
            raise WorkloadError(f"{flag}: has no meaning for {flags.template or 'a topology without -topo'}")


def _check_words(flags: TopologyFlags) -> None:
    """Units and the GPU type, before anything is built."""
    for word in (flags.nvlink_bandwidth, flags.bandwidth, flags.uplink_bandwidth):
        bandwidth_bits(word or "")
    for word in (flags.nv_latency, flags.latency):
        latency_seconds(word or "")
    error_share(flags.error_rate or "")
    name = flags.gpu_type or ""
    if not name or not name.isascii() or not name.replace("-", "").replace("_", "").isalnum():
        raise WorkloadError(f"-gt {name!r}: one word of letters, digits, - and _")


def _fabric(flags: TopologyFlags) -> Fabric:
    return Fabric(
        rail=flags.rail_optimised,
        dual_tor=flags.dual_tor,
        dual_plane=flags.dual_plane,
        num_gpus=flags.gpus or 0,
        gpus_per_server=flags.gpus_per_server or 0,
        nv_switches_per_server=flags.nv_switches_per_server or 0,
        nics_per_asw=flags.nics_per_asw or 0,
        num_psw=flags.num_psw or 0,
        asw_per_psw=flags.asw_per_psw or 0,
        num_asw=flags.num_asw,
    )


def _name(flags: TopologyFlags) -> str:
    """The file name gen_Topo_Template.py gives."""
    size = f"{flags.gpus}g_{flags.gpus_per_server}gps"
    kind = f"{flags.bandwidth}_{flags.gpu_type}"
    tors = (
        ("DualToR_DualPlane" if flags.dual_plane else "DualToR_SinglePlane")
        if flags.rail_optimised
        else "DualToR"
    )
    if flags.template in (NVL, NVL576):
        return f"NVL{flags.gpus}_{size}_{kind}"
    if flags.template == DCN:
        return f"DCN+{'DualToR' if flags.dual_tor else 'SingleToR'}_{size}_{kind}"
    if flags.dual_tor:
        prefix = flags.template or ("Rail_Opti" if flags.rail_optimised else "No_Rail_Opti")
        return f"{prefix}_{size}_{tors}_{kind}"
    if flags.rail_optimised:
        return f"{flags.template or 'Rail_Opti_SingleToR'}_{size}_{kind}"
    return f"No_Rail_Opti_{size}_SingleToR_{kind}"


def _exactly(flag: str, value: int | None, wanted: int) -> None:
    if value != wanted:
        raise WorkloadError(f"{flag} {value}: this template has {wanted}")
