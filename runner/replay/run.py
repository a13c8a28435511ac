"""A physical run: read, form the groups, warm up, play every iteration, log, summarise."""

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from profiler.device import choose_device
from profiler.ranks.rank_layout import RankLayout
from profiler.ranks.world import World, open_world
from runner.groups.agreement import agreed, same_everywhere
from runner.groups.last_words import LastWords, failed, last_words
from runner.groups.process_groups import close_groups, open_groups
from runner.logs.lines import epoch_line, operation_line
from runner.logs.log import Log, ended, logged
from runner.logs.log_file import LogFile
from runner.logs.outliers import outlier_lines
from runner.logs.ranks_file import RankTimes, slow_ranks, write_ranks
from runner.logs.summary import summary_lines
from runner.replay.blame import Blame
from runner.replay.operations import Compute, operations_for
from runner.replay.player import Played, Player, clock_for
from runner.replay.program import Launches, groups_used
from runner.replay.stage_files import Work
from spec.errors import ExportError
from workload.aicb.csv_workload import GeneralItem

LOG_FOLDER = "comm_logs"
LOG_ENDING, RANKS_ENDING = "_log.csv", "_ranks.csv"


Read = Callable[[int], Work]
"""Gives the work for a number of ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """How to run. ``epochs`` None: as many iterations as the file has."""

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
    """What this rank keeps: its log file, where it is the first of its stage, and its times by epoch."""

    rank: int
    file: LogFile | None
    prints: bool
    rows: list[GeneralItem] = field(default_factory=list)
    epochs: list[Played] = field(default_factory=list)
    current: Played | None = None

    def take(self, played: Played) -> None:
        """A pass that has ended: its rows to the file and, of rank 0, to the terminal."""
        self.current = None
        rows = _rows(played)
        end = ended(played.elapsed_s)
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


def _rows(played: Played) -> list[GeneralItem]:
    pairs = zip(played.launches, list(played.times_s), strict=False)
    return [logged(launch.item, seconds) for launch, seconds in pairs]


@dataclass(frozen=True, slots=True, kw_only=True)
class Came:
    """What came of a run: on rank 0 its log and the lines that say so, on others nothing."""

    log: Log
    lines: list[str]


def run_workload(options: RunOptions, read: Read, layout: RankLayout) -> list[str]:
    """Run one work on all ranks; on rank 0 the lines that say what came of it.

    Raises UserError for a workload that does not fit this world, RankFailedError for a rank that cannot go on.
    """
    found: list[Work] = []
    world = open_world(
        layout,
        choose_device(options.device, layout),
        timeout_s=options.timeout_s,
        first=lambda world: found.append(read_alike(world, read)),
    )
    came = run_in_world(options, lambda _: found[0], world, last_words(world))
    world.close()
    return came.lines


def run_in_world(options: RunOptions, read: Read, world: World, words: LastWords) -> Came:
    """Run one work in a world that stays open. Raises NotAgreedError where the world could go on with another,
    RankFailedError where it is lost."""
    work = read_alike(world, read)
    program = work.programs[work.degrees.stage_of(world.rank)]
    groups = open_groups(world, groups_used(work.programs), work.degrees)
    operations = agreed(
        world,
        lambda: operations_for(program.everything, world.device, groups, options.compute, options.dtype),
    )
    operations.rank = world.rank
    player = Player(world=world, operations=operations, clock=clock_for(world.device))
    recorder = agreed(world, lambda: _recorder(options, work, world))
    if world.watch is not None:
        world.watch.behind = Blame(programs=work.programs, degrees=work.degrees).behind
    words.keep = recorder.keep_what_is_there
    try:
        _play(options, player, program.init, program.iterations, recorder)
        agreed(world, recorder.keep)
        came = _report(options, work, world, recorder)
    except BaseException as error:
        failed(world, error)
        recorder.keep_what_is_there()
        raise
    close_groups(groups.values())
    return came


def read_alike(world: World, read: Read) -> Work:
    """The work, the same on all ranks. Raises NotAgreedError, said once, where it is not or does not fit them."""
    world.begin("reading the workload")
    work = agreed(world, lambda: read(world.size))
    same_everywhere(world, work.digest, f"the workload {work.name}")
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
    options: RunOptions, player: Player, init: Launches, iterations: tuple[Launches, ...], recorder: Recorder
) -> None:
    """Initialisation, warm-up of the first iteration, then every iteration."""
    kept = [player.prepare(one) for one in (init, *iterations)]

    def one_pass(index: int, name: str) -> Played:
        played = Played(launches=kept[min(index, len(iterations))])
        recorder.current = played
        player.play(played, name, min(index, len(iterations)))
        return played

    agreed(player.world, partial(recorder.take, one_pass(0, "initialisation")))
    for _ in range(options.warmup):
        one_pass(1, "warm-up")
        recorder.current = None
    for index in range(1, (options.epochs or len(iterations)) + 1):
        played = one_pass(index, f"iteration {index}")
        agreed(player.world, partial(recorder.take, played))


def _report(options: RunOptions, work: Work, world: World, recorder: Recorder) -> Came:
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
    agreed(world, lambda: write_ranks(path, everyone) if world.leads else None)
    if not world.leads or recorder.file is None:
        return Came(log=Log(), lines=[])
    left_out = work.programs[stage].left_out
    notes = [f"{left_out} rows over groups of one rank left out"] if left_out else []
    log = Log.of(recorder.rows)
    slow = [one.line() for one in slow_ranks(everyone)]
    wrote = [f"wrote {recorder.file.path}", f"wrote {path}"]
    return Came(log=log, lines=[*summary_lines(log), *notes, *outlier_lines(log), *slow, *wrote])
