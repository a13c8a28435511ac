"""A physical run of a workload: its passes, their times and logs, and which rank the others wait for if it hangs."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

import torch

from profiler.benchmarks.launched import Call, UnsupportedCaseError
from profiler.device import Device, choose_device
from profiler.distributed.rank_layout import RankLayout
from profiler.distributed.rendezvous import RankFailedError
from profiler.distributed.watchdog import Beat
from profiler.distributed.world import World, open_world
from profiler.outcome import OOM, error_message, error_status
from runner.groups.agreement import AbortHook, agree, check_same, install_abort_hook, report_failure
from runner.groups.degrees import Degrees
from runner.groups.group_ranks import ranks_of_group
from runner.groups.process_groups import close_groups, open_groups
from runner.logs.analysis import RankTimes, outlier_lines, slow_ranks, summary_lines, write_ranks
from runner.logs.log import Log, LogFile, epoch_end, epoch_line, operation_line, with_time
from runner.replay.operations import Compute, Operations, operations_for
from runner.replay.program import Launch, Launches, Program, Work, groups_used
from spec.errors import ExportError
from workload.aicb.csv_workload import COMPUTATION, GeneralItem
from workload.traffic.ranks import rank_groups


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Progress of a rank: the number of the pass, the part of its program (0: initialisation), how many communications
    of it have begun, and whether it computes since."""

    passes: int
    part: int
    begun: int
    computes: bool

    def text(self) -> str:
        """One word, for the beat of a rank."""
        return f"{self.passes}:{self.part}:{self.begun}:{int(self.computes)}"

    @staticmethod
    def read(text: str) -> "Place | None":
        """The place in a beat; None before the first pass."""
        if not text:
            return None
        passes, part, begun, computes = (int(word) for word in text.split(":"))
        return Place(passes=passes, part=part, begun=begun, computes=bool(computes))


@dataclass(frozen=True, slots=True, kw_only=True)
class Blame:
    """The stages' programs, which all ranks know."""

    programs: Sequence[Program]
    degrees: Degrees

    def behind(self, beats: Mapping[int, Beat]) -> Sequence[int]:
        """Living ranks for which others wait; all of them where nobody is to blame."""
        places = {rank: Place.read(beat.place) for rank, beat in beats.items()}
        ends = [self._end(rank, places) for rank in beats]
        blamed = sorted({end for rank, end in zip(beats, ends, strict=True) if end != rank})
        return blamed or list(beats)

    def _end(self, rank: int, places: Mapping[int, Place | None]) -> int:
        """Rank at which the chain of waiting from ``rank`` ends."""
        seen: set[int] = set()
        while rank not in seen:
            seen.add(rank)
            waits = [other for other in self._waits_for(rank, places) if other in places]
            if not waits:
                break
            rank = waits[0]
        return rank

    def _waits_for(self, rank: int, places: Mapping[int, Place | None]) -> list[int]:
        here = places[rank]
        if here is None or here.computes or not here.begun:
            return []
        mine = communications(self._part(self.degrees.stage_of(rank), here.part))
        launch = mine[here.begun - 1]
        if launch.item.comm_type == "isend":
            return []
        kind = _like(launch)
        turn = sum(_like(one) == kind for one in mine[: here.begun])
        return [
            other
            for other in self._partners(rank, launch)
            if not self._reached(other, places.get(other), here, (_answer(launch), turn))
        ]

    def _partners(self, rank: int, launch: Launch) -> Sequence[int]:
        if launch.channel is not None:
            group = next(one for one in rank_groups(self.degrees.dense, "pp") if rank in one)
            return (group[launch.peer],)
        assert launch.group is not None
        group = next(one for one in ranks_of_group(*launch.group, self.degrees) if rank in one)
        return [other for other in group if other != rank]

    def _reached(self, other: int, there: Place | None, here: Place, wanted: tuple[object, int]) -> bool:
        """True if ``other`` has come to the ``turn``-th of its communications of a kind in this pass."""
        if there is None or there.passes != here.passes:
            return there is not None and there.passes > here.passes
        kind, turn = wanted
        own = communications(self._part(self.degrees.stage_of(other), here.part))
        return sum(_like(one) == kind for one in own[: there.begun]) >= turn

    def _part(self, stage: int, part: int) -> Launches:
        program = self.programs[stage]
        return program.iteration(part - 1) if part else program.init


def communications(launches: Sequence[Launch]) -> list[Launch]:
    """The collectives and messages among launches."""
    return [launch for launch in launches if launch.ranks]


def _like(launch: Launch) -> object:
    """Key of what is counted in turn: collectives of a group, sends or receives of a channel with a peer."""
    if launch.channel is None:
        return launch.group
    return launch.item.comm_type, launch.channel


def _answer(launch: Launch) -> object:
    """Key of the communication at the other end."""
    return launch.group if launch.channel is None else ("isend", launch.channel)


# Running launches one after another, each with its time.

Found = TypeVar("Found")

Clock = Callable[[Call], float]
"""Runs a call and waits for it; its seconds."""


@dataclass(slots=True, kw_only=True)
class Pass:
    """One pass: its launches, the seconds of those that are through, and of all once it has ended."""

    launches: Sequence[Launch]
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
    """This rank's side of a run."""

    world: World
    operations: Operations
    clock: Clock
    passes: int = 0

    def prepare(self, launches: Sequence[Launch]) -> list[Launch]:
        """Make every call before anything is timed; the launches that run here.

        Raises RankFailedError naming the operation whose operands do not fit or that torch refuses.
        """
        kept = []
        for launch in launches:
            doing = self._begin(launch, "making its operands")
            if self._guarded(launch, doing, partial(self.operations.call, launch)) is not None:
                kept.append(launch)
        return kept

    def play(self, played: Pass, name: str, part: int) -> None:
        """Run the launches of a pass, after all ranks have come to it; fills ``played`` as it goes. ``part`` 0 is
        initialisation."""
        self.world.begin(f"the start of {name}")
        self.world.gather(name)
        self.passes += 1
        begun = 0
        began = time.perf_counter()
        for launch in played.launches:
            call = self.operations.call(launch)
            assert call is not None, "prepare left it out"
            begun += launch.ranks > 0
            place = Place(passes=self.passes, part=part, begun=begun, computes=not launch.ranks)
            doing = self._begin(launch, name, place.text())
            played.times_s.append(self._guarded(launch, doing, partial(self.clock, call)))
        self.world.begin(f"the end of {name}")
        self._guarded(None, f"the end of {name}", self._finish)
        played.elapsed_s = time.perf_counter() - began

    def _finish(self) -> None:
        self.operations.finish()
        self.operations.device.synchronize()

    def _begin(self, launch: Launch, name: str, place: str = "") -> str:
        doing = f"{launch.label()}, {name}"
        self.world.begin(doing, place=place)
        return doing

    def _guarded(self, launch: Launch | None, doing: str, action: Callable[[], Found]) -> Found:
        """The result of one action; what goes wrong in it as the error that ends the run."""
        try:
            return action()
        except (RuntimeError, MemoryError, UnsupportedCaseError) as problem:
            full = error_status(problem) == OOM
            alone = launch is not None and launch.item.comm_type == COMPUTATION
            if not (full or alone or self.world.size == 1):
                raise self.world.lost(str(problem)) from problem
            what = "out of memory" if full else error_message(problem)
            rank = self.world.rank
            raise RankFailedError(f"rank {rank}: {what} in {doing}", speaker=rank) from problem


def clock_for(device: Device) -> Clock:
    """CUDA events around a call and a wait for the second; on a CPU the processor's clock."""
    if device.kind == "cuda":
        return cuda_seconds
    return host_seconds


def host_seconds(call: Call) -> float:
    """Seconds of a call that ends when it returns."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def cuda_seconds(call: Call) -> float:
    """Device seconds of what a call queues; the host's where it queues nothing (sleep)."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in ("begin", "end"))  # type: ignore[no-untyped-call]
    begin.record()
    call()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) * 1e-3


# A physical run: read, form the groups, warm up, play every iteration, log, summarise.

LOG_FOLDER = "comm_logs"
LOG_ENDING, RANKS_ENDING = "_log.csv", "_ranks.csv"


Read = Callable[[int], Work]
"""Gives the work for a number of ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """Options of a run. ``epochs`` None: as many iterations as the file has."""

    results: Path
    device: str = "auto"
    compute: Compute = Compute.REAL
    dtype: str = "bf16"
    epochs: int | None = None
    warmup: int = 1
    timeout_s: float = 120.0
    quiet: bool = False


@dataclass(slots=True, kw_only=True)
class Recorder:
    """Record of this rank: its log file, where it is the first of its stage, and its times by epoch."""

    rank: int
    file: LogFile | None
    prints: bool
    rows: list[GeneralItem] = field(default_factory=list)
    epochs: list[Pass] = field(default_factory=list)
    current: Pass | None = None

    def take(self, played: Pass) -> None:
        """A pass that has ended: its rows to the file and, of rank 0, to the terminal."""
        self.current = None
        rows = _rows(played)
        end = epoch_end(played.elapsed_s)
        if self.file is not None:
            self.file.add([*rows, end])
            self.rows += [*rows, end]
        if self.prints:
            lines = [operation_line(row, self.rank) for row in rows]
            print(
                "\n".join([*lines, epoch_line(len(self.epochs), end.elapsed_ms or 0.0, self.rank)]),
                flush=True,
            )
        self.epochs.append(played)

    def keep(self) -> None:
        """Before the run is ended by an error: what is through of the pass that was broken off."""
        if self.file is not None:
            if self.current is not None:
                self.file.add(_rows(self.current))
                self.current = None
            self.file.close()

    def keep_what_is_there(self) -> None:
        """``keep`` on the way out, where a full disk is what ends the run."""
        with suppress(ExportError):
            self.keep()


def _rows(played: Pass) -> list[GeneralItem]:
    pairs = zip(played.launches, list(played.times_s), strict=False)
    return [with_time(launch.item, seconds) for launch, seconds in pairs]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """Result of a run: on rank 0 its log and summary lines, on others nothing."""

    log: Log
    lines: list[str]


def run_workload(options: RunOptions, read: Read, layout: RankLayout) -> list[str]:
    """Run one work on all ranks; on rank 0 the lines that say what came of it.

    Raises UserError for a workload that does not fit this world, RankFailedError for a rank that cannot go on.
    """
    result: list[Work] = []
    world = open_world(
        layout,
        choose_device(options.device, layout),
        timeout_s=options.timeout_s,
        first=lambda world: result.append(read_on_all_ranks(world, read)),
    )
    came = run_in_world(options, lambda _: result[0], world, install_abort_hook(world))
    world.close()
    return came.lines


def run_in_world(options: RunOptions, read: Read, world: World, words: AbortHook) -> RunResult:
    """Run one work in a world that stays open. Raises NotAgreedError where the world could go on with another,
    RankFailedError where it is lost."""
    work = read_on_all_ranks(world, read)
    program = work.programs[work.degrees.stage_of(world.rank)]
    groups = open_groups(world, groups_used(work.programs), work.degrees)
    operations = agree(
        world,
        lambda: operations_for(program.everything, world.device, groups, options.compute, options.dtype),
    )
    operations.rank = world.rank
    player = Replayer(world=world, operations=operations, clock=clock_for(world.device))
    recorder = agree(world, lambda: _recorder(options, work, world))
    if world.watch is not None:
        world.watch.behind = Blame(programs=work.programs, degrees=work.degrees).behind
    words.keep = recorder.keep_what_is_there
    try:
        _play(options, player, program.init, program.iterations, recorder)
        agree(world, recorder.keep)
        came = _report(options, work, world, recorder)
    except BaseException as error:
        report_failure(world, error)
        recorder.keep_what_is_there()
        raise
    close_groups(groups.values())
    return came


def read_on_all_ranks(world: World, read: Read) -> Work:
    """The work, the same on all ranks. Raises NotAgreedError, said once, where it is not or does not fit them."""
    world.begin("reading the workload")
    work = agree(world, lambda: read(world.size))
    check_same(world, work.digest, f"the workload {work.name}")
    return work


def _recorder(options: RunOptions, work: Work, world: World) -> Recorder:
    """The first rank of each stage writes that stage's log, and the workload beside it."""
    stage = work.degrees.stage_of(world.rank)
    first = next(rank for rank in range(world.size) if work.degrees.stage_of(rank) == stage)
    if world.rank != first:
        return Recorder(rank=world.rank, file=None, prints=False)
    name = work.name if stage == 0 else f"{work.name}-stage{stage}"
    folder = options.results / LOG_FOLDER
    recorder = Recorder(
        rank=world.rank,
        file=LogFile(folder / f"{name}{LOG_ENDING}"),
        prints=world.leads and not options.quiet,
    )
    work.workloads[stage].write(folder / f"{name}_workload.csv", work.arguments)
    return recorder


def _play(
    options: RunOptions,
    player: Replayer,
    init: Launches,
    iterations: tuple[Launches, ...],
    recorder: Recorder,
) -> None:
    """Initialisation, warm-up of the first iteration, then every iteration."""
    kept = [player.prepare(one) for one in (init, *iterations)]

    def one_pass(index: int, name: str) -> Pass:
        played = Pass(launches=kept[min(index, len(iterations))])
        recorder.current = played
        player.play(played, name, min(index, len(iterations)))
        return played

    agree(player.world, partial(recorder.take, one_pass(0, "initialisation")))
    for _ in range(options.warmup):
        one_pass(1, "warm-up")
        recorder.current = None
    for index in range(1, (options.epochs or len(iterations)) + 1):
        played = one_pass(index, f"iteration {index}")
        agree(player.world, partial(recorder.take, played))


def _report(options: RunOptions, work: Work, world: World, recorder: Recorder) -> RunResult:
    """The summary of rank 0, and every rank's times in a file."""
    stage = work.degrees.stage_of(world.rank)
    mine = [
        [
            world.rank,
            stage,
            epoch,
            *(1e3 * s for s in (one.elapsed_s, one.communicating_s(), one.computing_s())),
        ]
        for epoch, one in enumerate(recorder.epochs)
    ]
    words = world.gather(json.dumps(mine))
    everyone = [RankTimes(*one) for word in words for one in json.loads(word)]
    path = options.results / LOG_FOLDER / f"{work.name}{RANKS_ENDING}"
    agree(world, lambda: write_ranks(path, everyone) if world.leads else None)
    if not world.leads or recorder.file is None:
        return RunResult(log=Log(), lines=[])
    left_out = work.programs[stage].left_out
    notes = [f"{left_out} rows over groups of one rank left out"] if left_out else []
    log = Log.of(recorder.rows)
    slow = [one.line() for one in slow_ranks(everyone)]
    wrote = [f"wrote {recorder.file.path}", f"wrote {path}"]
    return RunResult(log=log, lines=[*summary_lines(log), *notes, *outlier_lines(log), *slow, *wrote])
