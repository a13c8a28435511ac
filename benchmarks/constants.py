"""What every fitted or assumed constant moves.

    python benchmarks/constants.py --measurements PATH [PATH ...] [--curves DIR] [--rows N] [--only WORD] [--out FILE]

Finds the constants that the code or a sheet calls ``Fitted`` or an ``Assumption`` (benchmarks/constants_stated/found.py).
Of each dataset N rows are looked at (at even places of its file), and each constant is priced on the one nearest the middle
that reads it (benchmarks/constants_stated/readers.py), a quarter smaller and a quarter larger. Prints a line a constant: its
source and, of the datasets whose error moves most, by how many points. --out writes each line as it comes into the table of
a page (benchmarks/notes/constants.md), in place of what it has of the same constant, and drops those of constants that are gone; with
--unpriced only constants are priced of which it has no figures. Without --measurements nothing is priced, and a page gets
the lines it lacks.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.constants_stated.found import Constant, constants  # noqa: E402
from benchmarks.constants_stated.page import UNPRICED, line_of, replaced, unpriced_in, why_unpriced  # noqa: E402
from benchmarks.constants_stated.readers import Readers, on_sheet, readers  # noqa: E402
from benchmarks.constants_stated.told import Told, effect, told  # noqa: E402
from benchmarks.constants_stated.varied import number_of, varied  # noqa: E402
from benchmarks.measured_times import MeasuredTimes, measured_times  # noqa: E402
from benchmarks.row_scores import measured_step_s  # noqa: E402
from benchmarks.stated_rows import Row, read_rows  # noqa: E402
from spec.errors import ConfigError, UserError  # noqa: E402

QUARTER = 0.25


def sampled(rows: Sequence[Row], each: int) -> list[Row]:
    """``each`` rows of every dataset that have a measured step, at even places of its file, from its middle
    outwards.
    """
    by_dataset: dict[str, list[Row]] = {}
    for row in rows:
        if measured_step_s(row):
            by_dataset.setdefault(row.dataset, []).append(row)
    found = []
    for members in by_dataset.values():
        places = sorted({int(place) for place in (np.arange(each) + 0.5) * len(members) / each})
        middle = (len(members) - 1) / 2
        found += [members[place] for place in sorted(places, key=lambda place: abs(place - middle))]
    return found


def first_of_each(rows: Sequence[Row], places: Sequence[int]) -> list[int]:
    """Of these places the first of each dataset."""
    first: dict[str, int] = {}
    for place in places:
        first.setdefault(rows[place].dataset, place)
    return list(first.values())


@dataclass(slots=True, kw_only=True)
class Effects:
    """Prices constants on rows (``everything``); what the constants' own values say is priced once."""

    everything: Sequence[Row]
    times: MeasuredTimes
    each: int
    folder: Path
    rows: list[Row] = field(init=False)
    plain: Told | None = None
    reading: Readers | None = None

    def __post_init__(self) -> None:
        self.rows = sampled(self.everything, self.each)

    def of(self, constant: Constant) -> str:
        """What the constant moves, or why that is not said."""
        why = why_unpriced(constant)
        if why:
            return why
        if constant.path.endswith(".toml"):
            return self._of_sheet(constant)
        if self.plain is None or self.reading is None:
            self.plain = told(self.rows, self.times, ROOT, anew=False)
            self.reading = readers(self.rows, self.times, ROOT)
        places = first_of_each(self.rows, self.reading.of(constant, ROOT))
        if not places:
            return "read by none of these rows"
        return self._moved(constant, [self.rows[place] for place in places], self.plain.take(places))

    def _of_sheet(self, constant: Constant) -> str:
        if number_of((ROOT / constant.path).read_text(encoding="utf-8"), constant.name) is None:
            return "a fact that is no number, or several"
        rows = sampled(on_sheet(constant.path, self.everything, ROOT), 1)
        if not rows:
            return "no row of this sheet"
        return self._moved(constant, rows, told(rows, self.times, ROOT, anew=False))

    def _moved(self, constant: Constant, rows: Sequence[Row], before: Told) -> str:
        """``before``: what these rows are told now."""
        anew = not constant.path.startswith(("ops", "solver"))
        moved = []
        for factor in (1.0 - QUARTER, 1.0 + QUARTER):
            with varied(ROOT, constant, factor, self.folder / "root") as root:
                moved.append(told(rows, self.times, root, anew=anew))
        return effect(before, *moved)


def main(argv: Sequence[str] | None = None) -> int:
    """Find, vary, print."""
    parser = argparse.ArgumentParser(description="what every fitted or assumed constant moves")
    parser.add_argument("--measurements", type=Path, nargs="+", help="CSV files or folders of runs")
    parser.add_argument("--curves", type=Path, help="folder of measured curves in the generic CSV form")
    parser.add_argument("--rows", type=int, default=3, help="rows of each dataset looked at (default 3)")
    parser.add_argument("--only", default="", help="constants whose file or name holds this word")
    parser.add_argument("--out", type=Path, help="a page whose table takes the lines")
    parser.add_argument("--unpriced", action="store_true", help="constants of which --out has no figures")
    asked = parser.parse_args(argv)
    try:
        _run(asked)
    except (UserError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _run(asked: argparse.Namespace) -> None:
    if asked.rows < 1:
        raise ConfigError(where="command line", key="--rows", value=str(asked.rows), allowed="1 or more")
    stated = constants(ROOT)
    found = [one for one in stated if asked.only in one.key]
    if asked.unpriced and asked.out:
        left = unpriced_in(asked.out.read_text(encoding="utf-8"))
        found = [one for one in found if one.key in left]
    keep = {one.key for one in stated}
    for one, line in _listed(found) if asked.measurements is None else _priced(found, asked):
        print(line, flush=True)
        if asked.out:
            replaced(asked.out, {one.key: line}, keep=keep, anew=asked.measurements is not None)


def _listed(found: Sequence[Constant]) -> Iterator[tuple[Constant, str]]:
    for one in found:
        yield one, line_of(one, why_unpriced(one) or UNPRICED)


def _priced(found: Sequence[Constant], asked: argparse.Namespace) -> Iterator[tuple[Constant, str]]:
    with tempfile.TemporaryDirectory() as folder:
        effects = Effects(
            everything=read_rows(asked.measurements),
            times=measured_times(asked.curves, ROOT / "prof_data"),
            each=asked.rows,
            folder=Path(folder),
        )
        for one in found:
            yield one, line_of(one, effects.of(one))


if __name__ == "__main__":
    sys.exit(main())
