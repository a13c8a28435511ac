"""The log of a run: its operations with times and bandwidths, as AICB writes it.

Bandwidths are AICB's: GiB/s (2^30 bytes), with its own bus factors. These differ from nccl-tests' (profdb.busbw): an
all-to-all has factor 1.
"""

import csv
import io
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path

from spec.errors import ExportError
from workload.aicb.csv_workload import COLUMNS, COMPUTATION, EPOCH_END, GeneralItem, rows_of
from workload.diagnostics import WorkloadError

GIB = 2**30
ONE_WAY = frozenset({"all_gather", "all_gather_into_tensor", "reduce_scatter", "reduce_scatter_tensor"})


def bus_factor(kind: str, ranks: int) -> float:
    """busbw / algbw: all_reduce 2(n-1)/n, all_gather and reduce_scatter (n-1)/n, barrier and computation 0,
    all else 1.
    """
    if kind in ("barrier", COMPUTATION):
        return 0.0
    if kind == "all_reduce":
        return 2 * (ranks - 1) / ranks
    return (ranks - 1) / ranks if kind in ONE_WAY else 1.0


def bandwidths(item: GeneralItem, elapsed_ms: float) -> tuple[float, float]:
    """algbw and busbw in GiB/s; 0 for a barrier and computation, and busbw 0 if the size of the group is unknown."""
    if item.comm_type in ("barrier", COMPUTATION) or elapsed_ms <= 0:
        return 0.0, 0.0
    algbw = item.msg_size / GIB / (elapsed_ms * 1e-3)
    return algbw, algbw * bus_factor(item.comm_type, item.comm_group_size) if item.comm_group_size else 0.0


@dataclass(slots=True, kw_only=True)
class Log:
    """``comm_log_each_epoch`` has the operations of each epoch, initialisation first, ``epoch_times`` the milliseconds of
    each epoch that ended. An interrupted epoch has operations but no time."""

    comm_log_each_epoch: list[list[GeneralItem]] = field(default_factory=list)
    epoch_times: list[float] = field(default_factory=list)

    @property
    def comm_logs(self) -> list[GeneralItem]:
        """All operations in order."""
        return [item for epoch in self.comm_log_each_epoch for item in epoch]

    @property
    def incomplete(self) -> bool:
        """True if the last epoch did not end."""
        return len(self.comm_log_each_epoch) > len(self.epoch_times)

    @property
    def unrun(self) -> bool:
        """True if no operation has a time: a workload before its run."""
        return all(item.elapsed_ms is None for item in self.comm_logs)

    @staticmethod
    def load(path: str | PathLike[str], *, may_be_unrun: bool = False) -> "Log":
        """A log that this runner or AICB wrote, or with ``may_be_unrun`` a workload. Raises WorkloadError for another file,
        and for operations without times."""
        log = Log.of(rows_of(Path(path)))
        if not log.comm_logs and not log.epoch_times:
            raise WorkloadError(f"{path}: holds no operation")
        for item in () if may_be_unrun and log.unrun else log.comm_logs:
            if item.elapsed_ms is None:
                raise WorkloadError(f"{path}: {item.comm_type} ({item.stage}) has no time: a workload, no log of a run")
        return log

    @staticmethod
    def of(rows: Iterable[GeneralItem]) -> "Log":
        """The log of a file's rows."""
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


def with_time(item: GeneralItem, elapsed_s: float) -> GeneralItem:
    """An operation with its time and bandwidths."""
    elapsed_ms = elapsed_s * 1e3
    algbw, busbw = bandwidths(item, elapsed_ms)
    return replace(item, elapsed_ms=round(elapsed_ms, 6), algbw=round(algbw, 4), busbw=round(busbw, 4))


def epoch_end(elapsed_s: float) -> GeneralItem:
    """The row that ends an epoch."""
    return GeneralItem(comm_type=EPOCH_END, elapsed_ms=round(elapsed_s * 1e3, 6))


# Operations of a log as AICB prints them, one line each.

STEP = 1024


def operation_line(item: GeneralItem, rank: int) -> str:
    """``[RANK 0] comm op: all_reduce | comm group: tp_group | time (ms): 0.66 | msg size: 40.0 MB | ...``; a
    computation has no size and no bandwidth."""
    size = "0" if item.comm_type == COMPUTATION else size_text(item.msg_size)
    return (
        f"[RANK {rank}] comm op: {item.comm_type} | comm group: {item.comm_group or 'None'} | "
        f"time (ms): {item.elapsed_ms or 0.0:.3f} | msg size: {size} | "
        f"algbw (GB): {item.algbw or 0.0:.2f} | busbw (GB): {item.busbw or 0.0:.2f}"
    )


def epoch_line(epoch: int, elapsed_ms: float, rank: int) -> str:
    """The line that ends an epoch; 0 is initialisation."""
    return f"[RANK {rank}] --------epoch {epoch} | micro_step time {elapsed_ms:.3f} ---------"


def size_text(size_bytes: int) -> str:
    """Bytes in steps of 1024, as AICB writes them: ``512 B``, ``40.0 MB``."""
    if size_bytes < STEP:
        return f"{size_bytes} B"
    size = float(size_bytes)
    for unit in ("KB", "MB", "GB"):
        size /= STEP
        if size < STEP or unit == "GB":
            break
    return f"{size:.1f} {unit}"


# Writing a log during a run: finished operations are on the disk.


class LogFile:
    """A log that is written to ``path``.part and renamed to ``path`` when it is closed, also by an error that ends the
    run. Raises ExportError if the disk is full or fails; the file then still holds whole rows."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.part = path.with_name(f"{path.name}.part")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._handle = self.part.open("wb", buffering=0)
        except OSError as error:
            raise ExportError(f"{path}: cannot be written: {error.strerror}") from error
        self._whole_bytes = 0
        self._write([list(COLUMNS)])

    def add(self, items: Iterable[GeneralItem]) -> None:
        """Write rows; they are on the disk when this returns."""
        self._write(item.cells() for item in items)

    def close(self) -> None:
        """Give the file its final name. Further calls do nothing."""
        if self._handle.closed:
            return
        try:
            self._handle.close()
            self.part.replace(self.path)
        except OSError as error:
            raise ExportError(f"{self.path}: cannot be written: {error.strerror}") from error

    def _write(self, rows: Iterable[list[str]]) -> None:
        buffer = io.StringIO()
        csv.writer(buffer, lineterminator="\n").writerows(rows)
        remaining = memoryview(buffer.getvalue().encode())
        size_bytes = len(remaining)
        try:
            while remaining:
                remaining = remaining[self._handle.write(remaining) :]
        except OSError as error:
            # Drop the incomplete row, so that the file can be read.
            with suppress(OSError):
                self._handle.truncate(self._whole_bytes)
            raise ExportError(f"{self.path}: cannot be written: {error.strerror}") from error
        self._whole_bytes += size_bytes
