"""The verbs of run_workload.py that this package does: their options and what runs them.

torch is imported when a verb runs, so that --help is quick.
"""

import argparse
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from runner.compare_verb import add_compare, compare
from runner.launch.verb import add_hosts, add_launch, launch, look
from runner.replay.program import DegreeOptions, ReplayTask, task_from_files, task_from_request
from runner.verify_verb import add_verify, verify
from solver.problem.request import Request
from solver.report.html import REPORT, report_file
from spec.errors import ConfigError
from spec.files import STDOUT, check_outputs, json_output
from spec.frameworks import framework_names
from spec.program.command import byte_count, comma_separated, decimal, non_empty, step_tokens, whole, without_interrupts
from spec.program.kinds import MOST_COUNT, MOST_EPOCHS, MOST_GPUS, MOST_SEQUENCE_TOKENS, MOST_STEP_TOKENS
from spec.readers.read_config import add_config, assumption_lines, read_config
from spec.settings.job import DEFAULT_FRAMEWORK, job_settings
from spec.settings.setting import parse_settings
from workload.report import print_lines
from workload.traffic.ranks import DEFAULT_ORDER
from workload.verbs import WorkloadVerb

if TYPE_CHECKING:
    from profiler.distributed.rank_layout import RankLayout
    from runner.replay.run import ReplayOptions


MOST_SECONDS = 1e6
DEGREES = ("tp", "cp", "ep", "etp", "pp")
COMPUTE = ("real", "sleep", "skip")
DTYPES = ("bf16", "fp16", "fp32")
RANKS, TOKENS, STEP_TOKENS = whole(1, MOST_GPUS), whole(1, MOST_SEQUENCE_TOKENS), whole(1, MOST_STEP_TOKENS)
ONE_OR_MORE, ANY_NUMBER = whole(1, MOST_EPOCHS), whole(0, MOST_EPOCHS)

Options = argparse.ArgumentParser | argparse._ArgumentGroup

JSON = "write everything to this file; - is standard output"
METRICS = "file of the state after each {what}, OpenMetrics text for a collector"


def add_device(options: Options) -> None:
    """The device of every verb that runs on one."""
    options.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto", help="auto wants a GPU")


def add_timeout(options: Options) -> None:
    """The patience of every verb of several ranks."""
    what = "longest wait of one rank for another (default 120)"
    options.add_argument("--timeout_s", type=decimal(1e-3, MOST_SECONDS), default=120.0, help=what)


def add_run(verb: argparse.ArgumentParser) -> None:
    """All options of ``run``."""
    verb.add_argument(
        "files",
        type=Path,
        nargs="*",
        metavar="FILE",
        help="general workload (CSV), or one for each pipeline stage (NAME-stage0.csv finds the other stages' files)",
    )
    plan = verb.add_argument_group("a plan instead of files")
    plan.add_argument("--plan", help="tp=2,pp=2,micro_batch=1,... as simulation_train_formulaic.py takes it")
    add_config(plan)
    plan.add_argument("--global_batch_size", type=step_tokens, help="tokens a step (default: the config's)")
    plan.add_argument("--seq_len", type=TOKENS, help="default: the config's")
    plan.add_argument("--framework", help="preset (default: the config's)")
    plan.add_argument("--profile", type=Path, help="times of computation, for --compute sleep")
    plan.add_argument("--cluster", help="hardware spec of configs/clusters (default: the profile's)")
    for axis in DEGREES:
        verb.add_argument(f"--{axis}", type=RANKS, help="ranks (default: the workload's arguments, else 1)")
    verb.add_argument("--order", default=DEFAULT_ORDER, help=f"of ranks, fastest first (default {DEFAULT_ORDER})")
    verb.add_argument("--json", type=Path, help=JSON)
    verb.add_argument("--report", type=Path, metavar="DIR", help=REPORT)
    verb.add_argument("--metrics", type=Path, help=METRICS.format(what="iteration"))
    _add_run_options(verb)


def add_suite(verb: argparse.ArgumentParser) -> None:
    """All options of ``suite``."""
    verb.add_argument("suite", type=Path, help="TOML file of workloads, such as configs/suites/aicb.toml")
    _add_run_options(verb)


def _add_run_options(verb: argparse.ArgumentParser) -> None:
    """Options of how to run, which ``run`` and ``suite`` share."""
    how = verb.add_argument_group("how to run")
    add_device(how)
    how.add_argument(
        "--compute",
        choices=COMPUTE,
        default=COMPUTE[0],
        help="computation as products of its shapes, as a sleep of the file's time, or left out (default real)",
    )
    how.add_argument("--dtype", choices=DTYPES, default=DTYPES[0], help="of products (default bf16)")
    how.add_argument(
        "--epoch_num",
        type=ONE_OR_MORE,
        help="iterations; the file's last one repeats (default: as many as the file has)",
    )
    how.add_argument("--warmup", type=ANY_NUMBER, default=1, help="iterations before (default 1)")
    add_timeout(how)
    how.add_argument("--results", type=Path, default=Path("results"), help="folder (default results)")
    how.add_argument("--quiet", action="store_true", help="print the summary alone, no line for each operation")


def add_links(verb: argparse.ArgumentParser) -> None:
    """All options of ``links``."""
    add_device(verb)
    add_timeout(verb)
    table = verb.add_argument_group("nccl-tests' tables")
    table.add_argument(
        "--collectives",
        type=comma_separated(non_empty),
        help="default all_reduce,all_gather,reduce_scatter,all2all,broadcast",
    )
    table.add_argument("--min_bytes", type=byte_count, default=1024, help="smallest size (default 1KiB)")
    table.add_argument("--max_bytes", type=byte_count, default=128 << 20, help="largest size (default 128MiB)")
    table.add_argument("--factor", type=whole(2, 1024), default=2, help="from size to size (default 2)")
    table.add_argument("--iters", type=ONE_OR_MORE, default=20, help="calls of a time (default 20)")
    table.add_argument("--warmup", type=ANY_NUMBER, default=5, help="calls before (default 5)")
    table.add_argument("--dtype", choices=DTYPES, default=DTYPES[0], help="of the buffers (default bf16)")
    table.add_argument("--symmetric", action="store_true", help="also by torch's symmetric memory (NVLink)")
    table.add_argument("--no_table", action="store_true", help="pairs alone")
    pairs = verb.add_argument_group("pairs of nodes, or of the ranks of one node")
    pairs.add_argument("--pair_bytes", type=byte_count, default=64 << 20, help="size of a message (default 64MiB)")
    pairs.add_argument("--picture", type=Path, help="draw the matrix of bandwidths")


def links(options: argparse.Namespace, root: Path) -> int:
    """Measure collectives, every pair, and who is slower than its peers, on the processes of this launch."""
    with without_interrupts():
        from profiler.links.nccl_table import NAMES, TableRequest
        from profiler.links.run import LinksOptions, run_links

    known = {kind.value: kind for kind in NAMES}
    unknown = [name for name in options.collectives or () if name not in known]
    if unknown:
        allowed = f"some of {', '.join(known)}"
        raise ConfigError(where="links", key="--collectives", value=unknown[0], allowed=allowed)
    if options.max_bytes < options.min_bytes:
        allowed = f"--min_bytes ({options.min_bytes:,}) or more"
        raise ConfigError(where="links", key="--max_bytes", value=options.max_bytes, allowed=allowed)
    check_outputs({"--picture": options.picture}, folders={}, inputs={})
    request = TableRequest(
        collectives=tuple(known[name] for name in options.collectives or known),
        least_bytes=options.min_bytes,
        most_bytes=options.max_bytes,
        factor=options.factor,
        iterations=options.iters,
        warmup=options.warmup,
        dtype=options.dtype,
        symmetric=options.symmetric,
    )
    links_options = LinksOptions(
        device=options.device,
        timeout_s=options.timeout_s,
        table=None if options.no_table else request,
        pair_bytes=options.pair_bytes,
        picture=options.picture,
    )
    return _print_in_ranks(lambda layout: run_links(links_options, layout), "interrupted")


def add_analyse(verb: argparse.ArgumentParser) -> None:
    """All options of ``analyse``."""
    verb.add_argument("log", type=Path, help="log of a run, ours or AICB's")
    verb.add_argument("--report", type=Path, metavar="DIR", help=REPORT)
    verb.add_argument("--json", type=Path, help=JSON)


def add_aiob(verb: argparse.ArgumentParser) -> None:
    """All options of ``aiob``."""
    add_config(verb, required=True)
    verb.add_argument("--tp", type=RANKS, default=1, help="tensor-parallel ranks (default 1)")
    verb.add_argument("--ep", type=RANKS, default=1, help="expert-parallel ranks (default 1)")
    verb.add_argument("--micro_batch", type=whole(1, MOST_COUNT), default=1, help="sequences a micro-batch (default 1)")
    verb.add_argument("--seq_len", type=TOKENS, help="tokens a sequence (default: the config's)")
    add_device(verb)
    verb.add_argument("--output", type=Path, default=Path("aiob.txt"), help="AICB's text (default aiob.txt)")
    verb.add_argument("--compile", action="store_true", help="also time the activation function (torch.compile)")
    verb.add_argument("--into", type=Path, help="profile of this GPU to merge the samples into")


def add_train(verb: argparse.ArgumentParser) -> None:
    """All options of ``train``, named as in simulation_train_formulaic.py."""
    what = verb.add_argument_group("what to train")
    add_config(what, required=True)
    what.add_argument("--plan", help="tp=2,pp=2,... (default: the config's); dp=N is only checked")
    batch = what.add_mutually_exclusive_group()
    batch.add_argument("--global_batch_size", type=step_tokens, help="tokens of a step (default: the config's batch)")
    batch.add_argument("--micro_batches", type=STEP_TOKENS, help="of a step on each rank, instead of tokens")
    what.add_argument("--seq_len", type=TOKENS, help="tokens per sequence (default: the config's)")
    what.add_argument(
        "--framework", help=f"{', '.join(framework_names())} (default: the config's, else {DEFAULT_FRAMEWORK})"
    )
    settings = "settings of the job (docs/configs.md): context_parallel=all_gather,..."
    what.add_argument("--job", action="append", default=[], help=settings)
    what.add_argument("--dtype", choices=("bf16", "fp32"), help="of the products (default: the job's)")
    where = verb.add_argument_group("where to run")
    add_device(where)
    where.add_argument("--cluster", help="hardware spec with the peak for the MFU (default: by the device's name)")
    how = verb.add_argument_group("how to run")
    how.add_argument("--steps", type=ONE_OR_MORE, default=10, help="steps timed (default 10)")
    how.add_argument("--warmup", type=ANY_NUMBER, default=3, help="steps before (default 3)")
    how.add_argument("--compile", action="store_true", help="compile the blocks by torch.compile")
    add_timeout(how)
    out = verb.add_argument_group("results")
    out.add_argument("--json", type=Path, help=JSON)
    out.add_argument("--metrics", type=Path, help=METRICS.format(what="step"))
    out.add_argument("--trace", type=Path, metavar="DIR", help="also write a trace of each rank (torch.profiler)")
    out.add_argument("--results", type=Path, help="folder for NAME_train.json and NAME_steps.csv")


def train(options: argparse.Namespace, root: Path) -> int:
    """Time training steps of the reference transformer."""
    with without_interrupts():
        from runner.training.run import TrainOptions, run_training
        from runner.training.task import TrainRequest

    request = TrainRequest(
        root=root,
        config=options.config,
        assume=options.assume,
        plan=options.plan,
        global_batch_tokens=options.global_batch_size,
        micro_batches=options.micro_batches,
        seq_len=options.seq_len,
        framework=options.framework,
        job=parse_settings(",".join(options.job), job_settings(), "--job") if options.job else {},
        dtype=options.dtype,
        cluster=options.cluster,
        compiled=options.compile,
    )
    train_options = TrainOptions(
        request=request,
        device=options.device,
        steps=options.steps,
        warmup=options.warmup,
        timeout_s=options.timeout_s,
        results=options.results,
        trace=options.trace,
        metrics=options.metrics,
    )

    with json_output(options.json) as json:
        to_run = replace(train_options, json=json)
        return _print_in_ranks(lambda layout: run_training(to_run, layout), "interrupted")


def _print_in_ranks(lines_of: "Callable[[RankLayout], list[str]]", interrupted: str) -> int:
    """The exit status of this rank, after printing the lines of ``lines_of``, or ``interrupted`` after Ctrl-C."""
    with without_interrupts():
        from profiler.distributed.rank_exit import status_in_ranks

    return status_in_ranks(
        lambda layout: print_lines(lines_of(layout)), interrupted=lambda layout: "" if layout.rank else interrupted
    )


def run(options: argparse.Namespace, root: Path) -> int:
    """Run a workload on the processes of this launch."""
    with without_interrupts():
        from runner.replay.run import run_workload

    read = reader(options, root)
    return _in_ranks(options, lambda replay, layout: run_workload(replay, read, layout))


def suite(options: argparse.Namespace, root: Path) -> int:
    """Run the unfinished workloads of a suite on the processes of this launch."""
    with without_interrupts():
        from runner.replay.suite import read_suite, run_suite

    entries = read_suite(options.suite)
    return _in_ranks(options, lambda replay, layout: run_suite(entries, replay, root, layout))


def _in_ranks(options: argparse.Namespace, lines_of: "Callable[[ReplayOptions, RankLayout], list[str]]") -> int:
    """The exit status of this rank, after printing the lines of ``lines_of``."""
    with without_interrupts():
        from runner.replay.operations import ComputeMode
        from runner.replay.run import ReplayOptions

    replay_options = ReplayOptions(
        results=options.results,
        device=options.device,
        compute=ComputeMode(options.compute),
        dtype=options.dtype,
        epochs=options.epoch_num,
        warmup=options.warmup,
        timeout_s=options.timeout_s,
        quiet=options.quiet,
        metrics=getattr(options, "metrics", None),
        report=getattr(options, "report", None),
    )

    with json_output(getattr(options, "json", None)) as json:
        to_run = replace(replay_options, json=json)
        return _print_in_ranks(lambda layout: lines_of(to_run, layout), "interrupted; what was logged is kept")


def reader(options: argparse.Namespace, root: Path) -> Callable[[int], ReplayTask]:
    """A function that makes the task of the command line for a number of ranks, from its files or its plan.

    Raises ConfigError for both, neither, and a plan with --tp, --pp, ... or without a config.
    """
    degrees = DegreeOptions(degrees={axis: getattr(options, axis) for axis in DEGREES}, order=options.order)
    if options.plan is None:
        if not options.files:
            raise ConfigError(where="run", key="files", value=None, allowed="a general workload, or --plan")
        return lambda world: task_from_files(options.files, degrees, world)
    if options.files or options.config is None or any(degrees.degrees.values()):
        raise ConfigError(
            where="run", key="--plan", value=options.plan, allowed="with --config, without files and --tp, --pp, ..."
        )
    request = Request(
        root=root,
        profile=options.profile,
        config=options.config,
        assume=options.assume,
        global_batch_tokens=options.global_batch_size,
        seq_len=options.seq_len,
        cluster=options.cluster,
        framework=options.framework,
        missing="modelled",
    )
    return lambda world: task_from_request(request, options.plan, world)


def aiob(options: argparse.Namespace, root: Path) -> int:
    """Time the submodules of a model on this device."""
    with without_interrupts():
        from profiler.on_demand import case_measurer, measuring_device
        from runner.aiob import time_modules, write_times
        from workload.aicb.module_cases import ModuleRun

    config = read_config(options.config, assume=options.assume)
    seq_len = options.seq_len or config.seq_len
    if seq_len is None:
        raise ConfigError(where="aiob", key="--seq_len", value=None, allowed=f"{options.config} says none: give it")
    check_outputs({"--output": options.output, "--into": options.into}, folders={}, inputs={"--config": options.config})
    request = ModuleRun(
        model=config.model, tp=options.tp, ep=options.ep, micro_batch=options.micro_batch, seq_len=seq_len
    )
    device = measuring_device(options.device, root, float("inf"))
    if options.compile:
        device = replace(device, measure=case_measurer(options.device, compiled=True))
    times = time_modules(request, device)
    return print_lines([*assumption_lines(config.model), *write_times(times, device, options.output, options.into)])


def analyse(options: argparse.Namespace, root: Path) -> int:
    """Summarise a log, name its outliers, and draw it."""
    with without_interrupts():
        from runner.logs.analysis import analyse_log

    files = {"--json": json_file(options), **report_file(options.report)}
    check_outputs(files, folders={"--report": options.report}, inputs={"LOG": options.log})
    with json_output(options.json) as json:
        result = analyse_log(options.log, json)
    lines = list(result.lines)
    if options.report is not None:
        from runner.logs.page import write_log_page

        lines += write_log_page(result.name, result.log, result.slow, options.report)
    return print_lines(lines)


def json_file(options: argparse.Namespace) -> Path | None:
    """The file of --json, None for standard output and where there is none."""
    return None if options.json == STDOUT else options.json


VERBS: dict[str, WorkloadVerb] = {
    "launch": WorkloadVerb(
        what="start profile, run, train or a suite on many hosts: ssh, Slurm, Kubernetes",
        add_flags=add_launch,
        run=launch,
    ),
    "preflight": WorkloadVerb(
        what="releases, GPUs, links, memory and clocks of all hosts in one table", add_flags=add_hosts, run=look
    ),
    "links": WorkloadVerb(
        what="nccl-tests' tables, every pair's bandwidth, and who is slower than its peers (torchrun)",
        add_flags=add_links,
        run=links,
    ),
    "train": WorkloadVerb(what="time steps of a reference transformer (torchrun)", add_flags=add_train, run=train),
    "verify": WorkloadVerb(
        what="train the best plans of a search and compare them with their predictions",
        add_flags=add_verify,
        run=verify,
    ),
    "compare": WorkloadVerb(
        what="compare a measured run, ours or a framework's log, with its prediction",
        add_flags=add_compare,
        run=compare,
    ),
    "run": WorkloadVerb(what="run a general workload on real process groups (torchrun)", add_flags=add_run, run=run),
    "suite": WorkloadVerb(
        what="run many workloads one after another, and resume where it stopped (torchrun)",
        add_flags=add_suite,
        run=suite,
    ),
    "aiob": WorkloadVerb(
        what="time each submodule of a model on this device, as AICB's AIOB", add_flags=add_aiob, run=aiob
    ),
    "analyse": WorkloadVerb(
        what="summarise the log of a run, ours or AICB's; draw it", add_flags=add_analyse, run=analyse
    ),
}
