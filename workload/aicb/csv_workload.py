"""The general workload: one row an operation of one rank, in AICB's CSV columns.

Sizes are bytes of the whole array, as spec.collectives counts them. A matrix product's ``msg_size`` is its
two shapes, an attention's those of its queries and values with four sides each, other computation's its
nanoseconds. Runtime columns are empty until a run fills them; ``_elapsed_time`` is in milliseconds.
"""

import csv
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from spec.files import UnreadableFileError, atomic_file, read_file_text
from spec.program.kinds import plain_number
from workload.diagnostics import WorkloadError

COLUMNS = (
    *("comm_type", "comm_group", "comm_group_size", "msg_size", "stage", "dst", "src", "additional"),
    *("_elapsed_time", "algbw", "busbw", "count"),
)
COMM_TYPES = (
    *("all_reduce", "isend", "irecv", "broadcast", "all_gather", "reduce_scatter", "barrier", "reduce"),
    *("reduce_scatter_tensor", "all_gather_into_tensor", "computation", "epoch_end", "all_to_all"),
)
# AICB's names, then groups it has no name for.
COMM_GROUPS = (
    *("dp_group", "pp_group", "tp_group", "ep_group", "ep_dp_group", "ep_tp_group", "embedding_group", "all"),
    *("cp_group", "wp_group", "zero_replicate_group"),
)
COMPUTATION = "computation"
EPOCH_END = "epoch_end"
NONE = "None"
# Files of 2024 begin with a line such as [rank0 ~ rank127]; those of several stages have one before each stage's columns.
RANKS = "["
MAX_FILE_BYTES = 2**31
MOST_ARGUMENTS_BYTES = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneralItem:
    """One row. ``comm_group_size`` and ``msg_size`` are 0 where they mean nothing; ``shapes`` holds the two
    matrices of a product; ``elapsed_ms``, ``algbw``, ``busbw`` (GiB/s) None before a run."""

    comm_type: str
    comm_group: str = ""
    comm_group_size: int = 0
    msg_size: int = 0
    shapes: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    stage: str = ""
    dst: int | None = None
    src: int | None = None
    additional: str = ""
    elapsed_ms: float | None = None
    algbw: float | None = None
    busbw: float | None = None
    count: int = 1

    def cells(self) -> list[str]:
        """The row as text, in the order of COLUMNS."""
        size = str(self.msg_size)
        if self.shapes is not None:
            size = "(" + " ".join("(" + " ".join(map(str, one)) + ")" for one in self.shapes) + ")"
        return [
            f"CommType.{self.comm_type}",
            f"CommGroup.{self.comm_group}" if self.comm_group else NONE,
            str(self.comm_group_size) if self.comm_group else NONE,
            size,
            self.stage,
            *(NONE if value is None else str(value) for value in (self.dst, self.src)),
            self.additional or NONE,
            *(NONE if value is None else repr(value) for value in (self.elapsed_ms, self.algbw, self.busbw)),
            str(self.count),
        ]


Arguments = dict[str, str | int | float | bool | None]


@dataclass(slots=True, kw_only=True)
class Workload:
    """Rows of one rank: initialisation, then iterations, each ended by an ``epoch_end`` row.

    ``items`` may be a generator, which is written row by row and can be used once.
    """

    items: Iterable[GeneralItem] = field(default_factory=list)

    def write(self, path: Path, arguments: Arguments) -> int:
        """Write the CSV and its arguments (``path``.args.json); the number of rows. Rows are streamed."""
        count = 0
        with atomic_file(path) as handle:
            writer = csv.writer(handle, lineterminator="\n")
            writer.writerow(COLUMNS)
            for item in self.items:
                writer.writerow(item.cells())
                count += 1
        with atomic_file(arguments_path(path)) as handle:
            json.dump(arguments, handle, indent=2)
            handle.write("\n")
        return count

    @staticmethod
    def load(path: str | Path, stage: int = 0) -> tuple["Workload", Arguments]:
        """A workload and its arguments (empty when there is no args file); of a file of several stages that of one.

        Raises WorkloadError naming the line that is no row, and for a file that ends within an iteration.
        """
        where = Path(path)
        items = list(rows_of(where, stage))
        if items and items[-1].comm_type != EPOCH_END and any(one.comm_type == EPOCH_END for one in items):
            raise WorkloadError(f"{where}: is cut off: its last iteration has no {EPOCH_END}")
        return Workload(items=items), _arguments(arguments_path(where))


def arguments_path(path: Path) -> Path:
    """Returns the path of a workload's arguments."""
    return path.with_name(f"{path.name}.args.json")


def _arguments(path: Path) -> Arguments:
    if not os.path.lexists(path):
        return {}
    try:
        read = json.loads(read_file_text(path, MOST_ARGUMENTS_BYTES))
    except (UnreadableFileError, ValueError, RecursionError) as error:
        raise WorkloadError(f"{path}: is no arguments file: {error}") from error
    if not isinstance(read, dict):
        raise WorkloadError(f"{path}: is no arguments file: no object")
    return read


def num_stages(path: Path) -> int:
    """Returns the pipeline stages that a file holds."""
    with path.open(encoding="utf-8", errors="replace") as handle:
        return max(sum(line.startswith(RANKS) for line in handle), 1)


def rows_of(path: Path, stage: int = 0) -> Iterator[GeneralItem]:
    """The rows of a file one by one, whole or cut off, of one stage where it has several; WorkloadError names the line
    that is none."""
    try:
        if path.stat().st_size > MAX_FILE_BYTES or not path.is_file():
            raise WorkloadError(f"{path}: is no general workload")
        with path.open(encoding="utf-8", newline="") as handle:
            reader = csv.reader(line.replace("\0", "\N{REPLACEMENT CHARACTER}") for line in handle)
            header: list[str] | None = None
            place = -1
            for cells in reader:
                if cells and cells[0].startswith(RANKS):
                    place, header = place + 1, None
                elif cells and header is None:
                    header = _header(cells, path)
                elif cells and header and max(place, 0) == stage:
                    yield _item(header, cells, f"{path}: line {reader.line_num}")
    except FileNotFoundError as error:
        raise WorkloadError(f"{path}: no such file") from error
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise WorkloadError(f"{path}: cannot be read: {error}") from error
    if header is None:
        raise WorkloadError(f"{path}: is empty")


def _header(cells: list[str], path: Path) -> list[str]:
    needed = {"comm_type", "comm_group", "msg_size"}
    if not needed <= set(cells) or not set(cells) <= set(COLUMNS) or len(set(cells)) < len(cells):
        raise WorkloadError(f"{path}: line 1: the columns are not {', '.join(COLUMNS)}")
    return cells


def _item(header: list[str], cells: list[str], place: str) -> GeneralItem:
    if len(cells) != len(header):
        raise WorkloadError(f"{place}: {len(cells)} cells, the header has {len(header)}")
    row = dict(zip(header, cells, strict=True))
    kind = row["comm_type"].removeprefix("CommType.")
    group = row["comm_group"].removeprefix("CommGroup.")
    if kind not in COMM_TYPES:
        raise WorkloadError(f"{place}: comm_type {kind[:40]!r} is none of {', '.join(COMM_TYPES)}")
    if group not in (*COMM_GROUPS, NONE, ""):
        raise WorkloadError(f"{place}: comm_group {group[:40]!r} is none of {', '.join(COMM_GROUPS)}")
    shapes = _shapes(row["msg_size"], place)
    if row["msg_size"] in (NONE, "") and kind not in (COMPUTATION, EPOCH_END, "barrier"):
        raise WorkloadError(f"{place}: {kind} without a size")
    return GeneralItem(
        comm_type=kind,
        comm_group="" if group == NONE else group,
        comm_group_size=_whole(row.get("comm_group_size", NONE), place) or 0,
        msg_size=0 if shapes else _whole(row["msg_size"], place) or 0,
        shapes=shapes,
        stage=row.get("stage", ""),
        dst=_whole(row.get("dst", NONE), place),
        src=_whole(row.get("src", NONE), place),
        additional="" if row.get("additional", NONE) == NONE else row["additional"],
        elapsed_ms=_real(row.get("_elapsed_time", NONE), place),
        algbw=_real(row.get("algbw", NONE), place),
        busbw=_real(row.get("busbw", NONE), place),
        count=_whole(row.get("count", "1"), place) or 1,
    )


def _shapes(text: str, place: str) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """``((s b k) (k n))``; None for a plain number."""
    if not text.startswith("(("):
        return None
    parts = text.removeprefix("((").removesuffix("))").replace(",", " ").split(") (")
    if len(parts) != 2:
        raise WorkloadError(f"{place}: {text[:40]!r} is no pair of matrix shapes")
    first, second = (tuple(_whole(word, place) or 0 for word in part.split()) for part in parts)
    if not (first and second and all((*first, *second))):
        raise WorkloadError(f"{place}: {text[:40]!r} has a side of no length")
    return first, second


def _whole(text: str, place: str) -> int | None:
    if text in (NONE, ""):
        return None
    digits = text.removesuffix(".0")
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= 18):
        raise WorkloadError(f"{place}: {text[:40]!r} is no whole number from 0 to 10^18")
    return int(digits)


def _real(text: str, place: str) -> float | None:
    if text in (NONE, ""):
        return None
    value = plain_number(text)
    if not value >= 0:
        raise WorkloadError(f"{place}: {text[:40]!r} is no time or bandwidth")
    return value
