"""Update the tables of docs/accuracy.md with what the benchmarks printed.

    python benchmarks/accuracy.py ... --new ... --curves DIR --calibrate --scorer SCORE.py --out PRED.csv > curves.txt
    python benchmarks/accuracy.py ... --scorer SCORE.py --out SHIPPED.csv > shipped.txt
    python benchmarks/accuracy_page.py --curves curves.txt --shipped shipped.txt --page docs/accuracy.md

A table of the page is recognised by the start of its head. Its rows are replaced by the printed ones, in their order;
cells that no run prints (targets, published results of others) stay with their row. The text around the tables stays.
"""

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from spec.errors import ConfigError, UserError  # noqa: E402
from spec.files import atomic_path, read_text  # noqa: E402

Rows = dict[str, list[str]]
FEWEST_SCORED = 12  # rows of a dataset whose intervals are shown
FILES = ("curves", "shipped", "page")
LEFT_OUT = "ALL (row-weighted)"
NUMBER = re.compile(r"[-+]?[\d.]+%?|n/a")


@dataclass(frozen=True, slots=True)
class PrintedTable:
    """A table as a benchmark prints it: a pattern of its head, and the number of cells after a row's name."""

    head: str
    cells: int

    def read(self, lines: Sequence[str]) -> Rows:
        """The rows by name; empty if the table was not printed. A macro mean has one cell less, as it has no number of rows."""
        result: Rows = {}
        starts = [place for place, line in enumerate(lines) if re.match(self.head, line)]
        for line in lines[starts[0] + 1 :] if starts else ():
            words = line.split()
            cells = self.cells - (line.startswith("macro mean"))
            if len(words) <= cells or not all(NUMBER.fullmatch(word) for word in words[-cells:]):
                break
            result[" ".join(words[:-cells])] = words[-cells:]
        return result


MACRO = "**macro mean, 9 rows and more**"
TIME = PrintedTable(r"dataset +n +cover +MAPE% +medAPE%", 8)
RANK = PrintedTable(r"dataset +groups +plans", 10)
MEMORY = PrintedTable(r"dataset +n +cover +MAPE% +med%", 6)
INTERVAL = PrintedTable(r"80 % interval +rows", 7)
NEW_INTERVAL = PrintedTable(r"80 % interval, new +rows", 7)
CALIBRATED = PrintedTable(r"calibrated +rows", 12)
NEW_CALIBRATED = PrintedTable(r"calibrated, new +rows", 12)
LARGE = PrintedTable(r"large from small +jobs", 4)
NEW_LARGE = PrintedTable(r"large from small, new +jobs", 4)


@dataclass(frozen=True, slots=True)
class PrintedRuns:
    """The printed lines of a run with measured curves and of one without."""

    curves: Sequence[str]
    shipped: Sequence[str]


def rounded(cell: str, digits: int, sign: str = "") -> str:
    """A printed number with ``digits`` decimals; other text as it is."""
    try:
        return f"{float(cell.rstrip('%')):{sign}.{digits}f}"
    except ValueError:
        return cell


def steps(runs: PrintedRuns, old: Rows) -> list[list[str]]:
    """Errors of steps with curves and without; the last two cells are the page's own."""
    result = []
    for name, own, shipped in _beside(TIME.read(runs.curves), TIME.read(runs.shipped)):
        if name == LEFT_OUT:
            continue
        both = [text for one in (own, shipped) for text in (rounded(one[2], 1), rounded(one[6], 1, "+"))]
        result.append([name, own[0], *both, *(old.get(name, ["", ""])[-2:])])
    means = [_macro(lines) for lines in (runs.curves, runs.shipped)]
    return [*result, [MACRO, "", means[0], "", means[1], "", *(old.get(MACRO, ["", ""])[-2:])]]


def _beside(curves: Rows, shipped: Rows) -> list[tuple[str, list[str], list[str]]]:
    """Rows of both runs by name. Raises ConfigError if one run lacks a row of the other."""
    if set(curves) != set(shipped):
        apart = ", ".join(sorted(set(curves) ^ set(shipped)))
        raise ConfigError(where="printed", key="datasets", value=apart, allowed="the same in both runs")
    return [(name, own, shipped[name]) for name, own in curves.items()]


def _macro(lines: Sequence[str]) -> str:
    means = [match[1] for line in lines if (match := re.match(r"macro mean of dataset MAPEs: ([\d.]+)%", line))]
    return f"**{rounded(means[0], 1)}**" if means else ""


def ranking(runs: PrintedRuns, old: Rows) -> list[list[str]]:
    """Rank correlation and regret with curves and without."""
    return [
        [name, *own[:2], *(text for one in (own, shipped) for text in (one[2], rounded(one[5], 1)))]
        for name, own, shipped in _beside(RANK.read(runs.curves), RANK.read(runs.shipped))
    ]


def memory(runs: PrintedRuns, old: Rows) -> list[list[str]]:
    """Errors of peak memory."""
    return [
        [name, own[0], rounded(own[2], 1), rounded(own[5], 1, "+")] for name, own in MEMORY.read(runs.curves).items()
    ]


def intervals_of(table: PrintedTable, fewest: int = 1) -> Callable[[PrintedRuns, Rows], list[list[str]]]:
    """Rows inside and above the interval, of datasets with ``fewest`` rows and more; its widths and score."""

    def rows_of(runs: PrintedRuns, old: Rows) -> list[list[str]]:
        return [
            [name, rows, rounded(inside, 0), rounded(above, 0), *widths]
            for name, (rows, _, inside, above, *widths) in table.read(runs.curves).items()
            if int(rows) >= fewest
        ]

    return rows_of


def as_printed(table: PrintedTable) -> Callable[[PrintedRuns, Rows], list[list[str]]]:
    """Rows as they are printed."""

    def rows_of(runs: PrintedRuns, old: Rows) -> list[list[str]]:
        return [[name, *[""] * (table.cells - len(cells)), *cells] for name, cells in table.read(runs.curves).items()]

    return rows_of


TABLES: dict[str, Callable[[PrintedRuns, Rows], list[list[str]]]] = {
    "| dataset | rows | MAPE % with curves |": steps,
    "| dataset | groups | plans |": ranking,
    "| dataset | rows | MAPE % | bias % |": memory,
    "| dataset | rows | inside % | above % |": intervals_of(INTERVAL, FEWEST_SCORED),
    "| new source | rows | inside % | above % |": intervals_of(NEW_INTERVAL),
    "| calibrated, known source |": as_printed(CALIBRATED),
    "| calibrated, new source |": as_printed(NEW_CALIBRATED),
    "| large from small, known source |": as_printed(LARGE),
    "| large from small, new source |": as_printed(NEW_LARGE),
}


def updated_page(page: str, runs: PrintedRuns) -> str:
    """``page`` with the rows of its tables replaced. Raises ConfigError for a table that the page lacks or that was not
    printed."""
    lines = page.splitlines()
    for head, rows_of in TABLES.items():
        starts = [place for place, line in enumerate(lines) if line.startswith(head)]
        if len(starts) != 1:
            raise ConfigError(where="page", key="table", value=head, allowed="once in the page")
        first = starts[0] + 2
        last = next((place for place in range(first, len(lines)) if lines[place][:1] != "|"), len(lines))
        old = {cells[0]: cells for cells in (_cells(line) for line in lines[first:last])}
        rows = rows_of(runs, old)
        if not rows:
            raise ConfigError(where="printed", key="table", value=head, allowed="rows that a run printed")
        lines[first:last] = ["| " + " | ".join(cells) + " |" for cells in rows]
    return "\n".join(lines) + "\n"


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def main(argv: Sequence[str] | None = None) -> int:
    """Write the page. The exit status: 2 when a file cannot be read or lacks a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    for name in FILES:
        parser.add_argument(f"--{name}", type=Path, required=True)
    options = parser.parse_args(argv)
    try:
        curves, shipped, old = (
            read_text(getattr(options, name), f"--{name} {getattr(options, name)}") for name in FILES
        )
        page = updated_page(old, PrintedRuns(curves.splitlines(), shipped.splitlines()))
        with atomic_path(options.page) as path:
            path.write_text(page, encoding="utf-8")
    except (UserError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
