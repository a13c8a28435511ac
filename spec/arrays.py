"""Array types: everything numeric is a 1-D int64 or float64 array of N rows."""

from statistics import NormalDist
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.floating[Any]]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

Number = TypeVar("Number", bound=np.generic)


def of_rows(values: NDArray[Number], rows: int) -> NDArray[Number]:
    """``values``, of which there is one or one for each row, one for each row."""
    return values if len(values) == rows else np.broadcast_to(values, (rows,))


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


def expected_largest(draws: int) -> float:
    """Expected largest of ``draws`` (at least 1) independent standard normal numbers; 0 for one.

    Blom's approximation (Statistical Estimates and Transformed Beta-Variables, 1958): the quantile at
    (n - 3/8) / (n + 1/4).
    """
    return max(NormalDist().inv_cdf((draws - 0.375) / (draws + 0.25)), 0.0)
