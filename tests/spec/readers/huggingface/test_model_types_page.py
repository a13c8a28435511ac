"""docs/models.md: a row for every type, with the counts of counts.json and what its reader's docstring says;
--update-golden writes the table."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from spec.readers.huggingface.reader import ASSUMABLE, MODEL_TYPES, TEXT_TYPES

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
    assert shown is not None
    if request.config.getoption("--update-golden"):
        PAGE.write_text(text.replace(shown[0], rows()), encoding="utf-8")
        return
    assert shown[0] == rows()


def test_the_page_names_what_it_was_counted_with_and_what_may_be_assumed() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert f"transformers {TABLE['transformers']}" in text
    assert all(f"`--assume {name}`" in text for name in ASSUMABLE)
    assert all(f"`{outer}`" in text for outer in TEXT_TYPES)
