"""A whole profiling run: join the ranks, measure, and bring the samples into the profile."""

import datetime
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from profdb.cases import Case
from profdb.sample import MachineFacts, ProfileDatabase, Sample
from profdb.store.data_file import load_profile
from profdb.store.journal import Recorded, journal_path, read_journal
from profdb.store.merge import Difference
from profdb.update import merged_into
from profiler.attempt import DeviceLostError
from profiler.benchmarks.collectives import tilings_of
from profiler.benchmarks.launched import Launcher
from profiler.benchmarks.memory_bound import only_compiled
from profiler.cases.given_cases import cases_here, notes_of_left
from profiler.cases.model_cases import AskedModel
from profiler.cases.sweep_plan import SweepPlan, describe, plan_cases
from profiler.conditions.account import Account, account_of
from profiler.conditions.clock_watch import ClockWatch, with_clocks
from profiler.conditions.nvml import ABSENT, opened
from profiler.conditions.second_look import quieter
from profiler.device import Device, choose_device
from profiler.journal import Journal
from profiler.machine import MatchedSheet, machine_facts, matching_sheet, sheet_domain, with_best_flops
from profiler.measurement import Bench
from profiler.ranks.rank_layout import RankLayout
from profiler.ranks.restart import MOST_RESTARTS, restarts, spent_before_s, start_again
from profiler.ranks.world import World, open_world
from profiler.sweep import Budget, SweepResult, sweep
from profiler.timing import TrialPlan, raise_clocks
from profiler.torch_launcher import TorchLauncher
from spec.errors import ProfileError, UserError
from spec.origin import Origin
from spec.program.command import complain


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """What the command line says. ``root`` is the folder that holds configs/."""

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
    model: AskedModel | None = None
    cases: tuple[Case, ...] | None = None
    """Instead of the sweep's own list, in this order; what this machine cannot run of them is left."""
    began: float = field(default_factory=time.monotonic)
    """When the program began, on time.monotonic's clock: what the budget counts from."""
    trials: TrialPlan = field(default_factory=TrialPlan)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """What rank 0 has to tell: the profile as saved, the sweep, cases that differ from earlier runs, remarks."""

    profile: ProfileDatabase
    sweep: SweepResult
    skipped: int
    differences: tuple[Difference, ...] = ()
    account: Account = field(default_factory=Account)
    notes: tuple[str, ...] = ()


@dataclass(slots=True, kw_only=True)
class Held:
    """What was there before: the profile and the journal of a run that did not end."""

    profile: ProfileDatabase | None = None
    recorded: Recorded | None = None
    journal: Journal | None = None
    notes: list[str] = field(default_factory=list)

    def cases(self, *, all_runs: bool) -> set[Case]:
        """Every case measured before: by the run that did not end, or by ``all_runs``."""
        known = {sample.case for sample in self.recorded.samples} if self.recorded else set()
        if all_runs and self.profile is not None:
            known |= {sample.case for sample in self.profile.samples if sample.origin is Origin.MEASURED}
        return known


def run_profiling(
    options: RunOptions, layout: RankLayout, launcher_for: Callable[[World], Launcher] | None = None
) -> RunReport | None:
    """Measure and merge into ``options.output``; the report on rank 0, None on the others.

    ``launcher_for`` makes a launcher in place of TorchLauncher. Raises UserError (every rank the same) for an output
    that cannot be written or holds another machine, and when a rank fails.
    """
    device, sheet = device_and_sheet(options, layout)
    domain = domain_of(options, sheet, layout)
    wanted = options.model.cases() if options.model is not None else []
    world = open_world(layout, device, domain_ranks=domain, timeout_s=options.timeout_s)
    plan = sweep_plan(options, device.kind, domain, layout)
    cases = plan_cases(plan, wanted) if options.cases is None else cases_here(options.cases, plan)
    launcher: Launcher = TorchLauncher(world=world, compiled=fuses(options, device.kind))
    if launcher_for is not None:
        launcher = launcher_for(world)
    return run_in(world, options, cases, launcher)


def device_and_sheet(options: RunOptions, layout: RankLayout) -> tuple[Device, MatchedSheet | None]:
    """This rank's device, with what its sheet says of its architecture, and the sheet where there is one."""
    device = choose_device(options.device, layout)
    sheet = matching_sheet(device.name, device.kind, options.root)
    return replace(device, architecture=sheet.cluster.gpu.architecture if sheet else None), sheet


def domain_of(options: RunOptions, sheet: MatchedSheet | None, layout: RankLayout) -> int:
    """Ranks of one scale-up domain: as asked for, as the sheet says, or a node's."""
    return options.domain_ranks or sheet_domain(sheet, layout.local_size) or layout.local_size


def run_in(world: World, options: RunOptions, cases: Sequence[Case], launcher: Launcher) -> RunReport | None:
    """The run on an open world."""
    date = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    budget = Budget(seconds=options.budget_s, started=options.began - spent_before_s(os.environ))
    sheet = matching_sheet(world.device.name, world.device.kind, options.root)
    machine = machine_facts(world, sheet, date)
    held = leader_opens(world, options, machine)
    left = remaining_cases(world, options, cases, held)
    world.begin("opening groups")
    world.open_groups(tilings_of(left, world))
    clocks = ClockWatch(source=opened(world.device))
    bench = Bench(world=world, launcher=launcher, plan=options.trials, clocks=clocks)
    raise_clocks(world.device)
    result = swept(left, bench, held.journal, budget, date)
    # before the fits: the others need not wait for them, and after a failure the groups are left to the end of the
    # process, as taking them down would wait for ranks that are gone
    world.close()
    if held.journal is None:
        return None
    plan = sweep_plan(options, world.device.kind, world.domain_ranks, world.layout)
    notes = [*held.notes, *remarks(world, sheet), *notes_of_left(options.cases, plan)]
    notes += [ABSENT] * (world.device.kind == "cuda" and clocks.source is None)
    report = finish(options, machine, held, result, notes)
    # closed when its samples are in the profile: until then no other run may take it
    held.journal.close()
    return report


def swept(
    cases: Sequence[Case], bench: Bench, journal: Journal | None, budget: Budget, date: str
) -> SweepResult:
    """The sweep; a device that is lost over a case starts this program anew behind that case."""
    try:
        return sweep(cases, bench, journal, budget, date)
    except DeviceLostError as lost:
        if journal is not None:
            journal.close()
        if restarts(os.environ) >= MOST_RESTARTS:
            raise ProfileError(
                f"{bench.world.device.name} was lost {MOST_RESTARTS} times, last in {lost}; look after it, then go on "
                "with --resume"
            ) from lost
        if bench.world.leads:
            complain(f"note: started again after the device was lost in {lost}")
        start_again(budget.elapsed_s)


def leader_opens(world: World, options: RunOptions, machine: MachineFacts) -> Held:
    """Rank 0 reads what there is and opens the journal, so that nothing is measured in vain; every
    rank raises rank 0's error."""
    held = Held()
    complaint = ""
    if world.leads:
        try:
            open_files(options, machine, held)
        except UserError as error:
            complaint = str(error)
    complaint = world.gather(complaint)[0]
    if complaint:
        raise ProfileError(complaint)
    return held


def open_files(options: RunOptions, machine: MachineFacts, held: Held) -> None:
    """The profile and the journal at ``options.output``; ProfileError when they don't fit."""
    path = journal_path(options.output)
    if options.output.exists():
        held.profile = load_profile(options.output)
        if held.profile.machine.gpu != machine.gpu:
            raise ProfileError(
                f"{options.output}: holds times of {held.profile.machine.gpu!r}, this machine is "
                f"{machine.gpu!r}; give another file with --output"
            )
    if path.exists() and path.stat().st_size:
        held.recorded = read_journal(path)
        if held.recorded.gpu not in ("", machine.gpu):
            raise ProfileError(
                f"{path}: of a run on {held.recorded.gpu!r}, this machine is {machine.gpu!r}; move it away"
            )
        held.notes.append(f"{len(held.recorded.samples)} samples of an earlier run recovered from {path}")
    held.journal = Journal.open(path, machine.gpu)
    if held.recorded is not None and held.recorded.unended is not None and goes_on(options):
        pass_over(held, held.recorded, machine)


def pass_over(held: Held, recorded: Recorded, machine: MachineFacts) -> None:
    """The case during which the earlier run ended is not tried again: it may have been the cause."""
    assert held.journal is not None
    assert recorded.unended is not None
    sample = Sample(
        case=recorded.unended,
        trials_s=(),
        status="failed",
        launched={"reason": "the process ended during this case"},
        taken=machine.date,
    )
    held.journal.append(sample)
    held.recorded = replace(recorded, samples=(*recorded.samples, sample), unended=None)
    held.notes.append(f"passed over, as the earlier run ended in it: {describe(sample.case)}")


def goes_on(options: RunOptions) -> bool:
    """Whether this run continues one: asked to, or started again by itself."""
    return options.resume or restarts(os.environ) > 0


def remaining_cases(world: World, options: RunOptions, cases: Sequence[Case], held: Held) -> list[Case]:
    """The cases to measure, the same on every rank: with --resume those that rank 0 lacks, after a restart those that
    the journal lacks."""
    if not goes_on(options):
        return list(cases)
    known = held.cases(all_runs=options.resume) if world.leads else set()
    flags = "".join("0" if case in known else "1" for case in cases)
    wanted = world.gather(flags)[0]
    return [case for case, flag in zip(cases, wanted, strict=True) if flag == "1"]


def fuses(options: RunOptions, device_kind: str) -> bool:
    """Whether this run compiles: as asked for, else on a GPU."""
    return device_kind == "cuda" if options.compiled is None else options.compiled


def sweep_plan(options: RunOptions, device_kind: str, domain_ranks: int, layout: RankLayout) -> SweepPlan:
    """The plan for the ranks of ``layout`` in domains of ``domain_ranks``."""
    return SweepPlan(
        device_kind=device_kind,
        domain_ranks=domain_ranks,
        left_out=frozenset() if fuses(options, device_kind) else only_compiled(),
        domains=layout.size // domain_ranks,
        node_ranks=layout.local_size,
        only=options.only,
        max_bytes=options.max_bytes,
    )


def remarks(world: World, sheet: MatchedSheet | None) -> list[str]:
    """What the reader of the report should know about this world."""
    notes = []
    if world.size == 1:
        notes.append("one process: no collectives measured (start with torchrun --nproc-per-node=N)")
    if sheet is None:
        notes.append(f"no sheet under configs/clusters names {world.device.name!r} in gpu.device_names")
    return notes


def finish(
    options: RunOptions, machine: MachineFacts, held: Held, result: SweepResult, notes: list[str]
) -> RunReport:
    """Samples of the journal merged into the profile, fits stored, journal removed."""
    path = journal_path(options.output)
    measured = read_journal(path).samples
    samples = quieter(measured)
    profile = ProfileDatabase(
        machine=with_clocks(with_best_flops(machine, samples), samples), samples=samples
    )
    account = Account()
    differences: tuple[Difference, ...] = ()
    skipped = len(held.cases(all_runs=True)) if options.resume else 0
    if samples:
        # the file as it is now: others may have added to it since the sweep began
        merged = merged_into(options.output, profile)
        profile, differences = merged.profile, merged.differences
        account = account_of(measured, samples, profile)
    elif held.profile is not None:
        profile = held.profile
    path.unlink(missing_ok=True)
    return RunReport(
        profile=profile,
        sweep=result,
        skipped=skipped,
        differences=differences,
        account=account,
        notes=tuple(notes),
    )
