"""Running a suite: its workloads in a row in one world; what is done stays done when it is started again."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from profiler.device import choose_device
from profiler.ranks.rank_layout import RankLayout
from profiler.ranks.world import World, open_world
from runner.groups.agreement import NotAgreedError, agreed
from runner.groups.last_words import last_words
from runner.logs.log import Log
from runner.logs.summary import Spread
from runner.replay.operations import Compute
from runner.replay.run import LOG_ENDING, LOG_FOLDER, RunOptions, run_in_world
from runner.replay.suite_file import Entry
from spec.replaced_file import replaced_file
from spec.text_file import UnreadableFileError, read_file_text
from workload.aicb.csv_workload import COMPUTATION
from workload.findings import WorkloadError

DONE = "suite_done.json"
MAX_DONE_BYTES = 2**22


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of the table that ends a suite; ``said`` why there are no times."""

    name: str
    log: Log | None = None
    said: str = ""

    def text(self) -> str:
        """Mean and 90th percentile of an iteration, jitter, the share of communication."""
        times = self.log.epoch_times[1:] if self.log else []
        if self.log is None or not times:
            return f"{self.name:24} {self.said}"
        one = Spread.of(times)
        moved = sum(
            item.elapsed_ms or 0.0
            for epoch in self.log.comm_log_each_epoch[1:]
            for item in epoch
            if item.comm_type != COMPUTATION
        )
        return (
            f"{self.name:24} {one.count:10d} {one.mean_ms:12.3f} {one.p90_ms:12.3f} {100 * one.jitter:9.1f} "
            f"{100 * moved / sum(times):14.1f} {self.said}".rstrip()
        )


HEADER = f"{'workload':24} {'iterations':>10} {'mean ms':>12} {'p90 ms':>12} {'jitter %':>9} {'communication %':>14}"


def run_suite(entries: Sequence[Entry], options: RunOptions, root: Path, layout: RankLayout) -> list[str]:
    """Run every workload that is not done; on rank 0 the table. A workload that does not fit this world is left out.

    Raises RankFailedError when the world is lost; what is done is kept.
    """
    world = open_world(layout, choose_device(options.device, layout), timeout_s=options.timeout_s)
    words = last_words(world)
    done = agreed(world, lambda: _done(options.results, world))
    table: list[Line] = []
    for number, entry in enumerate(entries, start=1):
        if done.get(entry.name) == repr(entry):
            table.append(_earlier(entry.name, options.results) if world.leads else Line(name=entry.name))
            continue
        if world.leads:
            print(f"--- {entry.name} ({number} of {len(entries)})", flush=True)
        read = partial(entry.read, root=root, computation=options.compute is not Compute.SKIP)
        try:
            came = run_in_world(options, read, world, words)
        except NotAgreedError as left_out:
            table.append(Line(name=entry.name, said=f"left out: {left_out}"))
            continue
        if came.lines:
            print("\n".join(came.lines), flush=True)
        table.append(Line(name=entry.name, log=came.log))
        done[entry.name] = repr(entry)
        agreed(world, partial(_keep_done, options.results, done, world))
    world.close()
    return [HEADER, *(line.text() for line in table)] if world.leads else []


def _done(results: Path, world: World) -> dict[str, str]:
    """What rank 0 finds done in the results: name -> the entry that was run."""
    text = "{}"
    path = results / DONE
    if world.leads and path.is_file():
        try:
            text = read_file_text(path, MAX_DONE_BYTES)
        except UnreadableFileError as error:
            raise WorkloadError(f"{path}: {error}") from error
    return text_of(world.gather(text)[0], path)


def text_of(text: str, path: Path) -> dict[str, str]:
    """The file of what is done. Raises WorkloadError for another."""
    try:
        read = json.loads(text)
    except ValueError as error:
        raise WorkloadError(f"{path}: is no list of what is done: {error}") from error
    if not isinstance(read, dict) or not all(isinstance(value, str) for value in read.values()):
        raise WorkloadError(f"{path}: is no list of what is done")
    return read


def _keep_done(results: Path, done: dict[str, str], world: World) -> None:
    if world.leads:
        with replaced_file(results / DONE) as handle:
            json.dump(done, handle, indent=2)
            handle.write("\n")


def _earlier(name: str, results: Path) -> Line:
    """A line of a workload that an earlier start has run."""
    try:
        log = Log.load(results / LOG_FOLDER / f"{name}{LOG_ENDING}")
    except WorkloadError as error:
        return Line(name=name, said=f"done before, but {error}")
    return Line(name=name, log=log, said="(done before)")
