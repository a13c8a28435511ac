"""The verbs of run_workload.py that this package does: their options, and what runs them.

What needs torch is imported when a verb runs.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from runner.compare_verb import add_compare, compare
from runner.replay.planned import planned_work
from runner.replay.stage_files import Typed, Work, read_work
from runner.replay.suite_file import read_suite
from runner.run_flags import DEGREES, add_aiob, add_analyse, add_run, add_suite
from runner.train_verb import add_train, train
from solver.request import Request
from spec.errors import ConfigError
from spec.program.ending import uninterrupted
from spec.program.outputs import check_outputs
from spec.readers.config_flags import assumed_lines
from spec.readers.read_config import read_config

if TYPE_CHECKING:
    from profiler.ranks.rank_layout import RankLayout
    from runner.replay.run import RunOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Verb:
    """``run`` takes the options and the project folder, and gives the exit status."""

    what: str
    add_flags: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace, Path], int]


def run(options: argparse.Namespace, root: Path) -> int:
    """Run a workload on the processes of this launch."""
    with uninterrupted():
        from runner.replay.run import run_workload

    read = reader(options, root)
    return _in_ranks(options, lambda asked, layout: run_workload(asked, read, layout))


def suite(options: argparse.Namespace, root: Path) -> int:
    """Run the workloads of a suite that are not done, on the processes of this launch."""
    with uninterrupted():
        from runner.replay.suite import run_suite

    entries = read_suite(options.suite)
    return _in_ranks(options, lambda asked, layout: run_suite(entries, asked, root, layout))


def _in_ranks(options: argparse.Namespace, work: "Callable[[RunOptions, RankLayout], list[str]]") -> int:
    """The exit status of this rank; what ``work`` gives is printed."""
    with uninterrupted():
        from profiler.ranks.ending import status_in_ranks
        from runner.replay.operations import Compute
        from runner.replay.run import RunOptions

    asked = RunOptions(
        results=options.results,
        device=options.device,
        compute=Compute(options.compute),
        dtype=options.dtype,
        epochs=options.epoch_num,
        warmup=options.warmup,
        timeout_s=options.timeout_s,
        quiet=options.quiet,
    )

    def done(layout: "RankLayout") -> int:
        for line in work(asked, layout):
            print(line)
        return 0

    return status_in_ranks(
        done, interrupted=lambda layout: "" if layout.rank else "interrupted; what was logged is kept"
    )


def reader(options: argparse.Namespace, root: Path) -> Callable[[int], Work]:
    """What makes the work of the command line for a number of ranks: its files, or its plan.

    Raises ConfigError for both, neither, and a plan with typed degrees or no config.
    """
    typed = Typed(degrees={axis: getattr(options, axis) for axis in DEGREES}, order=options.order)
    if options.plan is None:
        if not options.files:
            raise ConfigError(where="run", key="files", value=None, allowed="a general workload, or --plan")
        return lambda world: read_work(options.files, typed, world)
    if options.files or options.config is None or any(typed.degrees.values()):
        raise ConfigError(
            where="run",
            key="--plan",
            value=options.plan,
            allowed="with --config, without files and --tp, --pp, ...",
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
    return lambda world: planned_work(request, options.plan, world)


def aiob(options: argparse.Namespace, root: Path) -> int:
    """Time the submodules of a model on this device."""
    with uninterrupted():
        from profiler.on_demand import case_measurer, measuring_device
        from runner.aiob.module_cases import ModuleRun
        from runner.aiob.module_times import time_modules, write_times

    config = read_config(options.config, assume=options.assume)
    seq_len = options.seq_len or config.seq_len
    if seq_len is None:
        raise ConfigError(
            where="aiob", key="--seq_len", value=None, allowed=f"{options.config} says none: give it"
        )
    check_outputs(
        {"--output": options.output, "--into": options.into}, folders={}, inputs={"--config": options.config}
    )
    asked = ModuleRun(
        model=config.model,
        tp=options.tp,
        ep=options.ep,
        micro_batch=options.micro_batch,
        seq_len=seq_len,
    )
    device = measuring_device(options.device, root, float("inf"))
    if options.compile:
        device = replace(device, measure=case_measurer(options.device, compiled=True))
    times = time_modules(asked, device)
    for line in [*assumed_lines(config.model), *write_times(times, device, options.output, options.into)]:
        print(line)
    return 0


def analyse(options: argparse.Namespace, root: Path) -> int:
    """Summarise a log, name what stands out, and draw it."""
    with uninterrupted():
        from runner.logs.analysis import analysed

    for line in analysed(options.log, options.pictures):
        print(line)
    return 0


VERBS: dict[str, Verb] = {
    "train": Verb(what="time steps of a reference transformer (torchrun)", add_flags=add_train, run=train),
    "compare": Verb(
        what="print a measured run beside its prediction, ours or a framework's log",
        add_flags=add_compare,
        run=compare,
    ),
    "run": Verb(what="run a general workload on real process groups (torchrun)", add_flags=add_run, run=run),
    "suite": Verb(
        what="run many workloads in a row, and go on where it ended (torchrun)",
        add_flags=add_suite,
        run=suite,
    ),
    "aiob": Verb(
        what="time each submodule of a model on this device, as AICB's AIOB", add_flags=add_aiob, run=aiob
    ),
    "analyse": Verb(
        what="summarise the log of a run, ours or AICB's; draw it", add_flags=add_analyse, run=analyse
    ),
}
