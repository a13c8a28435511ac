"""A whole profiling run: join the ranks, measure, merge the samples into the profile, report."""

import datetime
import logging
import os
import socket
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from profdb.cases import Case
from profdb.refit import merge_into
from profdb.sample import MachineFacts, ProfileDatabase, Sample
from profdb.store.data_file import load_profile
from profdb.store.journal import JournalContent, journal_path, read_journal
from profdb.store.merge import Difference
from profiler.benchmarks.collectives import tilings_of
from profiler.benchmarks.fp8 import scale_recipes
from profiler.benchmarks.launched import Launcher
from profiler.benchmarks.memory_bound import compiled_kernels
from profiler.benchmarks.optional_packages import import_notes
from profiler.benchmarks.transformer_engine import package_on
from profiler.cases.model_cases import ModelRequest
from profiler.cases.module_cases import module_notes
from profiler.cases.sweep_plan import SweepPlan, cases_here, describe, idle_notes, plan_cases, skip_notes
from profiler.clocks import ABSENT, ClockMonitor, open_nvml, with_clocks
from profiler.device import Device, choose_device
from profiler.distributed.rank_layout import RankLayout
from profiler.distributed.restart import MOST_RESTARTS, restart_program, restarts, spent_s
from profiler.distributed.termination import install_abort_hook
from profiler.distributed.world import World, open_world
from profiler.journal import Journal
from profiler.links.slower import slow_rank_lines
from profiler.machine import HardwareSpec, domain_of_spec, find_hardware_spec, machine_facts, with_best_flops
from profiler.measurement import Bench
from profiler.outcome import DeviceLostError
from profiler.sample_quality import SampleQuality, quality_lines, quieter_samples, sample_quality
from profiler.sweep import Budget, SweepResult, sweep
from profiler.timing import TrialPlan, raise_clocks
from profiler.torch_launcher import TorchLauncher
from spec.errors import ProfileError, UserError
from spec.origin import Origin
from spec.program.command import print_error


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """Options of the command line. ``root`` is the folder with configs/."""

    output: Path
    root: Path
    device: str = "auto"
    only: tuple[str, ...] = ()
    max_bytes: int = 0
    budget_s: float = 0.0
    resume: bool = False
    compiled: bool | None = None
    """Whether torch.compile fuses memory-bound kernels; None: on a GPU."""
    domain_ranks: int = 0
    timeout_s: float = 120.0
    model: ModelRequest | None = None
    cases: tuple[Case, ...] | None = None
    """Cases instead of the sweep's own list, in this order; those that this machine cannot run are left out."""
    began: float = field(default_factory=time.monotonic)
    """Start of the program on time.monotonic's clock, from which the budget counts."""
    trials: TrialPlan = field(default_factory=TrialPlan)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """Report of rank 0: the profile as saved, the sweep, cases that differ from earlier runs, notes."""

    profile: ProfileDatabase
    sweep: SweepResult
    differences: tuple[Difference, ...] = ()
    quality: SampleQuality = field(default_factory=SampleQuality)
    slow: tuple[str, ...] = ()
    """Lines on ranks that are slower than their peers."""
    notes: tuple[str, ...] = ()


@dataclass(slots=True, kw_only=True)
class EarlierRun:
    """State before this run: the profile, and the journal of a run that did not end."""

    profile: ProfileDatabase | None = None
    journal_content: JournalContent | None = None
    journal: Journal | None = None
    notes: list[str] = field(default_factory=list)

    def cases(self, *, all_runs: bool) -> set[Case]:
        """Returns every case measured before: by the run that did not end, or by ``all_runs``."""
        measured = {sample.case for sample in self.journal_content.samples} if self.journal_content else set()
        if all_runs and self.profile is not None:
            measured |= {sample.case for sample in self.profile.samples if sample.origin is Origin.MEASURED}
        return measured


def run_profiling(
    options: RunOptions, layout: RankLayout, launcher_for: Callable[[World], Launcher] | None = None
) -> RunReport | None:
    """Returns the report on rank 0, None on the others, once the cases are measured and merged into
    ``options.output``.

    ``launcher_for`` makes a launcher in place of TorchLauncher. Raises UserError (the same on every rank) for an
    output that cannot be written or has another machine, and when a rank fails.
    """
    device, hardware = device_and_spec(options, layout)
    domain = domain_of(options, hardware, layout)
    model_cases = options.model.cases() if options.model is not None else []
    # The model's cases are read before the ranks meet: a config with an error costs no rendezvous.
    world = open_world(layout, device, domain_ranks=domain, timeout_s=options.timeout_s)
    # each sample is in the journal when its case ends: nothing more to save
    install_abort_hook(world)
    plan = sweep_plan(options, device, domain, layout)
    plan = replace(plan, transformer_engine=is_everywhere(world, installed=plan.transformer_engine))
    cases = plan_cases(plan, model_cases) if options.cases is None else cases_here(options.cases, plan)
    # Tests measure with launchers of their own.
    launcher: Launcher = TorchLauncher(world=world, compiled=compiles(options, device.kind))
    if launcher_for is not None:
        launcher = launcher_for(world)
    return run_in(world, options, cases, launcher)


def is_everywhere(world: World, *, installed: bool) -> bool:
    """Returns whether all ranks have a package: they measure the same cases, so one that a node lacks is left out."""
    return all(world.gather("yes" if installed else ""))


def device_and_spec(options: RunOptions, layout: RankLayout) -> tuple[Device, HardwareSpec | None]:
    """Returns this rank's device, with its architecture from the hardware spec, and the hardware spec where there is
    one."""
    device = choose_device(options.device, layout)
    hardware = find_hardware_spec(device.name, device.kind, options.root)
    return replace(device, architecture=hardware.cluster.gpu.architecture if hardware else None), hardware


def domain_of(options: RunOptions, hardware: HardwareSpec | None, layout: RankLayout) -> int:
    """Returns the ranks of one scale-up domain: as requested, as in the hardware spec, or a node's."""
    return options.domain_ranks or domain_of_spec(hardware, layout.local_size) or layout.local_size


def run_in(world: World, options: RunOptions, cases: Sequence[Case], launcher: Launcher) -> RunReport | None:
    """Returns the report of the run on an open world."""
    silence_torch()
    date = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    # After a restart the budget also includes the seconds before it.
    budget = Budget(seconds=options.budget_s, started=options.began - spent_s(os.environ))
    hardware = find_hardware_spec(world.device.name, world.device.kind, options.root)
    machine = machine_facts(world, hardware, date)
    earlier = open_on_leader(world, options, machine)
    remaining = remaining_cases(world, options, cases, earlier)
    # Only the groups of the cases that remain: making them takes seconds on many ranks.
    world.begin("opening groups")
    world.open_groups(tilings_of(remaining, world))
    clocks = ClockMonitor(source=open_nvml(world.device))
    bench = Bench(world=world, launcher=launcher, plan=options.trials, clocks=clocks)
    # The first cases would otherwise run at idle clocks.
    raise_clocks(world.device)
    result = run_sweep(remaining, bench, earlier.journal, budget, date)
    hosts = world.gather(socket.gethostname())
    # Before the fits, for which the others need not wait. After a failure the groups are left to the end of the
    # process: destroying them would wait for ranks that are gone.
    world.close()
    if earlier.journal is None:
        return None
    plan = sweep_plan(options, world.device, world.domain_ranks, world.layout)
    notes = [*earlier.notes, *notes_on(world, hardware)]
    notes += [*skip_notes(options.cases, plan), *idle_notes(options.only, cases)]
    notes += [ABSENT] * (world.device.kind == "cuda" and clocks.source is None)
    report = merge_into_profile(options, machine, earlier, result, notes)
    # Closed once its samples are in the profile: until then no other run may open it.
    earlier.journal.close()
    return replace(report, slow=tuple(slow_rank_lines(bench.ranks, hosts)))


def silence_torch() -> None:
    """Keeps torch's remarks on the kernels that it compiles off the progress bar; its errors are results of cases."""
    warnings.filterwarnings("ignore", category=UserWarning, module=r"torch\.")
    torch._logging.set_logs(all=logging.ERROR)


def run_sweep(cases: Sequence[Case], bench: Bench, journal: Journal | None, budget: Budget, date: str) -> SweepResult:
    """Returns the result of the sweep; if the device is lost in a case, starts this program again after that case."""
    try:
        return sweep(cases, bench, journal, budget, date)
    except DeviceLostError as lost:
        # The new start opens the journal itself, and its lock must be free by then.
        if journal is not None:
            journal.close()
        if restarts(os.environ) >= MOST_RESTARTS:
            raise ProfileError(
                f"{bench.world.device.name} was lost {MOST_RESTARTS} times, last in {lost}; look after it, then go on "
                "with --resume"
            ) from lost
        if bench.world.leads:
            print_error(f"note: started again after the device was lost in {lost}")
        restart_program(budget.elapsed_s)


def open_on_leader(world: World, options: RunOptions, machine: MachineFacts) -> EarlierRun:
    """Returns the state before this run. Rank 0 reads the files and opens the journal, so that nothing is measured in
    vain; every rank raises rank 0's error."""
    earlier = EarlierRun()
    complaint = ""
    if world.leads:
        try:
            open_files(options, machine, earlier)
        except UserError as error:
            complaint = str(error)
    # Only rank 0's text counts; the others send "".
    complaint = world.gather(complaint)[0]
    if complaint:
        raise ProfileError(complaint)
    return earlier


def open_files(options: RunOptions, machine: MachineFacts, earlier: EarlierRun) -> None:
    """Opens the profile and the journal at ``options.output``; raises ProfileError when they don't fit this machine."""
    path = journal_path(options.output)
    if options.output.exists():
        earlier.profile = load_profile(options.output)
        if earlier.profile.machine.gpu != machine.gpu:
            raise ProfileError(
                f"{options.output}: has times of {earlier.profile.machine.gpu!r}, this machine is "
                f"{machine.gpu!r}; give another file with --output"
            )
    if path.exists() and path.stat().st_size:
        earlier.journal_content = read_journal(path)
        if earlier.journal_content.gpu not in ("", machine.gpu):
            raise ProfileError(
                f"{path}: of a run on {earlier.journal_content.gpu!r}, this machine is {machine.gpu!r}; move it away"
            )
        earlier.notes.append(f"{len(earlier.journal_content.samples)} samples of an earlier run recovered from {path}")
    # Opened after reading: opening cuts an unfinished last line and locks the file.
    earlier.journal = Journal.open(path, machine.gpu)
    if earlier.journal_content is not None and earlier.journal_content.unended is not None and continues(options):
        skip_unended(earlier, earlier.journal_content, machine)


def skip_unended(earlier: EarlierRun, content: JournalContent, machine: MachineFacts) -> None:
    """Records the case during which the earlier run ended as failed: it is not tried again, as it may have been the
    cause."""
    assert earlier.journal is not None
    assert content.unended is not None
    sample = Sample(
        case=content.unended,
        trials_s=(),
        status="failed",
        launched={"reason": "the process ended during this case"},
        date=machine.date,
    )
    earlier.journal.append(sample)
    earlier.journal_content = replace(content, samples=(*content.samples, sample), unended=None)
    earlier.notes.append(f"skipped, as the earlier run ended in it: {describe(sample.case)}")


def continues(options: RunOptions) -> bool:
    """Returns whether this run continues one: by --resume, or after a restart of its own."""
    return options.resume or restarts(os.environ) > 0


def remaining_cases(world: World, options: RunOptions, cases: Sequence[Case], earlier: EarlierRun) -> list[Case]:
    """Returns the cases to measure, the same on every rank: with --resume those that rank 0 lacks, after a restart
    those that the journal lacks."""
    if not continues(options):
        return list(cases)
    measured = earlier.cases(all_runs=options.resume) if world.leads else set()
    # One character per case: the list is the same on every rank, so that flags are enough.
    flags = "".join("0" if case in measured else "1" for case in cases)
    flags_of_leader = world.gather(flags)[0]
    return [case for case, flag in zip(cases, flags_of_leader, strict=True) if flag == "1"]


def compiles(options: RunOptions, device_kind: str) -> bool:
    """Returns whether this run compiles: as requested, else on a GPU."""
    return device_kind == "cuda" if options.compiled is None else options.compiled


def sweep_plan(options: RunOptions, device: Device, domain_ranks: int, layout: RankLayout) -> SweepPlan:
    """Returns the plan for the ranks of ``layout`` in domains of ``domain_ranks``."""
    return SweepPlan(
        device_kind=device.kind,
        domain_ranks=domain_ranks,
        excluded_kernels=frozenset() if compiles(options, device.kind) else compiled_kernels(),
        fp8_scales=scale_recipes(device),
        cache_bytes=device.cache_bytes,
        transformer_engine=package_on(device) is not None,
        domains=layout.size // domain_ranks,
        node_ranks=layout.local_size,
        only=options.only,
        # A processor's usual limit is for a rehearsal, not for cases of a file.
        max_bytes=options.max_bytes or (sys.maxsize if options.cases is not None else 0),
    )


def notes_on(world: World, hardware: HardwareSpec | None) -> list[str]:
    """Returns notes on this world for the reader of the report."""
    notes = []
    if world.size == 1:
        notes.append("one process: no collectives measured (start with torchrun --nproc-per-node=N)")
    if hardware is None:
        notes.append(f"no hardware spec under configs/clusters names {world.device.name!r} in gpu.device_names")
    return [*notes, *import_notes()] if world.device.kind == "cuda" else notes


def merge_into_profile(
    options: RunOptions, machine: MachineFacts, earlier: EarlierRun, result: SweepResult, notes: list[str]
) -> RunReport:
    """Returns the report, once the samples of the journal are merged into the profile, fits stored and the journal
    removed."""
    path = journal_path(options.output)
    measured = read_journal(path).samples
    samples = quieter_samples(measured)
    profile = ProfileDatabase(machine=with_clocks(with_best_flops(machine, samples), samples), samples=samples)
    quality = SampleQuality()
    differences: tuple[Difference, ...] = ()
    # For the report: cases that --resume did not measure again.
    if samples:
        # Into the file as it is now: other runs may have added to it since the sweep began.
        merged = merge_into(options.output, profile)
        profile, differences = merged.profile, merged.differences
        quality = sample_quality(measured, samples, profile)
    # Nothing was left to measure: the report is of the profile as it was.
    elif earlier.profile is not None:
        profile = earlier.profile
    notes += module_notes(profile)
    path.unlink(missing_ok=True)
    return RunReport(profile=profile, sweep=result, differences=differences, quality=quality, notes=tuple(notes))


MAX_DIFFERENCES = 3


def report_lines(report: RunReport, output: Path) -> list[str]:
    """Returns counts, the machine, disagreements with earlier runs, and remarks."""
    result = report.sweep
    labels = ", ".join(f"{count} {status}" for status, count in sorted(result.statuses.items())) or "nothing"
    machine = report.profile.machine
    best = ", ".join(f"{flops / 1e12:.3g} TFLOP/s {name}" for name, flops in machine.best_flops.items())
    lines = [
        f"measured in {result.seconds:.1f} s: {labels}"
        + (
            f"; {result.num_remaining} remain, as the budget ran out (continue with --resume)"
            if result.num_remaining
            else ""
        ),
        f"{output}: {len(report.profile.samples)} samples of {machine.gpu}"
        + (f" (cluster {machine.cluster})" if machine.cluster else "")
        + (f", best {best}" if best else "")
        if report.profile.samples
        else f"{output}: not written, as nothing is measured yet",
    ]
    if sum(result.statuses.values()):
        lines += quality_lines(report.quality)
    if report.differences:
        lines.append(f"{len(report.differences)} cases differ from an earlier run by more than 10 %:")
        for results in report.differences[:MAX_DIFFERENCES]:
            lines.append(
                f"  {describe(results.case)}: {results.first_s * 1e6:.4g} us, now {results.second_s * 1e6:.4g} us"
            )
    return [*lines, *report.slow, *(f"note: {note}" for note in report.notes)]
