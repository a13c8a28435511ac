"""One recipe as it stands in the CSV file: what counts, and why another one does not."""

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from spec.errors import ConfigError

SHEETS = {
    "h100": "h100-sxm",
    "b200": "b200",
    "b300": "b300",
    "gb200": "gb200-nvl72",
    "gb300": "gb300-nvl72",
}
"""GPU -> its sheet under configs/clusters."""
REQUIRED = (
    "recipe",
    "kind",
    "task",
    "needs",
    "model",
    "layers",
    "hidden",
    "gpu",
    "num_gpus",
    "precision",
    "tp",
    "pp",
    "vpp",
    "micro_batch",
    "global_batch",
    "recompute",
    "fsdp",
    "moe_dispatcher",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """One row; empty cells are what the recipe leaves alone."""

    path: str
    line: int
    cells: Mapping[str, str]

    @property
    def name(self) -> str:
        """Its function's name."""
        return self.text("recipe")

    def text(self, column: str) -> str:
        """A cell, stripped; "" where the column is absent."""
        return self.cells.get(column, "").strip()

    def whole(self, column: str, default: int | None = None) -> int:
        """A whole number, ``default`` where the cell is empty; raises ConfigError for anything else."""
        word = self.text(column)
        if not word and default is not None:
            return default
        if not word.isdigit():
            raise ConfigError(
                where=f"{self.path}:{self.line}", key=column, value=word, allowed="a whole number"
            )
        return int(word)

    def says(self, column: str) -> bool:
        """Whether a switch is on."""
        return self.text(column) == "1"

    @property
    def counts(self) -> bool:
        """Tuned for throughput, trained from scratch, on a GPU that has a sheet."""
        tuned = self.text("kind") == "perf" and self.text("task") == "pretrain"
        return tuned and self.text("gpu") in SHEETS


def read_recipes(path: Path) -> list[Recipe]:
    """Every row of the file. Raises ConfigError for a file that is not one of recipes."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            where=str(path), key="--recipes", value=str(error), allowed="a readable CSV file"
        ) from error
    reader = csv.DictReader(text.splitlines())
    missing = [name for name in REQUIRED if name not in (reader.fieldnames or ())]
    if missing:
        raise ConfigError(
            where=f"{path}:1", key="columns", value=reader.fieldnames, allowed=f"also {', '.join(missing)}"
        )
    return [
        Recipe(path=str(path), line=line, cells={key: value or "" for key, value in row.items() if key})
        for line, row in enumerate(reader, start=2)
    ]
