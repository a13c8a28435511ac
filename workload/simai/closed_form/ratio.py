"""The efficiency tables of SimAI-Analytical, read from its own files: configs/simai_ratio, or a checkout's
astra-sim-alibabacloud/inputs/ratio.

Source of the look-up: SimAI 1.6/1.7, ``readCSV``, ``getValue`` and ``cal_ratio``.
"""

import csv
import os
from bisect import bisect_right
from dataclasses import dataclass
from pathlib import Path

from spec.collectives import Collective
from spec.text_file import MAX_FILE_BYTES, UnreadableFileError, read_file_text
from workload.simai.closed_form.network import GroupShape
from workload.simai.tokens import SimaiGroup
from workload.workload_error import WorkloadError

SHIPPED = Path("configs", "simai_ratio")
FILES = ("nic_ratio", "nvlink_ratio", "ata_ratio")
# Servers of a group -> column; every other number takes that of 16 servers.
_COLUMNS = {1: 1, 2: 2, 4: 3, 8: 4, 16: 5, 32: 6, 64: 7, 128: 8, 9: 9}
_OTHER_COLUMN = 5
_ACROSS_TP_COLUMN = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class RatioTable:
    """Rows of ascending ``sizes`` (bytes); ``values[row][column - 1]``, an empty cell counts as 1."""

    sizes: tuple[float, ...]
    values: tuple[tuple[float, ...], ...]

    def ratio(self, size_bytes: int, column: int) -> float:
        """Linear in size, over the last row's value; below the first row the first row's.

        Raises WorkloadError above the last row, where the simulator writes an empty result.
        """
        if size_bytes == 0:
            return 1.0
        cells = [row[column - 1] for row in self.values]
        if size_bytes < self.sizes[0]:
            return cells[0] / cells[-1]
        if size_bytes > self.sizes[-1]:
            raise WorkloadError(
                f"{size_bytes} bytes lie above the ratio tables ({self.sizes[-1]:.0f}); SimAI's result would be empty"
            )
        above = min(bisect_right(self.sizes, size_bytes), len(self.sizes) - 1)
        low, high = self.sizes[above - 1], self.sizes[above]
        share = (size_bytes - low) / (high - low)
        return (cells[above - 1] + (cells[above] - cells[above - 1]) * share) / cells[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class RatioTables:
    """For groups bound by NICs or one server, for groups bound by NVLink, and for all-to-all."""

    nic: RatioTable
    nvlink: RatioTable
    all_to_all: RatioTable


def read_ratio_tables(folder: str | os.PathLike[str]) -> RatioTables:
    """The three tables of ``folder``; WorkloadError when one is missing or malformed."""
    nic, nvlink, all_to_all = (_read_table(Path(folder) / f"{name}.csv") for name in FILES)
    return RatioTables(nic=nic, nvlink=nvlink, all_to_all=all_to_all)


def ratio_of(
    tables: RatioTables,
    collective: Collective,
    group: SimaiGroup,
    size_bytes: int,
    shape: GroupShape,
    *,
    nvlink_bound: bool,
) -> float:
    """What the bus bandwidth of a collective is multiplied by; 1 for groups SimAI does not correct."""
    if collective is Collective.ALL_TO_ALL and group in (SimaiGroup.TP, SimaiGroup.EP):
        across = group is SimaiGroup.EP and shape.nodes > 1 and shape.tp_fills_server
        column = _ACROSS_TP_COLUMN if across else _COLUMNS.get(shape.nodes, _OTHER_COLUMN)
        return tables.all_to_all.ratio(size_bytes, column)
    if group is SimaiGroup.TP and collective in (Collective.ALL_GATHER, Collective.REDUCE_SCATTER):
        table = tables.nvlink if nvlink_bound else tables.nic
        return table.ratio(size_bytes, _COLUMNS.get(shape.nodes, _OTHER_COLUMN))
    return 1.0


def _read_table(path: Path) -> RatioTable:
    try:
        rows = list(csv.reader(read_file_text(path, MAX_FILE_BYTES).splitlines()))[1:]
    except (UnreadableFileError, csv.Error) as error:
        raise WorkloadError(f"{path}: ratio table: {error}") from error
    sizes: list[float] = []
    values: list[tuple[float, ...]] = []
    for number, cells in enumerate(rows, start=2):
        if not cells:
            continue
        try:
            row = [float(cell) if cell.strip() else 1.0 for cell in cells]
        except ValueError as error:
            raise WorkloadError(f"{path}: line {number}: {error}") from error
        if len(row) < 10 or not all(0 < each < float("inf") for each in row):
            raise WorkloadError(f"{path}: line {number}: needs a size and at least 9 positive ratios")
        sizes.append(row[0])
        values.append(tuple(row[1:]))
    if len(sizes) < 2 or sizes != sorted(set(sizes)):
        raise WorkloadError(f"{path}: needs at least two rows of ascending sizes")
    return RatioTable(sizes=tuple(sizes), values=tuple(values))
