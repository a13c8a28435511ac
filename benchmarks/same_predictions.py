"""Whether two files of predictions say the same.

    python benchmarks/same_predictions.py BEFORE.csv AFTER.csv [--tolerance 1e-9]

Rows are matched by dataset and row_id; numbers may differ by the relative tolerance, all else not at all.
Prints the largest difference of each column and exits with 1 where one is beyond the tolerance, or where a
row or a column is in one file alone.
"""

import argparse
import csv
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

KEY = ("dataset", "row_id")
Rows = dict[tuple[str, ...], dict[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One cell that differs; ``relative`` is infinite for words."""

    row: tuple[str, ...]
    column: str
    before: str
    after: str
    relative: float


def read_predictions(path: Path) -> tuple[tuple[str, ...], Rows]:
    """Columns, and cells by row; raises SystemExit for a file that is none or says a row twice."""
    try:
        with path.open(newline="", encoding="utf-8") as handle:
            reader = csv.DictReader(handle)
            lines = list(reader)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise SystemExit(f"error: {path}: {error}") from error
    columns = tuple(reader.fieldnames or ())
    if not set(KEY) <= set(columns):
        raise SystemExit(f"error: {path}: no columns {', '.join(KEY)}")
    rows = {tuple(line[name] for name in KEY): line for line in lines}
    if len(rows) < len(lines):
        raise SystemExit(f"error: {path}: a row stands there twice")
    return columns, rows


def relative_difference(before: str, after: str) -> float:
    """0 for equal cells, infinity where either is no number."""
    if before == after:
        return 0.0
    try:
        first, second = float(before), float(after)
    except ValueError:
        return float("inf")
    return abs(first - second) / max(abs(first), abs(second))


def differences(before: Rows, after: Rows, columns: Sequence[str]) -> list[Difference]:
    """Every cell of the rows in both that differs at all."""
    found = [
        Difference(
            row=key,
            column=name,
            before=cells[name],
            after=after[key][name],
            relative=relative_difference(cells[name], after[key][name]),
        )
        for key, cells in before.items()
        if key in after
        for name in columns
    ]
    return [one for one in found if one.relative > 0]


def main(argv: Sequence[str] | None = None) -> int:
    """Compare and print; 1 when the files do not agree."""
    parser = argparse.ArgumentParser(description="compare two files of predictions")
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--tolerance", type=float, default=1e-9, help="relative (default 1e-9)")
    asked = parser.parse_args(argv)
    columns, before = read_predictions(asked.before)
    later, after = read_predictions(asked.after)
    agree = set(columns) == set(later) and set(before) == set(after)
    for name in sorted(set(columns) ^ set(later)):
        print(f"column {name} is in one file alone")
    for key in sorted(set(before) ^ set(after)):
        print(f"row {' '.join(key)} is in one file alone")
    found = differences(before, after, [name for name in columns if name in later and name not in KEY])
    for name in dict.fromkeys(one.column for one in found):
        worst = max((one for one in found if one.column == name), key=lambda one: one.relative)
        print(
            f"{name}: at most {worst.relative:.3g}, {' '.join(worst.row)}: {worst.before!r} -> {worst.after!r}"
        )
    agree = agree and all(one.relative <= asked.tolerance for one in found)
    both = len(set(before) & set(after))
    print(f"{both} rows, {'the same' if agree else 'NOT the same'} within {asked.tolerance:g}")
    return 0 if agree else 1


if __name__ == "__main__":
    sys.exit(main())
