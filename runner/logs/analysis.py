"""Analysis of a log: outliers, a summary by operation, slow ranks."""

import csv
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, astuple, dataclass, fields
from pathlib import Path
from typing import TextIO

import numpy as np

from profiler.timing import outliers
from runner.logs.log import Log, size_text
from solver.report.files import write_json
from spec.files import UnreadableFileError, atomic_file, read_file_text
from spec.program.kinds import plain_number
from workload.aicb.csv_workload import COMPUTATION, GeneralItem, num_stages
from workload.diagnostics import WorkloadError

MOST_LISTED = 10
FEWEST_OF_DRIFT = 5
DRIFT_SIGMAS = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlier:
    """A slow operation: its iteration (from 1), its place in the iteration, and the median time of equal operations."""

    iteration: int
    place: int
    item: GeneralItem
    median_ms: float

    def line(self) -> str:
        """One line on it."""
        item, elapsed_ms = self.item, self.item.elapsed_ms or 0.0
        size = "" if item.comm_type == COMPUTATION else f" of {size_text(item.msg_size)}"
        over = f" over {item.comm_group}" if item.comm_group else ""
        return (
            f"outlier: iteration {self.iteration}, operation {self.place}: {item.comm_type}{size}{over} "
            f"({item.stage or 'no stage'}) took {elapsed_ms:.3f} ms, {elapsed_ms / self.median_ms:.1f} x the median"
        )


def slow_operations(log: Log) -> list[Outlier]:
    """Outliers (profiler.timing) above the median of their kind, group, size, shapes and stage, over all iterations; the
    longest delay first."""
    like: dict[object, list[tuple[int, int, GeneralItem]]] = {}
    for iteration, epoch in enumerate(log.comm_log_each_epoch[1:], start=1):
        for place, item in enumerate(epoch, start=1):
            key = (item.comm_type, item.comm_group, item.comm_group_size, item.msg_size, item.shapes, item.stage)
            like.setdefault(key, []).append((iteration, place, item))
    result = []
    for same in like.values():
        times = np.asarray([item.elapsed_ms or 0.0 for _, _, item in same])
        median_ms = float(np.median(times))
        slow = outliers(times) & (times > median_ms) & (median_ms > 0)
        result += [
            Outlier(iteration=iteration, place=place, item=item, median_ms=median_ms)
            for (iteration, place, item), flagged in zip(same, slow, strict=True)
            if flagged
        ]
    return sorted(result, key=lambda one: one.median_ms - (one.item.elapsed_ms or 0.0))


def outlier_lines(log: Log) -> list[str]:
    """A line for each of the worst outliers, and the number of the others."""
    slow = slow_operations(log)
    more = [f"and {len(slow) - MOST_LISTED} more outliers"] if len(slow) > MOST_LISTED else []
    return [one.line() for one in slow[:MOST_LISTED]] + more


# The summary of a log: operations by kind, group and size, initialisation and iterations in separate tables.


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeSpread:
    """Statistics of several times in milliseconds; ``std_ms`` is the population's (divided by the count)."""

    count: int
    mean_ms: float
    min_ms: float
    max_ms: float
    p90_ms: float
    std_ms: float

    @staticmethod
    def of(readings_ms: Sequence[float]) -> "TimeSpread":
        """The statistics of at least one time."""
        values = np.asarray(readings_ms, dtype=np.float64)
        return TimeSpread(
            count=len(values),
            mean_ms=float(values.mean()),
            min_ms=float(values.min()),
            max_ms=float(values.max()),
            p90_ms=float(np.percentile(values, 90)),
            std_ms=float(values.std()),
        )

    @property
    def jitter(self) -> float:
        """Standard deviation over mean."""
        return self.std_ms / self.mean_ms if self.mean_ms > 0 else 0.0


def drift(times: Sequence[float]) -> float:
    """Returns by what share the last third of times in their order is longer than the first, by their means; 0 where that
    is below DRIFT_SIGMAS standard errors of the difference, or where the thirds have fewer than FEWEST_OF_DRIFT times."""
    third = len(times) // 3
    if third < FEWEST_OF_DRIFT:
        return 0.0
    first, last = np.asarray(times[:third]), np.asarray(times[-third:])
    error = np.sqrt((first.var(ddof=1) + last.var(ddof=1)) / third)
    difference = float(last.mean() - first.mean())
    return difference / float(first.mean()) if abs(difference) > DRIFT_SIGMAS * error else 0.0


def drift_lines(times: Sequence[float], what: str) -> list[str]:
    """A line on the drift of ``what`` (iterations, steps) if there is one."""
    share = drift(times)
    words = f"{100 * abs(share):.1f} % {'longer' if share > 0 else 'shorter'} than the first"
    return [f"drift: the last third of {len(times)} {what} takes {words}"] if share else []


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryRow:
    """All operations of one kind, group and size; ``busbw`` is their mean in GiB/s."""

    kind: str
    group: str
    ranks: int
    size_bytes: int
    spread: TimeSpread
    busbw: float


def rows_by_size(items: Sequence[GeneralItem]) -> list[SummaryRow]:
    """One row for each kind, group and size, sorted; computation is a single row, whatever its shapes."""
    result: dict[tuple[str, str, int, int], list[GeneralItem]] = {}
    for item in items:
        size = 0 if item.comm_type == COMPUTATION else item.msg_size
        result.setdefault((item.comm_type, item.comm_group, item.comm_group_size, size), []).append(item)
    return [
        SummaryRow(
            kind=kind,
            group=group,
            ranks=ranks,
            size_bytes=size,
            spread=TimeSpread.of([item.elapsed_ms or 0.0 for item in same]),
            busbw=float(np.mean([item.busbw or 0.0 for item in same])),
        )
        for (kind, group, ranks, size), same in sorted(result.items())
    ]


def summary_lines(log: Log) -> list[str]:
    """The tables that end a run."""
    init, train = log.comm_log_each_epoch[:1], log.comm_log_each_epoch[1:]
    lines: list[str] = []
    unit = "not run" if log.unrun else "times in ms, bandwidth in GiB/s"
    for stage, epochs in (("init", init), ("train", train)):
        items = [item for epoch in epochs for item in epoch]
        if items:
            lines += [f"Detailed comm info for {stage} stage ({unit})", *_table(items, unrun=log.unrun), ""]
    return lines + ([] if log.unrun else list(_iterations(log.epoch_times)))


def _table(items: Sequence[GeneralItem], *, unrun: bool) -> Iterator[str]:
    times = f" {'mean':>10} {'std':>9} {'min':>10} {'max':>10} {'p90':>10} {'busbw':>9}"
    head = f"{'comm_type':16} {'comm_group':16} {'ranks':>5} {'size':>10} {'count':>6}"
    yield f"{head} {'total':>10}" if unrun else head + times
    for row in rows_by_size(items):
        spread = row.spread
        size = "-" if row.kind == COMPUTATION else size_text(row.size_bytes)
        line = f"{row.kind:16} {row.group or '-':16} {row.ranks or '-':>5} {size:>10} {spread.count:6d}"
        yield (
            f"{line} {size_text(row.size_bytes * spread.count):>10}"
            if unrun
            else f"{line} {spread.mean_ms:10.3f} {spread.std_ms:9.3f} {spread.min_ms:10.3f} {spread.max_ms:10.3f} "
            f"{spread.p90_ms:10.3f} {row.busbw:9.2f}"
        )


def _iterations(epoch_times: Sequence[float]) -> Iterator[str]:
    if not epoch_times:
        return
    yield f"init time: {epoch_times[0]:.3f} ms"
    if len(epoch_times) > 1:
        spread = TimeSpread.of(epoch_times[1:])
        yield (
            f"iteration time over {spread.count}: mean {spread.mean_ms:.3f} ms, min {spread.min_ms:.3f}, max {spread.max_ms:.3f}, "
            f"p90 {spread.p90_ms:.3f}, std {spread.std_ms:.3f}, jitter {100 * spread.jitter:.1f} % of the mean"
        )
        yield from drift_lines(epoch_times[1:], "iterations")


# Every rank's times by epoch, NAME_ranks.csv beside a log, and which ranks are slow in them.

MAX_FILE_BYTES = 2**28
SLOWER = 0.1
"""A rank is reported if it is slower than the others of its stage by this share."""


@dataclass(frozen=True, slots=True)
class RankTimes:
    """Times of one rank in one epoch (0: initialisation). Communication includes waiting for other ranks."""

    rank: int
    stage: int
    epoch: int
    iteration_ms: float
    communication_ms: float
    computation_ms: float

    @property
    def own_ms(self) -> float:
        """Milliseconds outside of communication."""
        return self.iteration_ms - self.communication_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowRank:
    """A rank whose ``own_ms``, the median over iterations, is above that of the others of its stage."""

    rank: int
    stage: int
    own_ms: float
    others_ms: float

    def line(self) -> str:
        """One line on it."""
        more = 100 * (self.own_ms / self.others_ms - 1) if self.others_ms > 0 else float("inf")
        return (
            f"slow: rank {self.rank} of stage {self.stage} spends {self.own_ms:.3f} ms per iteration outside of "
            f"communication, {more:.0f} % more than the others ({self.others_ms:.3f} ms)"
        )


def write_ranks(path: Path, everyone: Iterable[RankTimes]) -> None:
    """A line a rank and epoch."""
    with atomic_file(path) as handle:
        writer = csv.writer(handle, lineterminator="\n")
        writer.writerow([one.name for one in fields(RankTimes)])
        for one in everyone:
            writer.writerow([one.rank, one.stage, one.epoch, *(f"{value:.6f}" for value in astuple(one)[3:])])


def read_ranks(path: Path) -> list[RankTimes]:
    """The times of a file. Raises WorkloadError for a line that cannot be read."""
    try:
        rows = list(csv.reader(read_file_text(path, MAX_FILE_BYTES).splitlines()))
    except (UnreadableFileError, csv.Error) as error:
        raise WorkloadError(f"{path}: {error}") from error
    names = [one.name for one in fields(RankTimes)]
    if not rows or rows[0] != names:
        raise WorkloadError(f"{path}: line 1: the columns are not {', '.join(names)}")
    result = []
    for number, cells in enumerate(rows[1:], start=2):
        values = [plain_number(cell) for cell in cells]
        if len(values) != len(names) or not all(value >= 0 for value in values):
            raise WorkloadError(f"{path}: line {number}: is no rank's times")
        result.append(RankTimes(*map(int, values[:3]), *values[3:]))
    return result


def slow_ranks(everyone: Sequence[RankTimes]) -> list[SlowRank]:
    """The ranks that others of their stage wait for, the slowest first."""
    own: dict[int, dict[int, list[float]]] = {}
    for one in everyone:
        if one.epoch:
            own.setdefault(one.stage, {}).setdefault(one.rank, []).append(one.own_ms)
    result = []
    for stage, ranks in own.items():
        middle = {rank: float(np.median(times)) for rank, times in ranks.items()}
        for rank, own_ms in middle.items():
            others = [value for other, value in middle.items() if other != rank]
            if others and own_ms > (1 + SLOWER) * float(np.median(others)):
                result.append(SlowRank(rank=rank, stage=stage, own_ms=own_ms, others_ms=float(np.median(others))))
    return sorted(result, key=lambda one: one.others_ms - one.own_ms)


# The verb ``analyse``: summary, outliers, slow ranks.

LOG_ENDING = "_log"


def log_record(log: Log, slow: Sequence[SlowRank]) -> dict[str, object]:
    """Everything of a summary as plain values with the unit in the name."""
    init, *iterations = log.comm_log_each_epoch or [[]]
    times_ms = [] if log.unrun else log.epoch_times

    def rows(items: Sequence[GeneralItem]) -> list[dict[str, object]]:
        if not log.unrun:
            return [asdict(row) for row in rows_by_size(items)]
        names = ("kind", "group", "ranks", "size_bytes")
        return [
            {name: getattr(row, name) for name in names} | {"count": row.spread.count} for row in rows_by_size(items)
        ]

    return {
        "iterations_ms": list(times_ms[1:]),
        "init_ms": times_ms[0] if times_ms else None,
        "drift": drift(times_ms[1:]),
        "init": rows(init),
        "train": rows([item for epoch in iterations for item in epoch]),
        "outliers": [
            {"iteration": one.iteration, "place": one.place, "median_ms": one.median_ms, **_item_record(one.item)}
            for one in slow_operations(log)
        ],
        "slow_ranks": [asdict(one) for one in slow],
        "incomplete": log.incomplete,
    }


def _item_record(item: GeneralItem) -> dict[str, object]:
    names = ("comm_type", "comm_group", "comm_group_size", "msg_size", "stage", "elapsed_ms")
    return {name: getattr(item, name) for name in names}


@dataclass(frozen=True, slots=True, kw_only=True)
class LogAnalysis:
    """A log or an unrun workload by its name, its slow ranks, and the analysis as lines."""

    name: str
    log: Log
    slow: Sequence[SlowRank]
    lines: Sequence[str]


def analyse_log(path: Path, json: Path | TextIO | None) -> LogAnalysis:
    """The analysis of a log or an unrun workload, after writing its values. Raises WorkloadError for another file."""
    log = Log.load(path, may_be_unrun=True)
    name = path.stem.removesuffix(LOG_ENDING)
    ranks = path.with_name(f"{name}_ranks.csv")
    slow = slow_ranks(read_ranks(ranks)) if ranks.is_file() else []
    stages = num_stages(path)
    of_one = [f"stage 0 of {stages} in the file"] if stages > 1 else []
    incomplete = [f"the log ends inside epoch {len(log.epoch_times)}"] if log.incomplete else []
    lines = [*summary_lines(log), *of_one, *incomplete, *outlier_lines(log), *(one.line() for one in slow)]
    if json is not None:
        write_json(json, log_record(log, slow))
    return LogAnalysis(name=name, log=log, slow=slow, lines=lines)
