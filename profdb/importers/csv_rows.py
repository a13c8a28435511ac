"""Rows of a CSV file with their line numbers; cells are read, or rejected with a reason."""

import csv
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from spec.errors import ProfileError
from spec.files import MOST_MEASURED_BYTES, UnreadableFileError, read_file_text


@dataclass(frozen=True, slots=True)
class CsvRow:
    """One line of a CSV file: cells by column name. Every method that reads a cell raises ProfileError naming file,
    line and column."""

    path: Path
    line: int
    cells: dict[str, str]

    def refuse(self, column: str, reason: str) -> ProfileError:
        """Returns the error for one cell."""
        return ProfileError(
            f"{self.path}:{self.line}: {column} = {self.cells.get(column, '')!r}: {reason}; nothing imported"
        )

    def text(self, column: str, default: str | None = None) -> str:
        """Returns a cell, stripped; ``default`` where the column is absent or empty."""
        result = self.cells.get(column, "").strip()
        if result:
            return result
        if default is None:
            raise self.refuse(column, "must not be empty")
        return default

    def whole(self, column: str, default: int | None = None) -> int:
        """Returns a whole number of at least 1 (10 and 10.0 alike)."""
        if default is not None and not self.cells.get(column, "").strip():
            return default
        text = self.text(column)
        try:
            number = float(text)
        except ValueError as error:
            raise self.refuse(column, "must be a whole number") from error
        # Spreadsheets write whole numbers as 10.0; float() also accepts inf and nan.
        if not math.isfinite(number) or number != int(number) or number < 1:
            raise self.refuse(column, "must be a whole number of at least 1")
        return int(number)

    def seconds(self, column: str, unit_s: float) -> float:
        """Returns a positive, finite time, which the cell states in units of ``unit_s`` seconds."""
        text = self.text(column)
        try:
            number = float(text)
        except ValueError as error:
            raise self.refuse(column, "must be a time") from error
        if not math.isfinite(number) or number <= 0.0:
            raise self.refuse(column, "must be a positive, finite time")
        return number * unit_s


def read_rows(path: Path, required: Sequence[str]) -> Iterator[CsvRow]:
    """Yields the rows of ``path``. Raises ProfileError when it can't be read, lacks a required column, has a row of
    another length or no row at all."""
    try:
        lines = list(csv.reader(read_file_text(path, MOST_MEASURED_BYTES).splitlines()))
    except (UnreadableFileError, csv.Error) as error:
        raise ProfileError(f"{path}: {error}; nothing imported") from error
    header = [name.strip() for name in lines[0]] if lines else []
    lacking = [name for name in required if name not in header]
    if lacking:
        raise ProfileError(
            f"{path}:1: column {', '.join(lacking)} is missing (found: {', '.join(header) or 'nothing'}); "
            "nothing imported"
        )
    empty = True
    for number, cells in enumerate(lines[1:], start=2):
        # An empty line, such as the last one of many files.
        if not cells:
            continue
        empty = False
        if len(cells) != len(header):
            raise ProfileError(f"{path}:{number}: {len(cells)} cells under {len(header)} columns; nothing imported")
        yield CsvRow(path, number, dict(zip(header, cells, strict=True)))
    if empty:
        raise ProfileError(f"{path}: no rows; nothing imported")
