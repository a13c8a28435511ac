"""The summary of a log: operations by kind, group and size, initialisation and iterations apart."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from runner.logs.lines import size_text
from runner.logs.log import Log
from workload.aicb.csv_workload import COMPUTATION, GeneralItem


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Milliseconds of several readings; ``std`` of the readings themselves (divided by their number)."""

    count: int
    mean_ms: float
    min_ms: float
    max_ms: float
    p90_ms: float
    std_ms: float

    @staticmethod
    def of(readings_ms: Sequence[float]) -> "Spread":
        """Of at least one reading."""
        values = np.asarray(readings_ms, dtype=np.float64)
        return Spread(
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """All operations of one kind, group and size. ``busbw`` in GiB/s, the mean."""

    kind: str
    group: str
    ranks: int
    size_bytes: int
    spread: Spread
    busbw: float


def rows_by_size(items: Sequence[GeneralItem]) -> list[Row]:
    """One row for each kind, group and size, in that order; computation is one row, whatever its shapes."""
    found: dict[tuple[str, str, int, int], list[GeneralItem]] = {}
    for item in items:
        size = 0 if item.comm_type == COMPUTATION else item.msg_size
        found.setdefault((item.comm_type, item.comm_group, item.comm_group_size, size), []).append(item)
    return [
        Row(
            kind=kind,
            group=group,
            ranks=ranks,
            size_bytes=size,
            spread=Spread.of([item.elapsed_ms or 0.0 for item in same]),
            busbw=float(np.mean([item.busbw or 0.0 for item in same])),
        )
        for (kind, group, ranks, size), same in sorted(found.items())
    ]


def summary_lines(log: Log) -> list[str]:
    """The tables that end a run."""
    init, train = log.comm_log_each_epoch[:1], log.comm_log_each_epoch[1:]
    lines: list[str] = []
    for stage, epochs in (("init", init), ("train", train)):
        items = [item for epoch in epochs for item in epoch]
        if items:
            lines += [
                f"Detailed comm info for {stage} stage (times in ms, bandwidth in GiB/s)",
                *_table(items),
                "",
            ]
    return lines + list(_iterations(log.epoch_times))


def _table(items: Sequence[GeneralItem]) -> Iterator[str]:
    yield (
        f"{'comm_type':16} {'comm_group':16} {'ranks':>5} {'size':>10} {'count':>6} {'mean':>10} {'std':>9} "
        f"{'min':>10} {'max':>10} {'p90':>10} {'busbw':>9}"
    )
    for row in rows_by_size(items):
        one = row.spread
        size = "-" if row.kind == COMPUTATION else size_text(row.size_bytes)
        yield (
            f"{row.kind:16} {row.group or '-':16} {row.ranks or '-':>5} {size:>10} {one.count:6d} {one.mean_ms:10.3f} "
            f"{one.std_ms:9.3f} {one.min_ms:10.3f} {one.max_ms:10.3f} {one.p90_ms:10.3f} {row.busbw:9.2f}"
        )


def _iterations(epoch_times: Sequence[float]) -> Iterator[str]:
    if not epoch_times:
        return
    yield f"init time: {epoch_times[0]:.3f} ms"
    if len(epoch_times) > 1:
        one = Spread.of(epoch_times[1:])
        yield (
            f"iteration time over {one.count}: mean {one.mean_ms:.3f} ms, min {one.min_ms:.3f}, max {one.max_ms:.3f}, "
            f"p90 {one.p90_ms:.3f}, std {one.std_ms:.3f}, jitter {100 * one.jitter:.1f} % of the mean"
        )
