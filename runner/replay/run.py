"""A physical run of a workload: initialisation and iterations on real devices, their times and logs, and the rank that
the others wait for if the run hangs."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TextIO, TypeVar

import torch

from profiler.benchmarks.launched import Call, UnsupportedCaseError
from profiler.device import Device, choose_device
from profiler.distributed.rank_layout import RankLayout
from profiler.distributed.rendezvous import RankFailedError
from profiler.distributed.termination import AbortHook, install_abort_hook, report_failure
from profiler.distributed.watchdog import Beat
from profiler.distributed.world import World, open_world
from profiler.outcome import OOM, error_message, error_status
from runner.groups.agreement import agree, check_same
from runner.groups.degrees import Degrees
from runner.groups.group_ranks import ranks_of_group
from runner.logs.analysis import RankTimes, log_record, outlier_lines, slow_ranks, summary_lines, write_ranks
from runner.logs.log import Log, LogFile, epoch_end, epoch_line, operation_line, with_time
from runner.logs.metrics import RunMetrics
from runner.replay.operations import ComputeMode, Operations, close_groups, open_groups, operations_for
from runner.replay.program import Launches, ReplayLaunch, ReplayTask, StageProgram, groups_used
from solver.report.files import write_json
from solver.report.html import report_file
from spec.errors import ExportError
from spec.files import check_outputs
from workload.aicb.csv_workload import COMPUTATION, GeneralItem
from workload.traffic.ranks import rank_groups


@dataclass(frozen=True, slots=True, kw_only=True)
class RankProgress:
    """Progress of a rank: the number of the pass, the part of its program (0: initialisation), how many communications
    of that part have begun, and whether the rank computes now."""

    passes: int
    part: int
    begun: int
    computes: bool

    def text(self) -> str:
        """One word for the heartbeat of a rank."""
        return f"{self.passes}:{self.part}:{self.begun}:{int(self.computes)}"

    @staticmethod
    def read(text: str) -> "RankProgress | None":
        """The progress in a heartbeat; None before the first pass."""
        if not text:
            return None
        passes, part, begun, computes = (int(word) for word in text.split(":"))
        return RankProgress(passes=passes, part=part, begun=begun, computes=bool(computes))


@dataclass(frozen=True, slots=True, kw_only=True)
class StragglerFinder:
    """Finds the ranks that hold up a hanging run, from the stages' programs and every rank's progress."""

    programs: Sequence[StageProgram]
    degrees: Degrees

    def behind(self, beats: Mapping[int, Beat]) -> Sequence[int]:
        """Living ranks that others wait for; all ranks if nobody is to blame."""
        # Follow each rank's chain of waiting to its end: a rank that is not at its own chain's end waits for another.
        places = {rank: RankProgress.read(beat.place) for rank, beat in beats.items()}
        ends = [self._root_cause(rank, places) for rank in beats]
        blamed = sorted({end for rank, end in zip(beats, ends, strict=True) if end != rank})
        return blamed or list(beats)

    def _root_cause(self, rank: int, places: Mapping[int, RankProgress | None]) -> int:
        """Rank at which the chain of waiting from ``rank`` ends."""
        # A cycle ends at the first rank that is met again.
        seen: set[int] = set()
        while rank not in seen:
            seen.add(rank)
            waits = [other for other in self._waits_for(rank, places) if other in places]
            if not waits:
                break
            rank = waits[0]
        return rank

    def _waits_for(self, rank: int, places: Mapping[int, RankProgress | None]) -> list[int]:
        """Partners of the rank's last communication that have not reached it."""
        here = places[rank]
        if here is None or here.computes or not here.begun:
            return []
        own = communications(self._part(self.degrees.stage_of(rank), here.part))
        launch = own[here.begun - 1]
        # A send returns at once; a rank that has sent waits for nobody.
        if launch.item.comm_type == "isend":
            return []
        # Communications of one group or channel happen in the same order on all of its ranks: the n-th of this rank
        # waits for the n-th of each partner.
        sequence = _sequence(launch)
        number = sum(_sequence(other) == sequence for other in own[: here.begun])
        return [
            other
            for other in self._partners(rank, launch)
            if not self._reached(other, places.get(other), here, (_counterpart(launch), number))
        ]

    def _partners(self, rank: int, launch: ReplayLaunch) -> Sequence[int]:
        if launch.channel is not None:
            group = next(ranks for ranks in rank_groups(self.degrees.dense, "pp") if rank in ranks)
            return (group[launch.peer],)
        assert launch.group is not None
        group = next(ranks for ranks in ranks_of_group(*launch.group, self.degrees) if rank in ranks)
        return [other for other in group if other != rank]

    def _reached(self, other: int, there: RankProgress | None, here: RankProgress, wanted: tuple[object, int]) -> bool:
        """True if ``other`` has begun the communication ``wanted``: a sequence and a number in it, of this pass."""
        if there is None or there.passes != here.passes:
            return there is not None and there.passes > here.passes
        sequence, number = wanted
        own = communications(self._part(self.degrees.stage_of(other), here.part))
        return sum(_sequence(launch) == sequence for launch in own[: there.begun]) >= number

    def _part(self, stage: int, part: int) -> Launches:
        program = self.programs[stage]
        return program.iteration(part - 1) if part else program.init


def communications(launches: Sequence[ReplayLaunch]) -> list[ReplayLaunch]:
    """The collectives and messages among launches."""
    return [launch for launch in launches if launch.ranks]


def _sequence(launch: ReplayLaunch) -> object:
    """Key of the ordered sequence that a communication belongs to: collectives of a group, or sends or receives of a
    channel."""
    if launch.channel is None:
        return launch.group
    return launch.item.comm_type, launch.channel


def _counterpart(launch: ReplayLaunch) -> object:
    """Key of the sequence at the other end: a receive waits for a send of the same channel."""
    return launch.group if launch.channel is None else ("isend", launch.channel)


# Running launches one after another, each with its time.

Value = TypeVar("Value")

Clock = Callable[[Call], float]
"""Runs a call and waits for it; its seconds."""


@dataclass(slots=True, kw_only=True)
class ReplayPass:
    """One pass through a part of the program: its launches, the seconds of those that have finished, and of the whole
    pass once it has ended."""

    launches: Sequence[ReplayLaunch]
    times_s: list[float] = field(default_factory=list)
    elapsed_s: float = 0.0

    def computing_s(self) -> float:
        """Seconds in computation."""
        pairs = zip(self.launches, self.times_s, strict=False)
        return sum(seconds for launch, seconds in pairs if launch.item.comm_type == COMPUTATION)

    def communicating_s(self) -> float:
        """Seconds in collectives and messages, waiting for other ranks included."""
        return sum(self.times_s) - self.computing_s()


@dataclass(slots=True, kw_only=True)
class Replayer:
    """Runs this rank's launches and times them."""

    world: World
    operations: Operations
    clock: Clock
    passes: int = 0

    def prepare(self, launches: Sequence[ReplayLaunch]) -> list[ReplayLaunch]:
        """The launches that run on this rank; every call is made now, before anything is timed.

        Raises RankFailedError naming the operation whose operands do not fit or that torch refuses.
        """
        runnable = []
        for launch in launches:
            doing = self._begin(launch, "making its operands")
            if self._guarded(launch, doing, partial(self.operations.call, launch)) is not None:
                runnable.append(launch)
        return runnable

    def run(self, replay_pass: ReplayPass, name: str, part: int) -> None:
        """Run the launches of a pass, which all ranks start together; fills ``replay_pass`` as it goes. ``part`` 0 is
        initialisation."""
        self.world.begin(f"the start of {name}")
        self.world.gather(name)  # a barrier, so that no rank's time holds another's preparation
        self.passes += 1
        num_begun = 0
        start_s = time.perf_counter()
        for launch in replay_pass.launches:
            call = self.operations.call(launch)
            assert call is not None, "prepare left it out"
            num_begun += launch.ranks > 0
            # The heartbeat says where this rank is before the call, which may never return.
            progress = RankProgress(passes=self.passes, part=part, begun=num_begun, computes=not launch.ranks)
            doing = self._begin(launch, name, progress.text())
            replay_pass.times_s.append(self._guarded(launch, doing, partial(self.clock, call)))
        self.world.begin(f"the end of {name}")
        self._guarded(None, f"the end of {name}", self._finish)
        replay_pass.elapsed_s = time.perf_counter() - start_s

    def _finish(self) -> None:
        self.operations.finish()
        self.operations.device.synchronize()

    def _begin(self, launch: ReplayLaunch, name: str, place: str = "") -> str:
        doing = f"{launch.label()}, {name}"
        self.world.begin(doing, place=place)
        return doing

    def _guarded(self, launch: ReplayLaunch | None, doing: str, action: Callable[[], Value]) -> Value:
        """The result of one action. Raises RankFailedError for what goes wrong in it."""
        try:
            return action()
        except (RuntimeError, MemoryError, UnsupportedCaseError) as problem:
            out_of_memory = error_status(problem) == OOM
            computes = launch is not None and launch.item.comm_type == COMPUTATION
            # An error in a collective is mostly another rank's fault: the watchdog finds out whose.
            if not (out_of_memory or computes or self.world.size == 1):
                raise self.world.failure(str(problem)) from problem
            what = "out of memory" if out_of_memory else error_message(problem)
            rank = self.world.rank
            raise RankFailedError(f"rank {rank}: {what} in {doing}", speaker=rank) from problem


def clock_for(device: Device) -> Clock:
    """The clock of a device: CUDA events around a call on a GPU, the host's clock on a CPU."""
    if device.kind == "cuda":
        return cuda_seconds
    return host_seconds


def host_seconds(call: Call) -> float:
    """Seconds of a call that ends when it returns."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def cuda_seconds(call: Call) -> float:
    """Device seconds of the kernels that a call queues; host seconds if it queues none (sleep)."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in ("begin", "end"))  # type: ignore[no-untyped-call]
    begin.record()
    call()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) * 1e-3


# A physical run: read, form the groups, warm up, replay every iteration, log, summarise.

LOG_FOLDER = "comm_logs"
LOG_ENDING, RANKS_ENDING = "_log.csv", "_ranks.csv"


Read = Callable[[int], ReplayTask]
"""The task for a number of ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """Options of a replay. ``epochs`` None: as many iterations as the file has; ``json`` and ``metrics``: files of the
    summary and of the state after each iteration; ``report``: the folder of a page."""

    results: Path
    device: str = "auto"
    compute: ComputeMode = ComputeMode.REAL
    dtype: str = "bf16"
    epochs: int | None = None
    warmup: int = 1
    timeout_s: float = 120.0
    quiet: bool = False
    json: Path | TextIO | None = None
    metrics: Path | None = None
    report: Path | None = None


@dataclass(slots=True, kw_only=True)
class Recorder:
    """This rank's times by epoch and, if it is the first rank of its stage, the log file."""

    rank: int
    file: LogFile | None
    prints: bool
    metrics: RunMetrics | None = None
    rows: list[GeneralItem] = field(default_factory=list)
    epochs: list[ReplayPass] = field(default_factory=list)
    current: ReplayPass | None = None

    def take(self, replay_pass: ReplayPass) -> None:
        """Record a finished pass: its rows go to the file and, on rank 0, to the terminal."""
        # From here on ``save`` must not write this pass: its rows are written below.
        self.current = None
        rows = _rows(replay_pass)
        end = epoch_end(replay_pass.elapsed_s)
        if self.file is not None:
            self.file.add([*rows, end])
            self.rows += [*rows, end]
        if self.prints:
            lines = [operation_line(row, self.rank) for row in rows]
            print("\n".join([*lines, epoch_line(len(self.epochs), end.elapsed_ms or 0.0, self.rank)]), flush=True)
        # the first pass is the initialisation
        if self.metrics is not None and self.epochs:
            self.metrics.add(replay_pass.elapsed_s)
        self.epochs.append(replay_pass)

    def save(self) -> None:
        """Close the log file, with the finished launches of a pass that an error has interrupted."""
        if self.file is not None:
            if self.current is not None:
                self.file.add(_rows(self.current))
                self.current = None
            self.file.close()

    def save_partial(self) -> None:
        """``save`` while an error ends the run, which may be a full disk."""
        with suppress(ExportError):
            self.save()


def _rows(replay_pass: ReplayPass) -> list[GeneralItem]:
    # A pass that was interrupted has fewer times than launches.
    pairs = zip(replay_pass.launches, list(replay_pass.times_s), strict=False)
    return [with_time(launch.item, seconds) for launch, seconds in pairs]


def run_workload(options: ReplayOptions, read: Read, layout: RankLayout) -> list[str]:
    """The summary lines of a replay on all ranks; empty on ranks other than 0.

    Raises UserError for a workload that does not fit this world, RankFailedError for a rank that cannot go on.
    """
    tasks: list[ReplayTask] = []
    world = open_world(
        layout,
        choose_device(options.device, layout),
        timeout_s=options.timeout_s,
        first=lambda world: tasks.append(read_checked(world, read, options)),
    )
    _, lines = run_in_world(options, lambda _: tasks[0], world, install_abort_hook(world))
    world.close()
    return lines


def read_checked(world: World, read: Read, options: ReplayOptions) -> ReplayTask:
    """The task, once the result files can be written on rank 0."""
    json_path = options.json if isinstance(options.json, Path) else None
    files = {"--json": json_path, "--metrics": options.metrics}
    folders = {"--report": options.report}

    def check() -> None:
        check_outputs(files | report_file(options.report), folders=folders, inputs={})

    agree(world, lambda: check() if world.leads else None)
    return read_on_all_ranks(world, read)


def run_in_world(options: ReplayOptions, read: Read, world: World, hook: AbortHook) -> tuple[Log, list[str]]:
    """Log and summary lines of one task, empty on ranks other than 0, run in a world that stays open. Raises
    NotAgreedError if the world can go on with another task, RankFailedError if it cannot."""
    # What may fail on some ranks alone (a file, memory, a folder) goes through agree, so that all ranks stop or none.
    task = read_on_all_ranks(world, read)
    program = task.programs[task.degrees.stage_of(world.rank)]
    groups = open_groups(world, groups_used(task.programs), task.degrees)
    operations = agree(
        world, lambda: operations_for(program.everything, world.device, groups, options.compute, options.dtype)
    )
    operations.rank = world.rank
    replayer = Replayer(world=world, operations=operations, clock=clock_for(world.device))
    recorder = agree(world, lambda: _recorder(options, task, world))
    # If a rank hangs, its watchdog asks for the ranks behind and ends the process through the hook.
    if world.watch is not None:
        world.watch.behind = StragglerFinder(programs=task.programs, degrees=task.degrees).behind
    hook.save = recorder.save_partial
    try:
        _replay(options, replayer, program.init, program.iterations, recorder)
        agree(world, recorder.save)
        result = _report(options, task, world, recorder)
    except BaseException as error:
        # Also for Ctrl-C: the other ranks learn who reports the end, and the log so far is saved.
        report_failure(world, error)
        recorder.save_partial()
        raise
    close_groups(groups.values())
    return result


def read_on_all_ranks(world: World, read: Read) -> ReplayTask:
    """The task, the same on all ranks. Raises NotAgreedError, reported once, if it differs or does not fit the ranks."""
    world.begin("reading the workload")
    task = agree(world, lambda: read(world.size))
    check_same(world, task.digest, f"the workload {task.name}")
    return task


def _recorder(options: ReplayOptions, task: ReplayTask, world: World) -> Recorder:
    """The recorder of this rank; the first rank of each stage writes that stage's log and a copy of its workload."""
    stage = task.degrees.stage_of(world.rank)
    first = next(rank for rank in range(world.size) if task.degrees.stage_of(rank) == stage)
    if world.rank != first:
        return Recorder(rank=world.rank, file=None, prints=False)
    name = task.name if stage == 0 else f"{task.name}-stage{stage}"
    folder = options.results / LOG_FOLDER
    recorder = Recorder(
        rank=world.rank,
        file=LogFile(folder / f"{name}{LOG_ENDING}"),
        prints=world.leads and not options.quiet,
        metrics=RunMetrics(path=options.metrics, run=task.name, what="iteration")
        if options.metrics and world.leads
        else None,
    )
    task.workloads[stage].write(folder / f"{name}_workload.csv", task.arguments)
    return recorder


def _replay(
    options: ReplayOptions, replayer: Replayer, init: Launches, iterations: tuple[Launches, ...], recorder: Recorder
) -> None:
    """Run initialisation, the warm-up (the first iteration, not recorded), then every iteration."""
    prepared = [replayer.prepare(one) for one in (init, *iterations)]

    def one_pass(index: int, name: str) -> ReplayPass:
        replay_pass = ReplayPass(launches=prepared[min(index, len(iterations))])
        recorder.current = replay_pass
        replayer.run(replay_pass, name, min(index, len(iterations)))
        return replay_pass

    agree(replayer.world, partial(recorder.take, one_pass(0, "initialisation")))
    # Warm-up passes count for the heartbeat, not for the log.
    for _ in range(options.warmup):
        one_pass(1, "warm-up")
        recorder.current = None
    # Beyond the iterations of the file its last one repeats (one_pass).
    for index in range(1, (options.epochs or len(iterations)) + 1):
        replay_pass = one_pass(index, f"iteration {index}")
        agree(replayer.world, partial(recorder.take, replay_pass))


def _report(options: ReplayOptions, task: ReplayTask, world: World, recorder: Recorder) -> tuple[Log, list[str]]:
    """The summary, on rank 0; every rank's times go to a file."""
    stage = task.degrees.stage_of(world.rank)
    own = [
        [world.rank, stage, epoch, *(1e3 * s for s in (one.elapsed_s, one.communicating_s(), one.computing_s()))]
        for epoch, one in enumerate(recorder.epochs)
    ]
    # Every rank takes part in the gather; rank 0 alone writes and prints.
    gathered = world.gather(json.dumps(own))
    everyone = [RankTimes(*times) for word in gathered for times in json.loads(word)]
    path = options.results / LOG_FOLDER / f"{task.name}{RANKS_ENDING}"
    agree(world, lambda: write_ranks(path, everyone) if world.leads else None)
    if not world.leads or recorder.file is None:
        return Log(), []
    left_out = task.programs[stage].left_out
    notes = [f"{left_out} rows over groups of one rank left out"] if left_out else []
    log = Log.of(recorder.rows)
    slow = slow_ranks(everyone)
    if options.json is not None:
        write_json(options.json, log_record(log, slow))
    wrote = [f"wrote {recorder.file.path}", f"wrote {path}"]
    if options.report is not None:
        # matplotlib takes a second to import.
        from runner.logs.page import write_log_page

        wrote += write_log_page(task.name, log, slow, options.report)
    return log, [*summary_lines(log), *notes, *outlier_lines(log), *(one.line() for one in slow), *wrote]
