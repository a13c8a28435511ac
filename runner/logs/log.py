"""The log of a run: its operations with their times, by iteration."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path

from runner.logs.bandwidth import bandwidths
from workload.aicb.csv_workload import EPOCH_END, GeneralItem, rows_of
from workload.findings import WorkloadError


@dataclass(slots=True, kw_only=True)
class Log:
    """``comm_log_each_epoch``: operations by epoch, initialisation first; ``epoch_times``: milliseconds of each that
    ended. An epoch that was cut off has operations and no time."""

    comm_log_each_epoch: list[list[GeneralItem]] = field(default_factory=list)
    epoch_times: list[float] = field(default_factory=list)

    @property
    def comm_logs(self) -> list[GeneralItem]:
        """Every operation in order."""
        return [item for epoch in self.comm_log_each_epoch for item in epoch]

    @property
    def cut_off(self) -> bool:
        """Whether the last epoch did not end."""
        return len(self.comm_log_each_epoch) > len(self.epoch_times)

    @staticmethod
    def load(path: str | PathLike[str]) -> "Log":
        """A log as this runner or AICB wrote it. Raises WorkloadError for a file that is none, and for one whose
        operations have no times."""
        log = Log.of(rows_of(Path(path)))
        if not log.comm_logs and not log.epoch_times:
            raise WorkloadError(f"{path}: holds no operation")
        for item in log.comm_logs:
            if item.elapsed_ms is None:
                raise WorkloadError(
                    f"{path}: {item.comm_type} ({item.stage}) has no time: a workload, no log of a run"
                )
        return log

    @staticmethod
    def of(rows: Iterable[GeneralItem]) -> "Log":
        """Rows of a log file."""
        log = Log()
        epoch: list[GeneralItem] = []
        for item in rows:
            if item.comm_type == EPOCH_END:
                log.comm_log_each_epoch.append(epoch)
                log.epoch_times.append(item.elapsed_ms or 0.0)
                epoch = []
            else:
                epoch.append(item)
        if epoch:
            log.comm_log_each_epoch.append(epoch)
        return log


def logged(item: GeneralItem, elapsed_s: float) -> GeneralItem:
    """An operation with its time and bandwidths."""
    elapsed_ms = elapsed_s * 1e3
    algbw, busbw = bandwidths(item, elapsed_ms)
    return replace(item, elapsed_ms=round(elapsed_ms, 6), algbw=round(algbw, 4), busbw=round(busbw, 4))


def ended(elapsed_s: float) -> GeneralItem:
    """The row that ends an epoch."""
    return GeneralItem(comm_type=EPOCH_END, elapsed_ms=round(elapsed_s * 1e3, 6))
