"""Parameters of models by type, as transformers' own models have them: counts.json, which
benchmarks/huggingface_counts.py writes and says how."""

import json
from pathlib import Path
from typing import Any

import pytest

from spec.parameters import num_parameters
from spec.readers.huggingface.reader import MODEL_TYPES
from spec.readers.read_config import read_config

ROWS: list[dict[str, Any]] = json.loads((Path(__file__).parent / "counts.json").read_text(encoding="utf-8"))[
    "counts"
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["name"])
def test_a_reader_counts_what_transformers_does(row: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(row["says"]), encoding="utf-8")
    model = read_config(path).model
    assert num_parameters(model).total == row["parameters"] + sum(row["buffers"].values())


def test_every_type_is_counted() -> None:
    """InternLM2's model lies beside its weights alone."""
    assert {row["says"]["model_type"] for row in ROWS} == set(MODEL_TYPES) - {"internlm2"}
