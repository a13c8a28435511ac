"""Which rows may read a constant: those whose pricing calls a function that names it, or whose hardware is on
its sheet.
"""

import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import CodeType, FrameType

from benchmarks.accuracy_rows.books import Books
from benchmarks.accuracy_rows.hardware import network_sheet, sheet_cluster, sheet_name
from benchmarks.accuracy_rows.pricing import Pricing
from benchmarks.accuracy_rows.row import Row
from benchmarks.constants_stated.found import Constant
from benchmarks.constants_stated.varied import caches, names_made_of

CLUSTERS = "configs/clusters/"
ARCHITECTURES = "configs/architectures/"


def sheets_of(row: Row) -> tuple[str, str]:
    """The names of the sheets of a row's GPU and of its network."""
    gpu = row.text("gpu")
    return sheet_name(gpu), network_sheet(gpu, row.text("inter_node"))


@cache
def _architecture(sheet: str, root: Path) -> str:
    return sheet_cluster(sheet, root).gpu.architecture.name if sheet else ""


def on_sheet(path: str, rows: Sequence[Row], root: Path) -> list[Row]:
    """The rows on the hardware that a file of configs/ is about."""
    name = Path(path).stem
    if path.startswith(CLUSTERS):
        return [row for row in rows if name in sheets_of(row)]
    return [row for row in rows if _architecture(sheets_of(row)[0], root) == name]


@dataclass(frozen=True, slots=True, kw_only=True)
class Readers:
    """Of each row the names that the functions which price it read."""

    names: tuple[frozenset[str], ...]

    def of(self, constant: Constant, root: Path) -> list[int]:
        """The places of the rows that may read a constant of a module, or what its module makes of it."""
        wanted = names_made_of(root, constant)
        return [place for place, names in enumerate(self.names) if not wanted.isdisjoint(names)]


def readers(rows: Sequence[Row], books: Books, root: Path) -> Readers:
    """Each row priced alone, with nothing remembered of the others."""
    remembered = caches()
    found = []
    for row in rows:
        for one in remembered:
            one.cache_clear()
        found.append(_names_read(row, books, root))
    return Readers(names=tuple(found))


def _names_read(row: Row, books: Books, root: Path) -> frozenset[str]:
    codes: set[CodeType] = set()

    def called(frame: FrameType, event: str, argument: object) -> None:
        codes.add(frame.f_code)

    pricing = Pricing(root=root, books=Books(root=root, measured=books.measured, fitted=books.fitted))
    before = sys.gettrace()
    sys.settrace(called)
    try:
        pricing.predict([row])
    finally:
        sys.settrace(before)
    return names_in(codes)


def names_in(codes: Collection[CodeType]) -> frozenset[str]:
    """The names in capitals that code reads."""
    return frozenset(name for code in codes for name in code.co_names if name.isupper())
