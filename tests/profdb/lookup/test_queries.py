"""Queries broadcast their numbers and refuse what does not fit."""

import numpy as np
import pytest

from profdb.lookup import unique_shapes as module
from profdb.lookup.queries import CollectiveQuery, LinearQuery
from profdb.lookup.unique_shapes import unique_shapes
from spec.collectives import Collective
from spec.errors import ConfigError


def test_numbers_broadcast_to_one_length() -> None:
    query = LinearQuery(m=[1, 2, 3], k=7, n=np.asarray([4, 5, 6]))
    assert query.size == 3
    columns = query.columns()
    assert columns["k"].tolist() == [7, 7, 7]
    assert columns["batch"].tolist() == [1, 1, 1]
    assert all(column.dtype == np.int64 for column in columns.values())


def test_unequal_lengths_and_negative_numbers_are_refused() -> None:
    with pytest.raises(ConfigError, match="length"):
        LinearQuery(m=[1, 2, 3], k=[1, 2], n=1)
    with pytest.raises(ConfigError, match="size_bytes"):
        CollectiveQuery(collective=Collective.ALL_REDUCE, size_bytes=-1, intra=2, inter=1)


def test_no_rows_is_a_length_too() -> None:
    assert LinearQuery(m=np.zeros(0, dtype=np.int64), k=1, n=1).size == 0


@pytest.mark.parametrize("collide", [False, True])
def test_unique_shapes_gives_every_row_its_like(collide: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if collide:
        monkeypatch.setattr(module, "MIX", np.uint64(0))
    rng = np.random.default_rng(0)
    columns = {name: rng.integers(0, 9, 500) for name in "abc"}
    unique, inverse = unique_shapes(columns)
    for name, column in columns.items():
        assert np.array_equal(unique[name][inverse], column)
    rows = np.stack(list(unique.values()), axis=1)
    assert np.unique(rows, axis=0).shape == rows.shape
