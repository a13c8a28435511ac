"""Queries broadcast their numbers and refuse what does not fit."""

import numpy as np
import pytest

from profdb.cases import Family
from profdb.queries import AttentionQuery, CollectiveQuery, LinearQuery, P2PQuery, Query, busy_rows, curve_of
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


def test_words_and_flags_name_the_curve() -> None:
    """Number formats by their one name; a product by that of its operands; messages as the collective that they are."""
    product = LinearQuery(m=1, k=1, n=1, dtype="bfloat16", bias=True)
    words = {"layout": "NT", "scale_recipe": "", "bias": "1", "dtype_in": "bf16"}
    assert curve_of(product) == (Family.GEMM, words)
    assert curve_of(P2PQuery(size_bytes=1, intra=2, inter=1)) == (Family.COLLECTIVE, {"collective": "p2p"})
    with pytest.raises(TypeError, match="no curves"):
        curve_of(Query())


def test_rows_with_nothing_to_do_are_idle() -> None:
    """A size of 0, a group of one rank, a kernel that moves nothing; a window of 0 is none of them."""
    assert busy_rows(LinearQuery(m=[0, 1], k=1, n=1)).tolist() == [False, True]
    group = CollectiveQuery(collective=Collective.ALL_GATHER, size_bytes=[8, 8, 0], intra=[1, 2, 2], inter=1)
    assert busy_rows(group).tolist() == [False, True, False]
    sizes = {"q_len": 1, "kv_len": 1, "heads": 1, "kv_heads": 1, "qk_dim": 1, "v_dim": 1}
    assert busy_rows(AttentionQuery(**sizes, window=0)).all()
