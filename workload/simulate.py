"""The verb ``simulate``: a SimAI workload priced by SimAI-Analytical's closed form, or replayed with our curves."""

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from solver.report.files import write_json
from solver.times.op_times import OpTimer
from spec.cluster.cluster import segmented
from spec.errors import ConfigError
from spec.files import atomic_file, folder_of_results, json_output
from spec.program.command import decimal, whole
from spec.program.kinds import MOST_GPUS
from workload.aicb.time_source import DEFAULT_PROFILE, TimeFlags, time_source
from workload.diagnostics import Severity, summary_of
from workload.report import CLOSED_FORM, part_lines, print_lines
from workload.simai.busbw import NIC_GIB, NVLINK_GIB, SHIPPED, read_busbw, read_ratio_tables, simai_network
from workload.simai.check import check_simai
from workload.simai.closed_form import AnalyticalOptions, PrintedTimes, price_simai, row_lines, summary_lines
from workload.simai.format import SimaiGroup, SimaiWorkload
from workload.simai.reader import SimaiFile, read_simai, usable_workload
from workload.simai.replay import ReplayReport, replay_simai

RESULTS = Path("results")
SIMAI_PRICING = "simai"
CURVES = "curves"
GIB_PER_S = (1e-3, 1e6)
"""Slowest and fastest link that anybody means."""


def workload_path(options: argparse.Namespace) -> Path:
    """The file, by its place or by -w; raises ConfigError unless it is given once."""
    given = [path for path in (options.file, options.workload) if path is not None]
    if len(given) != 1:
        raise ConfigError(where="simulate", key="file", value=None, allowed="one SimAI workload, or -w FILE")
    return Path(given[0])


def closed_form_options(options: argparse.Namespace, root: Path) -> AnalyticalOptions:
    """The binary's options, its ratio tables by default the shipped ones below ``root``. Raises ConfigError without
    -g_p_s and -n_p_s, WorkloadError for what it would misread."""
    for flag, value in (("-g_p_s", options.gpus_per_server), ("-n_p_s", options.nic_per_server)):
        if value is None:
            raise ConfigError(where="simulate", key=flag, value=None, allowed="SimAI's closed form needs a number")
    return AnalyticalOptions(
        network=simai_network(
            gpus_per_server=options.gpus_per_server,
            nics_per_server=options.nic_per_server,
            gpu_type=options.g_type,
            nic_type=options.nic_t,
            nvlink_gib=options.nvlink,
            nic_gib=options.nic_busbw,
        ),
        ratios=read_ratio_tables(options.ratio_dir or root / SHIPPED),
        busbw=read_busbw(options.busbw) if options.busbw else None,
        dp_overlap=options.dp_o,
        tp_overlap=options.tp_o,
        ep_overlap=options.ep_o,
        pp_overlap=options.pp_o,
    )


def wants_files(options: argparse.Namespace) -> bool:
    """True where the binary's table is requested."""
    return any(value is not None for value in (options.result, options.result_folder, options.rows))


def write_results(
    options: argparse.Namespace, workload: SimaiWorkload, closed_form: AnalyticalOptions, report: PrintedTimes
) -> Iterator[Path]:
    """Write the rows to --rows, and with -r what the binary writes where it writes it (results/PREFIXEndToEnd.csv,
    made under the working folder). Raises ExportError."""
    if options.rows:
        with atomic_file(options.rows) as handle:
            handle.writelines(f"{line}\n" for line in row_lines(workload, closed_form))
        yield options.rows
    if options.result is None and options.result_folder is None:
        return
    prefix = options.result if options.result is not None else f"{workload_path(options).stem}-"
    path = RESULTS / (options.result_folder or "") / f"{prefix}EndToEnd.csv"
    with folder_of_results(path.parent), atomic_file(path) as handle:
        name = path.name.removesuffix("EndToEnd.csv")
        handle.writelines(f"{line}\n" for line in summary_lines(report, name))
        handle.writelines(f"{line}\n" for line in row_lines(workload, closed_form))
    yield path


def ignored(options: argparse.Namespace) -> Iterator[str]:
    """Returns a line for each option that changes nothing."""
    for flag, value in (("-v", options.visual), ("-l", options.lang)):
        if value is not None:
            yield f"{flag} changes nothing: no chart is drawn here (--json and --rows hold its numbers)"


# The options of ``simulate`` as a replay with our curves.


def replayed(options: argparse.Namespace, workload: SimaiWorkload, root: Path) -> ReplayReport:
    """The workload by the curves of --profile (default: the shipped one). Raises UserError as the readers do."""
    source = time_source(
        TimeFlags(profile=options.profile or root / DEFAULT_PROFILE, cluster=options.cluster, missing=options.missing),
        root,
    )
    shares = {
        SimaiGroup.TP: options.tp_o,
        SimaiGroup.EP: options.ep_o,
        SimaiGroup.DP: options.dp_o,
        SimaiGroup.DP_EP: options.dp_o,
    }
    cluster = segmented(source.cluster, workload.header.all_gpus, options.nvlink_segment, where="simulate")
    return replay_simai(workload, OpTimer.on(cluster, source.cost_model), hidden=shares)


# The verb itself.


def add_simulate(verb: argparse.ArgumentParser) -> None:
    """All options of ``simulate``."""
    add = verb.add_argument
    add("file", type=Path, nargs="?", help="SimAI workload (or -w)")
    add(
        "--pricing",
        choices=(SIMAI_PRICING, CURVES),
        help="simai: the closed form of SimAI-Analytical; curves: our replay (default with --profile)",
    )
    add("--profile", type=Path, help="replay with the curves of this profile")
    add("--cluster", help="hardware spec of configs/clusters (default: the profile's)")
    add("--missing", choices=("error", "modelled"), default="error", help="a missing curve: error or modelled")
    add(
        "--nvlink_segment",
        type=whole(0, MOST_GPUS),
        default=0,
        help="with --profile: GPUs of each NVLink domain of several nodes that the job gets (default: as many as possible)",
    )
    _binary(verb.add_argument_group("as SimAI_analytical has them"))
    add("--ratio_dir", type=Path, help="SimAI's inputs/ratio folder (default: as shipped, configs/simai_ratio)")
    add("--json", type=Path, help="write the parts (seconds) to this file; - is standard output")
    add("--rows", type=Path, help="write what the closed form takes for each row to this file")


def _binary(world: argparse._ArgumentGroup) -> None:
    """Every option of SimAI_analytical, under its names."""
    add = world.add_argument
    add("-w", "--workload", type=Path, help="SimAI workload")
    add("-g", "--gpus", type=whole(1, MOST_GPUS), help="world size (default: the header's all_gpus)")
    add("-g_p_s", "--gpus-per-server", type=whole(1, MOST_GPUS), help="scale-up size")
    add("-n_p_s", "--nic_per_server", type=whole(1, MOST_GPUS), help="NICs per server")
    add("-nv", "--nvlink", type=decimal(*GIB_PER_S), help="NVLink GiB/s per GPU (default: by -g_type)")
    add("-nic", "--nic_busbw", type=decimal(*GIB_PER_S), help="GiB/s per NIC (default: by -nic_t)")
    add("-g_type", "--gpu_type", dest="g_type", help=f"GPU: {', '.join(NVLINK_GIB)}")
    add("-nic_t", "--nic_type", dest="nic_t", default="cx7", help=f"NIC: {', '.join(NIC_GIB)} (default cx7)")
    for axis, what, default in (
        ("dp", "data-parallel", 0.0),
        ("tp", "tensor-parallel", 0.0),
        ("ep", "expert-parallel", 0.0),
        ("pp", "pipeline", 1.0),
    ):
        add(
            *(f"-{axis}_o", f"--{axis}_overlap"),
            dest=f"{axis}_o",
            type=decimal(0.0, 1.0),
            default=default,
            help=f"hidden share of {what} time ({default})",
        )
    add("-busbw", type=Path, help="bus bandwidths by group, small yaml")
    add("-r", "--result", help="prefix: write results/PREFIXEndToEnd.csv as the binary does")
    add("-r_f", "--result_folder", help="folder in results/ for it")
    add("-v", "--visual", help="accepted: no chart is drawn here")
    add("-l", "--lang", help="accepted: no chart is drawn here")


def simulate(options: argparse.Namespace, root: Path) -> int:
    """Prices a SimAI workload file: by our curves, by SimAI's closed form, or both side by side."""
    with json_output(options.json) as options.json:
        return price_file(options, root)


def price_file(options: argparse.Namespace, root: Path) -> int:
    """Prices the file, prints, and writes; returns the exit status."""
    file = read_simai(workload_path(options))
    workload = usable_workload(file, options.gpus)
    for line in ignored(options):
        print(line, file=sys.stderr)
    pricing = options.pricing or (CURVES if options.profile else SIMAI_PRICING)
    if pricing == CURVES:
        replay = replayed(options, workload, root)
        print_lines(part_lines("replay with curves", replay.parts))
        if options.gpus_per_server is None and not wants_files(options):
            write_parts(options, replay.parts)
            return warn(file, ())
        print()
    closed_form = closed_form_options(options, root)
    report = price_simai(workload, closed_form)
    write_parts(options, report.parts, warnings=list(report.warnings))
    print_lines(part_lines(CLOSED_FORM, report.parts))
    for path in write_results(options, workload, closed_form, report):
        print(f"wrote {path}")
    return warn(file, report.warnings)


def write_parts(options: argparse.Namespace, parts: Mapping[str, float], **more: object) -> None:
    """Writes the seconds of each part and of the step to --json."""
    if options.json:
        seconds = {f"{name}_s": part_s for name, part_s in parts.items()}
        write_json(options.json, {**seconds, "step_s": sum(parts.values()), **more})


def warn(file: SimaiFile, warnings: Sequence[str]) -> int:
    """Prints what is wrong with the file and what its pricing has to say; returns 0."""
    defects = [each for each in check_simai(file) if each.severity is not Severity.NOTE]
    for warning in (*summary_of(defects, per_kind=1), *warnings):
        print(f"warning: {warning}", file=sys.stderr)
    return 0
