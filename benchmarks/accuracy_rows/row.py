"""One published run as it stands in a CSV file: cells by column name, read or refused with a reason."""

import csv
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from spec.errors import ConfigError, UserError

REQUIRED_COLUMNS: tuple[str, ...] = (
    "dataset",
    "row_id",
    "gpu",
    "gpus_per_node",
    "num_gpus",
    "inter_node",
    "framework",
    "precision",
    "model_name",
    "hidden",
    "ffn_hidden",
    "layers",
    "heads",
    "kv_heads",
    "head_dim",
    "vocab",
    "seq_len",
    "gated_mlp",
    "num_experts",
    "tp",
    "sp",
    "pp",
    "vpp",
    "cp",
    "ep",
    "dp",
    "zero_stage",
    "micro_batch",
    "global_batch_sequences",
    "recompute",
    "flash_attention",
    "notes",
)
# What some sources state beside them.
OPTIONAL_COLUMNS: tuple[str, ...] = (
    "source",
    "intra_node",
    "params_b",
    "topk",
    "moe_ffn_hidden",
    "moe_layer_freq",
    "shared_experts",
    "measured_step_s",
    "measured_tokens_per_s_per_gpu",
    "measured_tflops_per_gpu",
    "measured_mem_gib",
)
UNKNOWN = frozenset({"", "unknown", "n/a", "nan", "not given"})


class RowError(UserError):
    """Why one row cannot be priced: file, line and reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of a measurements file. Empty cells are unknown; every reader raises RowError."""

    path: str
    line: int
    cells: Mapping[str, str]
    fault: str = ""

    @property
    def dataset(self) -> str:
        """The dataset, or the file's stem where the cell is empty."""
        return self.text("dataset") or Path(self.path).stem

    @property
    def row_id(self) -> str:
        """The row's name, or its line number where the cell is empty."""
        return self.text("row_id") or f"line{self.line}"

    @property
    def notes(self) -> str:
        """Free text with the settings no column holds."""
        return self.text("notes")

    def text(self, column: str) -> str:
        """A cell, stripped; "" where the cell or the column is absent."""
        return self.cells.get(column, "").strip()

    def known(self, column: str) -> bool:
        """Whether the source states the cell."""
        return self.text(column).lower() not in UNKNOWN

    def refuse(self, column: str, reason: str) -> RowError:
        """The error for one cell."""
        return RowError(f"{self.path}:{self.line}: {column} = {self.text(column)!r}: {reason}")

    def number(self, column: str) -> float | None:
        """A finite number of at least 0, or None where unknown."""
        if not self.known(column):
            return None
        try:
            value = float(self.text(column))
        except ValueError as error:
            raise self.refuse(column, "must be a number or empty") from error
        if not math.isfinite(value) or value < 0:
            raise self.refuse(column, "must be finite and not negative")
        return value

    def whole_or(self, column: str, default: int) -> int:
        """A whole number, or ``default`` where unknown."""
        value = self.number(column)
        if value is None:
            return default
        if value != int(value):
            raise self.refuse(column, "must be a whole number")
        return int(value)

    def whole(self, column: str) -> int:
        """A whole number of at least 1 that the source must state."""
        value = self.whole_or(column, 0)
        if value < 1:
            raise self.refuse(column, "must be a whole number of at least 1")
        return value


def read_rows(paths: Sequence[Path]) -> list[Row]:
    """The rows of every CSV file named or lying in a named folder (and its sub-folders), in path order.

    A line with too many or too few cells becomes a row with a ``fault``, so that it is reported and not
    lost. Raises ConfigError for a path that is no file or folder, and for a file without the columns.
    """
    rows: list[Row] = []
    for path in paths:
        files = sorted(path.rglob("*.csv")) if path.is_dir() else [path]
        if not files:
            raise ConfigError(
                where=str(path), key="--measurements", value=str(path), allowed="a folder with CSV files"
            )
        for file in files:
            rows.extend(_rows_of(file))
    return rows


def _rows_of(path: Path) -> Iterator[Row]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            where=str(path), key="--measurements", value=str(error), allowed="a readable CSV file"
        ) from error
    reader = csv.reader(text.splitlines(keepends=True), strict=True)
    header = [name.strip() for name in next(reader, [])]
    missing = [name for name in REQUIRED_COLUMNS if name not in header]
    if missing:
        raise ConfigError(
            where=f"{path}:1", key="columns", value=header[:4], allowed=f"also {', '.join(missing)}"
        )
    for cells in _lines(reader, path):
        line = reader.line_num
        if not cells:
            continue
        found = dict(zip(header, cells, strict=False))
        fault = ""
        if len(cells) != len(header):
            fault = f"{path}:{line}: {len(cells)} cells, the header has {len(header)}"
        yield Row(path=str(path), line=line, cells=found, fault=fault)


def _lines(reader: Iterator[list[str]], path: Path) -> Iterator[list[str]]:
    """The reader's lines; a broken quote is the file's fault and named with its line."""
    while True:
        try:
            yield next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            line = getattr(reader, "line_num", 0)
            raise ConfigError(
                where=f"{path}:{line}", key="line", value=str(error), allowed="one CSV record"
            ) from error
