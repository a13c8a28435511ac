"""Which rows may read a constant: those whose pricing calls a function that names it, or whose hardware is on
its sheet.
"""

import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType

from benchmarks.constants_stated.found import Constant
from benchmarks.constants_stated.varied import caches, names_made_of
from benchmarks.measured_times import MeasuredTimes
from benchmarks.stated_rows import Pricing, Row
from spec.cluster.reader import known_clusters, read_cluster

CLUSTERS = "configs/clusters/"


def on_sheet(path: str, rows: Sequence[Row], root: Path) -> list[Row]:
    """The rows on the hardware that a file of configs/ is about."""
    name = Path(path).stem
    if path.startswith(CLUSTERS):
        return [row for row in rows if row.text("cluster") == name]
    built = [
        spec for spec in known_clusters(root) if read_cluster(spec, root=root).gpu.architecture.name == name
    ]
    return [row for row in rows if row.text("cluster") in built]


@dataclass(frozen=True, slots=True, kw_only=True)
class Readers:
    """Of each row the names that the functions which price it read."""

    names: tuple[frozenset[str], ...]

    def of(self, constant: Constant, root: Path) -> list[int]:
        """The places of the rows that may read a constant of a module, or what its module makes of it."""
        wanted = names_made_of(root, constant)
        return [place for place, names in enumerate(self.names) if not wanted.isdisjoint(names)]


def readers(rows: Sequence[Row], times: MeasuredTimes, root: Path) -> Readers:
    """Each row priced alone, with nothing remembered of the others."""
    remembered = caches()
    found = []
    for row in rows:
        for one in remembered:
            one.cache_clear()
        found.append(_names_read(row, times, root))
    return Readers(names=tuple(found))


def _names_read(row: Row, times: MeasuredTimes, root: Path) -> frozenset[str]:
    codes: set[CodeType] = set()

    def called(frame: FrameType, event: str, argument: object) -> None:
        codes.add(frame.f_code)

    pricing = Pricing(root=root, cost_model=MeasuredTimes(root=root, fitted=times.fitted).cost_model)
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
