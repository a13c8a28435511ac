"""The log as it is written while a run goes on: what is done lies on the disk."""

import csv
import io
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from spec.errors import ExportError
from workload.aicb.csv_workload import COLUMNS, GeneralItem


class LogFile:
    """Rows are added to ``path``.part, which takes the place of ``path`` when the log is closed, also by an error that
    ends the run. Raises ExportError when the disk does not take them; what it took before then is whole rows."""

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
        """Rows, which are on the disk when this returns."""
        self._write(item.cells() for item in items)

    def close(self) -> None:
        """Give the file its name; once is enough."""
        if self._handle.closed:
            return
        try:
            self._handle.close()
            self.part.replace(self.path)
        except OSError as error:
            raise ExportError(f"{self.path}: cannot be written: {error.strerror}") from error

    def __enter__(self) -> "LogFile":
        """Closed when the block ends."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        """An error of closing must not hide that of the block."""
        try:
            self.close()
        except ExportError:
            if problem is None:
                raise

    def _write(self, rows: Iterable[list[str]]) -> None:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(rows)
        left = memoryview(text.getvalue().encode())
        size_bytes = len(left)
        try:
            while left:
                left = left[self._handle.write(left) :]
        except OSError as error:
            with suppress(OSError):
                self._handle.truncate(self._whole_bytes)
            raise ExportError(f"{self.path}: cannot be written: {error.strerror}") from error
        self._whole_bytes += size_bytes
