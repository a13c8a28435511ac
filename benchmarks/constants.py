"""What every fitted or assumed constant moves.

    python benchmarks/constants.py --measurements PATH [PATH ...] [--curves DIR] [--rows N] [--only WORD] [--out FILE]

Finds the constants that the code or a sheet calls ``Fitted`` or an ``Assumption`` (benchmarks/constants_stated/found.py),
prices N rows of each dataset (at even places of its file) with each constant a quarter smaller and a quarter
larger, and prints a line a constant: its source and, of the datasets whose error moves most, by how many points. --out
writes the lines into the table of a page (docs/constants.md), in place of those it has of the same constants, and drops
those of constants that are gone. Without --measurements nothing is priced, and a page gets the lines it lacks.
"""

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.accuracy_rows.books import Books, open_books  # noqa: E402
from benchmarks.accuracy_rows.hardware import network_sheet, sheet_name  # noqa: E402
from benchmarks.accuracy_rows.measured import measured_step_s  # noqa: E402
from benchmarks.accuracy_rows.pricing import Pricing  # noqa: E402
from benchmarks.accuracy_rows.row import Row, read_rows  # noqa: E402
from benchmarks.constants_stated.found import Constant, constants  # noqa: E402
from benchmarks.constants_stated.page import UNPRICED, line_of, replaced, why_unpriced  # noqa: E402
from benchmarks.constants_stated.varied import number_of, varied  # noqa: E402
from spec.cluster.reader import CLUSTER_FOLDER  # noqa: E402
from spec.errors import UserError  # noqa: E402

QUARTER = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What rows are told: by dataset the mean absolute error (a fraction), and of all rows seconds, GiB and the
    half-width of the interval as a share of the step."""

    errors: Mapping[str, float]
    seconds: np.ndarray
    memory: np.ndarray
    width: np.ndarray

    def moved(self, other: "Told") -> dict[str, float]:
        """Points of error by dataset that ``other`` has more."""
        return {name: 100.0 * (other.errors[name] - error) for name, error in self.errors.items()}


def sampled(rows: Sequence[Row], each: int) -> list[Row]:
    """``each`` rows of every dataset that have a measured step, at even places of its file."""
    by_dataset: dict[str, list[Row]] = {}
    for row in rows:
        if measured_step_s(row):
            by_dataset.setdefault(row.dataset, []).append(row)
    found = []
    for members in by_dataset.values():
        places = (np.arange(each) + 0.5) * len(members) / each
        found += [members[place] for place in sorted({int(place) for place in places})]
    return found


def sheets_of(row: Row) -> tuple[str, str]:
    """The names of the sheets of a row's GPU and of its network."""
    gpu = row.text("gpu")
    return sheet_name(gpu), network_sheet(gpu, row.text("inter_node"))


def told(rows: Sequence[Row], books: Books, root: Path, *, anew: bool = True) -> Told:
    """Price the rows; those that cannot be priced have an error of 1. ``anew``: what sheets were asked before is
    forgotten, for constants of the sheets' own model."""
    fresh = Books(root=root, measured=books.measured, fitted=books.fitted) if anew else books
    errors: dict[str, list[float]] = {}
    figures = [(0.0, 0.0, 0.0)]
    for one in Pricing(root=root, books=fresh).predict(rows):
        measured = measured_step_s(one.row)
        known = one.step_s is not None and one.answer is not None and measured
        errors.setdefault(one.row.dataset, []).append(abs(one.step_s / measured - 1.0) if known else 1.0)
        width = np.log(one.answer.interval_high_s / one.answer.step_s) if one.answer else 0.0
        figures.append((one.step_s or 0.0, one.memory_gib or 0.0, width))
    seconds, memory, width = np.array(figures).T
    means = {name: float(np.mean(found)) for name, found in errors.items()}
    return Told(errors=means, seconds=seconds, memory=memory, width=width)


def main(argv: Sequence[str] | None = None) -> int:
    """Find, vary, print."""
    parser = argparse.ArgumentParser(description="what every fitted or assumed constant moves")
    parser.add_argument("--measurements", type=Path, nargs="+", help="CSV files or folders of runs")
    parser.add_argument("--curves", type=Path, help="folder of measured curves in the generic CSV form")
    parser.add_argument("--rows", type=int, default=1, help="rows of each dataset (default 1)")
    parser.add_argument("--only", default="", help="constants whose file or name holds this word")
    parser.add_argument("--out", type=Path, help="a page whose table takes the lines")
    asked = parser.parse_args(argv)
    stated = constants(ROOT)
    found = [one for one in stated if asked.only in one.key]
    try:
        lines = _listed(found) if asked.measurements is None else _priced(found, asked)
        if asked.out:
            replaced(asked.out, lines, keep={one.key for one in stated}, anew=asked.measurements is not None)
    except (UserError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _listed(found: Sequence[Constant]) -> dict[str, str]:
    lines = {one.key: line_of(one, why_unpriced(one) or UNPRICED) for one in found}
    print("\n".join(lines.values()))
    return lines


def _priced(found: Sequence[Constant], asked: argparse.Namespace) -> dict[str, str]:
    everything = read_rows(asked.measurements)
    books = open_books(ROOT, asked.curves, ROOT / "prof_data")
    plain: dict[str, tuple[list[Row], Told]] = {}
    lines = {}
    with tempfile.TemporaryDirectory() as folder:
        for one in found:
            why = why_unpriced(one)
            if one.path.endswith(".toml") and number_of((ROOT / one.path).read_text(), one.name) is None:
                why = why or "a fact that is no number, or several"
            sheet = Path(one.path).stem if one.path.startswith(CLUSTER_FOLDER.as_posix()) else ""
            if not why and sheet not in plain:
                rows = sampled(
                    [row for row in everything if not sheet or sheet in sheets_of(row)], asked.rows
                )
                plain[sheet] = rows, told(rows, books, ROOT, anew=False)
            if not why and not plain[sheet][0]:
                why = "no row of this sheet"
            if not why:
                rows, before = plain[sheet]
                anew = not one.path.startswith(("ops", "solver"))
                moved = []
                for factor in (1.0 - QUARTER, 1.0 + QUARTER):
                    with varied(ROOT, one, factor, Path(folder) / "root") as root:
                        moved.append(told(rows, books, root, anew=anew))
                why = effect(before, moved[0], moved[1])
            lines[one.key] = line_of(one, why)
            print(lines[one.key], flush=True)
    return lines


def effect(plain: Told, less: Told, more: Told) -> str:
    """The datasets whose error moves most, points at -25 % / +25 %; else what moves beside it."""
    down, up = plain.moved(less), plain.moved(more)
    most = sorted(down, key=lambda name: -max(abs(down[name]), abs(up[name])))[:3]
    said = [f"{name} {down[name]:+.1f} / {up[name]:+.1f}" for name in most]
    said = [
        text for text, name in zip(said, most, strict=True) if max(abs(down[name]), abs(up[name])) >= 0.05
    ]
    if said:
        return ", ".join(said)
    for what, unit in (("seconds", "step"), ("memory", "memory"), ("width", "interval")):
        base = getattr(plain, what)
        change = max(
            float(
                np.max(
                    np.abs(np.divide(getattr(one, what), base, out=np.ones_like(base), where=base > 0) - 1)
                )
            )
            for one in (less, more)
        )
        if change > 1e-6:
            return f"{unit} of a row by up to {100 * change:.2g} %"
    return "nothing on these rows"


if __name__ == "__main__":
    sys.exit(main())
