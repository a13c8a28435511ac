"""Every model type: its parameters as transformers' own models have them (counts.json, which benchmarks/huggingface_counts.py
writes and says how), and its row of docs/models.md, which --update-golden writes."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from spec.parameters import num_parameters
from spec.readers.huggingface.reader import ASSUMABLE, MODEL_TYPES, TEXT_TYPES
from spec.readers.read_config import read_config

ROWS: list[dict[str, Any]] = json.loads((Path(__file__).parent / "counts.json").read_text(encoding="utf-8"))["counts"]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["name"])
def test_a_reader_counts_what_transformers_does(row: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(row["says"]), encoding="utf-8")
    model = read_config(path).model
    assert num_parameters(model).total == row["parameters"] + sum(row["buffers"].values())


def test_every_type_is_counted() -> None:
    """InternLM2's model lies beside its weights alone."""
    assert {row["says"]["model_type"] for row in ROWS} == set(MODEL_TYPES) - {"internlm2"}


PAGE = Path(__file__).parents[4] / "docs" / "models.md"
TABLE = json.loads((Path(__file__).parent / "counts.json").read_text(encoding="utf-8"))
HEAD = "| model type | what its reader honours | counted, in parameters |\n|---|---|---|\n"


def rows() -> str:
    lines = []
    for model_type, read in MODEL_TYPES.items():
        honoured = " ".join(str(read.__doc__).split()).replace("``", "`").rstrip(".")
        counted = "; ".join(_words(row) for row in TABLE["counts"] if row["says"]["model_type"] == model_type)
        lines.append(f"| `{model_type}` | {honoured} | {counted} |")
    return HEAD + "\n".join(lines) + "\n"


def _words(row: dict[str, Any]) -> str:
    name = row["name"].removeprefix(f"{row['says']['model_type']}, ")
    corrections = sum(row["buffers"].values())
    return f"{name} {row['parameters']:,}" + (f" + {corrections:,}" if corrections else "")


def test_the_table_is_that_of_the_readers(request: pytest.FixtureRequest) -> None:
    text = PAGE.read_text(encoding="utf-8")
    shown = re.search(rf"{re.escape(HEAD)}(\|.*\n)*", text)
    if request.config.getoption("--update-golden"):
        PAGE.write_text(text.replace(shown[0], rows()), encoding="utf-8")
        return
    assert shown[0] == rows()


def test_the_page_names_what_it_was_counted_with_and_what_may_be_assumed() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert f"transformers {TABLE['transformers']}" in text
    assert all(f"`--assume {name}`" in text for name in ASSUMABLE)
    assert all(f"`{outer}`" in text for outer in TEXT_TYPES)
