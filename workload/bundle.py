"""Everything SimAI needs to run a plan, in one folder, with our figures beside.

workload.txt (and what it cannot say), a topology of the cluster's size, busbw.yaml, run_simai.sh with the
command lines of SimAI-Analytical and of the ns-3 front end, README.md.
"""

from dataclasses import dataclass
from pathlib import Path

from solver.plans.plan_table import Plan
from solver.problem.problem import Problem
from solver.times.op_times import OpTimer
from spec.arrays import ints
from spec.cluster.cluster import ClusterSpec
from spec.collectives import Collective, busbw_factor
from spec.files import atomic_file, folder_of_results
from spec.units import GIB
from workload.diagnostics import WorkloadError
from workload.report import CLOSED_FORM, part_lines
from workload.simai.busbw import BusBandwidths, RatioTables, SimaiNetwork, simai_network, write_busbw
from workload.simai.closed_form import AnalyticalOptions, price_simai
from workload.simai.export import SimaiExport, export_works, header_of, rows_of
from workload.simai.format import PREFIXES, SimaiGroup, SimaiHeader, SimaiWorkload
from workload.simai.replay import AXES, collective_s, compare, layout_of
from workload.stage_work import StageWork, slowest, stage_works
from workload.topology.templates import (
    ASW_PER_PSW,
    NICS_PER_ASW,
    NVL,
    NVL72_GPUS,
    SPECTRUM_X,
    SWITCHES_PER_RACK,
    build_topology,
)
from workload.topology.topology import Topology, write_topology

# busbw.yaml holds one figure a group and collective: that of a large array.
BUSBW_BYTES = 2**30
NO_FIGURES = ("none: the compute times are assumed, not priced",)
GBIT = 8 / 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """The files written, and what the workload leaves out."""

    paths: tuple[Path, ...]
    exported: SimaiExport


def export_bundle(
    problem: Problem,
    plan: Plan,
    folder: Path,
    ratios: RatioTables,
    *,
    work: StageWork | None = None,
    times_known: bool = True,
) -> Bundle:
    """Write the bundle of ``plan`` (of its slowest stage unless ``work`` is given).

    ``ratios`` are SimAI's, for the figures it will print. ``times_known`` False leaves figures out: a cost model of
    fixed times prices nothing. Raises ExportError when the folder cannot be made or the format cannot be met."""
    with folder_of_results(folder):
        work = work or slowest(stage_works(problem, plan))
        header = header_of(plan, work)
        exported = export_works(plan, (work,), folder / "workload.txt", strict=False)
        paths = list(exported.paths)
        topology = cluster_topology(problem.cluster, plan.world_size)
        network = simai_network_of(problem.cluster)
        paths.append(folder / topology.file_name)
        write_topology(paths[-1], topology)
        paths.append(folder / "busbw.yaml")
        write_busbw(paths[-1], busbw_of(header, problem.op_timer if times_known else None, problem.cluster.name))
        commands = command_lines(header, topology.file_name, network)
        paths.append(folder / "run_simai.sh")
        with atomic_file(paths[-1]) as handle:
            handle.write(
                '#!/bin/sh\n# Run from the root of a SimAI checkout, this folder in $BUNDLE.\nset -e\n: "${BUNDLE:?the folder of this script}"\n'
            )
            handle.writelines(f"{line}\n" for line in commands)
        paths.append(folder / "README.md")
        with atomic_file(paths[-1]) as handle:
            handle.writelines(
                f"{line}\n"
                for line in (
                    *_readme((problem, plan, work), exported, commands),
                    *(_figures((problem, plan, work), ratios) if times_known else NO_FIGURES),
                )
            )
        return Bundle(paths=tuple(paths), exported=exported)


def simai_network_of(cluster: ClusterSpec) -> SimaiNetwork:
    """The cluster's line rates in the simulator's terms (GiB/s one way).

    A NIC for every GPU, at its share of the rate where GPUs have to share one: with fewer NICs than
    tensor-parallel ranks SimAI divides to 0 and takes communication for free.
    """
    ranks = cluster.scale_up_ranks
    nics = max(cluster.nics_per_node * ranks // cluster.gpus_per_node, ranks)
    return simai_network(
        gpus_per_server=ranks,
        nics_per_server=nics,
        nvlink_gib=cluster.domains[0].bandwidth / GIB,
        nic_gib=cluster.domains[-1].bandwidth * ranks / nics / GIB,
    )


def cluster_topology(cluster: ClusterSpec, world_size: int) -> Topology:
    """A rack of 72 GPUs for a world within one, else rail-optimised servers or racks: never fewer GPUs than the
    workload has ranks. The pod's switches have as many ports as that takes."""
    size = cluster.server_ranks
    racks = size == NVL72_GPUS
    switches = SWITCHES_PER_RACK if racks else 1
    flags = {
        "template": NVL,
        "gpu_type": cluster.gpu.name.split("-")[0],
        "nvlink_bandwidth": f"{round(cluster.domains[0].bandwidth * GBIT / switches)}Gbps",
    }
    if racks and world_size <= size:
        return build_topology(flags)
    servers = -(-world_size // size)
    segments = -(-servers // NICS_PER_ASW)
    fabric = {
        "template": SPECTRUM_X,
        "gpus": servers * size,
        "gpus_per_server": size,
        "nv_switches_per_server": switches,
        "bandwidth": f"{round(cluster.domains[-1].bandwidth * GBIT)}Gbps",
        "asw_per_psw": max(size * segments, ASW_PER_PSW),
    }
    return build_topology(flags | fabric)


def busbw_of(header: SimaiHeader, op_timer: OpTimer | None, name: str) -> BusBandwidths:
    """Bus bandwidth (GiB/s) of 1 GiB in each group of more than one, by the curves; nothing without them."""
    result: dict[tuple[SimaiGroup, Collective], float] = {}
    if op_timer is None:
        return BusBandwidths(name=name, groups=result)
    layout = layout_of(header)
    for group, axis in AXES.items():
        ranks = header.group_ranks(group)
        if ranks < 2 or (group is SimaiGroup.DP_EP and header.ep == 1):
            continue
        for kind in PREFIXES.values():
            if (kind is Collective.ALL_TO_ALL) == (group is SimaiGroup.EP):
                seconds = collective_s(op_timer, layout, kind, axis, BUSBW_BYTES)
                if seconds > 0:
                    result[(group, kind)] = BUSBW_BYTES * float(busbw_factor(kind, ranks)) / seconds / GIB
    return BusBandwidths(name=name, groups=result, pipeline_gib=_hop_gib(header, op_timer))


def _hop_gib(header: SimaiHeader, op_timer: OpTimer) -> float | None:
    if header.pp == 1:
        return None
    seconds = float(op_timer.p2p(layout_of(header), ints(header.pp_comm_bytes)).seconds[0])
    return header.pp_comm_bytes / seconds / GIB if seconds > 0 else None


def command_lines(header: SimaiHeader, topology: str, network: SimaiNetwork) -> list[str]:
    """SimAI-Analytical with the cluster's line rates, to the last digit of a C++ float, and the ns-3 front end on the
    topology.

    Source: SimAI's user guides (options -w -n -c -t of SimAI_simulator; NVLS off, its default, as SimAI-Analytical
    has none).
    """
    return [
        "mkdir -p results",
        f'./bin/SimAI_analytical -w "$BUNDLE/workload.txt" -g {header.all_gpus} '
        f"-g_p_s {network.gpus_per_server} -n_p_s {network.nics_per_server} -nv {network.nvlink_gib:.9g} "
        f"-nic {network.nic_gib:.9g} -r bundle-",
        'AS_NVLS_ENABLE=0 ./bin/SimAI_simulator -t 16 -w "$BUNDLE/workload.txt" '
        f'-n "$BUNDLE/{topology}" -c astra-sim-alibabacloud/inputs/config/SimAI.conf',
    ]


def _readme(what: tuple[Problem, Plan, StageWork], exported: SimaiExport, commands: list[str]) -> list[str]:
    problem, plan, work = what
    return [
        f"# {problem.model.name} on {plan.world_size} x {problem.cluster.gpu.name}",
        "",
        f"Plan: {plan.label()} ({plan.preset}), {problem.job.global_batch_sequences} sequences of "
        f"{problem.job.seq_len} tokens a step, {exported.rows} rows of stage {work.position}.",
        "",
        "`BUNDLE=<this folder> sh run_simai.sh` in a SimAI checkout runs:",
        "",
        *(f"    {line}" for line in commands),
        "",
        "The first reads SimAI's ratio tables under the folder it runs in and writes results/bundle-EndToEnd.csv; "
        "the second writes its log under /etc/astra-sim and must be allowed to. SimAI_analytical has lost its "
        "option for busbw.yaml: `run_workload.py simulate workload.txt -busbw busbw.yaml` has it.",
        "",
        "## What the workload leaves out",
        *(exported.beyond_lines() or ["nothing"]),
        "",
        "## Our figures",
    ]


def _figures(what: tuple[Problem, Plan, StageWork], ratios: RatioTables) -> list[str]:
    """The way from the replay to the step, and what SimAI_analytical will print."""
    problem, plan, work = what
    header = header_of(plan, work)
    file = SimaiWorkload(header=header, rows=rows_of(work, header, plan))
    lines = ["", *(f"    {line}" for line in compare(problem, plan).lines()), ""]
    options = AnalyticalOptions(network=simai_network_of(problem.cluster), ratios=ratios)
    try:
        report = price_simai(file, options)
    except WorkloadError as error:
        return [*lines, f"SimAI's closed form: {error}"]
    lines += ["SimAI's closed form, as SimAI_analytical prints it with its ratio tables:"]
    lines += ["", *(f"    {line}" for line in part_lines(CLOSED_FORM, report.parts)), ""]
    return [*lines, *(f"- {warning}" for warning in report.warnings)]
