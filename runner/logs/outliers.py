"""Operations that took far longer than their like."""

from dataclasses import dataclass

import numpy as np

from profiler.timing import outliers
from runner.logs.lines import size_text
from runner.logs.log import Log
from workload.aicb.csv_workload import COMPUTATION, GeneralItem

MOST_NAMED = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlier:
    """An operation of an iteration (1: the first), its place in it, and the median of its like."""

    iteration: int
    place: int
    item: GeneralItem
    median_ms: float

    def line(self) -> str:
        """For a reader."""
        item, elapsed_ms = self.item, self.item.elapsed_ms or 0.0
        size = "" if item.comm_type == COMPUTATION else f" of {size_text(item.msg_size)}"
        over = f" over {item.comm_group}" if item.comm_group else ""
        return (
            f"outlier: iteration {self.iteration}, operation {self.place}: {item.comm_type}{size}{over} "
            f"({item.stage or 'no stage'}) took {elapsed_ms:.3f} ms, {elapsed_ms / self.median_ms:.1f} x the median"
        )


def slow_operations(log: Log) -> list[Outlier]:
    """Those of the iterations that profiler.timing calls outliers among all of their kind, group, size,
    shapes and stage, and that are above the median; the longest delay first."""
    like: dict[object, list[tuple[int, int, GeneralItem]]] = {}
    for iteration, epoch in enumerate(log.comm_log_each_epoch[1:], start=1):
        for place, item in enumerate(epoch, start=1):
            key = (
                item.comm_type,
                item.comm_group,
                item.comm_group_size,
                item.msg_size,
                item.shapes,
                item.stage,
            )
            like.setdefault(key, []).append((iteration, place, item))
    found = []
    for same in like.values():
        times = np.asarray([item.elapsed_ms or 0.0 for _, _, item in same])
        median_ms = float(np.median(times))
        slow = outliers(times) & (times > median_ms) & (median_ms > 0)
        found += [
            Outlier(iteration=iteration, place=place, item=item, median_ms=median_ms)
            for (iteration, place, item), flagged in zip(same, slow, strict=True)
            if flagged
        ]
    return sorted(found, key=lambda one: one.median_ms - (one.item.elapsed_ms or 0.0))


def outlier_lines(log: Log) -> list[str]:
    """The worst by name, and how many more there are."""
    found = slow_operations(log)
    more = [f"and {len(found) - MOST_NAMED} outliers more"] if len(found) > MOST_NAMED else []
    return [one.line() for one in found[:MOST_NAMED]] + more
