"""The options of ``simulate`` as SimAI-Analytical's closed form, and the files that it writes."""

import argparse
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from solver.times.op_times import Pricer
from spec.cluster.cluster import segmented
from spec.errors import ConfigError, ExportError
from spec.files import replaced_file
from workload.aicb.time_source import DEFAULT_PROFILE, TimeFlags, time_source
from workload.simai.busbw import SHIPPED, read_busbw, read_ratio_tables, simai_network
from workload.simai.closed_form import AnalyticalOptions, AnalyticalReport, row_lines, summary_lines
from workload.simai.format import SimaiGroup, SimaiWorkload
from workload.simai.replay import ReplayReport, replay_simai

RESULTS = Path("results")


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
            raise ConfigError(
                where="simulate", key=flag, value=None, allowed="SimAI's closed form needs a number"
            )
    return AnalyticalOptions(
        network=simai_network(
            gpus_per_server=options.gpus_per_server,
            nics_per_server=options.nic_per_server,
            gpu_type=options.g_type,
            nic_type=options.nic_t,
            nvlink_gib=options.nvlink,
            nic_gib=options.nic_busbw,
        ),
        gpus=options.gpus,
        ratios=read_ratio_tables(options.ratio_dir or root / SHIPPED),
        busbw=read_busbw(options.busbw) if options.busbw else None,
        dp_overlap=options.dp_o,
        tp_overlap=options.tp_o,
        ep_overlap=options.ep_o,
        pp_overlap=options.pp_o,
    )


def wants_files(options: argparse.Namespace) -> bool:
    """Whether the binary's table is asked for."""
    return any(value is not None for value in (options.result, options.result_folder, options.rows))


def write_results(
    options: argparse.Namespace, workload: SimaiWorkload, asked: AnalyticalOptions, report: AnalyticalReport
) -> Iterator[Path]:
    """Write the rows to --rows, and with -r what the binary writes where it writes it (results/PREFIXEndToEnd.csv,
    made under the working folder). Raises ExportError."""
    if options.rows:
        with replaced_file(options.rows) as handle:
            handle.writelines(f"{line}\n" for line in row_lines(workload, asked))
        yield options.rows
    if options.result is None and options.result_folder is None:
        return
    prefix = options.result if options.result is not None else f"{workload_path(options).stem}-"
    path = RESULTS / (options.result_folder or "") / f"{prefix}EndToEnd.csv"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ExportError(f"{path.parent}: cannot be made: {error.strerror}") from error
    with replaced_file(path) as handle:
        name = path.name.removesuffix("EndToEnd.csv")
        handle.writelines(f"{line}\n" for line in summary_lines(report.printed, name))
        handle.writelines(f"{line}\n" for line in row_lines(workload, asked))
    yield path


def ignored(options: argparse.Namespace) -> Iterator[str]:
    """What was typed and changes nothing."""
    for flag, value in (("-v", options.visual), ("-l", options.lang)):
        if value is not None:
            yield f"{flag} changes nothing: no chart is drawn here (--json and --rows hold its numbers)"


# The options of ``simulate`` as a replay with our curves.


def replayed(options: argparse.Namespace, workload: SimaiWorkload, root: Path) -> ReplayReport:
    """The workload by the curves of --profile (default: the shipped one). Raises UserError as the readers do."""
    if options.gpus is not None:
        workload = replace(workload, header=replace(workload.header, all_gpus=options.gpus))
    source = time_source(
        TimeFlags(
            profile=options.profile or root / DEFAULT_PROFILE,
            cluster=options.cluster,
            missing=options.missing,
        ),
        root,
    )
    shares = {
        SimaiGroup.TP: options.tp_o,
        SimaiGroup.EP: options.ep_o,
        SimaiGroup.DP: options.dp_o,
        SimaiGroup.DP_EP: options.dp_o,
    }
    cluster = segmented(source.cluster, workload.header.all_gpus, options.nvlink_segment, where="simulate")
    return replay_simai(workload, Pricer.on(cluster, source.cost_model), hidden=shares)
