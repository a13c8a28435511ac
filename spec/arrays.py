"""Array types: everything numeric is a 1-D int64 or float64 array of N rows."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.floating[Any]]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]


def ints(values: object) -> IntArray:
    """A 1-D int64 array from a number or a sequence."""
    return np.atleast_1d(np.asarray(values, dtype=np.int64))


def floats(values: object) -> FloatArray:
    """A 1-D float64 array from a number or a sequence."""
    return np.atleast_1d(np.asarray(values, dtype=np.float64))


def bools(values: object) -> BoolArray:
    """A 1-D array of truth values."""
    return np.atleast_1d(np.asarray(values, dtype=np.bool_))


def ceil_div(numerator: IntArray, denominator: IntArray | int) -> IntArray:
    """Integer division rounded up; numerator >= 0, denominator >= 1."""
    return np.asarray(-(-numerator // denominator), dtype=np.int64)
