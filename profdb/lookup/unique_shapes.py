"""Finding the few different shapes among many rows."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from spec.arrays import IntArray

MIX = np.uint64(0x9E3779B97F4A7C15)
"""2**64 / golden ratio, made odd: the multiplier of Fibonacci hashing (Knuth, TAOCP vol. 3, 6.4)."""


def unique_shapes(columns: dict[str, IntArray]) -> tuple[dict[str, IntArray], IntArray]:
    """Different rows of ``columns`` (each of length N) and, for every row, the index of its like.

    Rows are told apart by a 64-bit hash that is then checked against the rows themselves; on a
    collision the rows are sorted whole.
    """
    if not columns:
        return {}, np.zeros(1, dtype=np.int64)
    stacked = list(columns.values())
    hashes = row_hashes([column.astype(np.uint64) for column in stacked])
    _, first, inverse = np.unique(hashes, return_index=True, return_inverse=True)
    inverse = inverse.reshape(-1)
    if all(np.array_equal(column[first[inverse]], column) for column in stacked):
        return {name: column[first] for name, column in columns.items()}, inverse
    rows, whole = np.unique(np.stack(stacked, axis=1), axis=0, return_inverse=True)
    return {name: rows[:, place] for place, name in enumerate(columns)}, whole.reshape(-1)


def row_hashes(columns: Sequence[NDArray[np.uint64]]) -> NDArray[np.uint64]:
    """A 64-bit hash of every row of ``columns``, all of one length."""
    mixed = np.zeros(columns[0].shape[0], dtype=np.uint64)
    for column in columns:
        mixed = (mixed ^ column) * MIX
        mixed ^= mixed >> np.uint64(29)
    return mixed
