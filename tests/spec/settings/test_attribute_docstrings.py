"""The text under a field."""

import pytest

from spec.presets.data_parallel import DataParallel
from spec.presets.log import Log
from spec.presets.preset import (
    Host,
    Layers,
    Loss,
    Offload,
    Pipeline,
    Recomputation,
    TensorParallel,
)
from spec.settings.attribute_docstrings import attribute_docstrings
from spec.settings.plan import WrittenPlan

TABLES = (
    DataParallel,
    Host,
    Layers,
    Log,
    Loss,
    Offload,
    Pipeline,
    Recomputation,
    TensorParallel,
    WrittenPlan,
)


def test_it_is_found_on_one_line() -> None:
    assert attribute_docstrings(Pipeline)["overlap_hops"].startswith("Interleaved stages compute beside")
    assert "\n" not in attribute_docstrings(Pipeline)["overlap_hops"]


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.__name__)
def test_every_field_has_its_meaning_under_it(table: type) -> None:
    meanings = attribute_docstrings(table)
    assert list(meanings) == list(table.__slots__)  # type: ignore[attr-defined]
    assert all(text.endswith(".") for text in meanings.values())
