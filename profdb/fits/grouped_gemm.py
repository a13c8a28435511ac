"""Grouped matrix products of experts: time over (groups, m, k, n), m rows in total."""

import numpy as np

from ops.op import GroupedProductCall, flag_names, label_names
from profdb.fits.prediction import Arrays, Prediction
from profdb.fits.surface import Shapes, fit_surface, log_points, predict_surface
from spec.arrays import FloatArray, IntArray
from spec.dtypes import dtype_bytes

VERSION = 5
CURVE_LABELS: tuple[str, ...] = (*label_names(GroupedProductCall), "dtype_in")
CURVE_FLAGS: tuple[str, ...] = flag_names(GroupedProductCall)


def shapes_of(columns: dict[str, IntArray], labels: dict[str, str]) -> Shapes:
    """FLOPs 2 m k n; bytes of the rows in and out once and of every group's weights once.

    m always counts rows in total. In layout TN each group reduces over its rows and writes its own
    k x n: the same FLOPs, and the same arrays with in and out exchanged.
    """
    groups, m, k, n = (columns[name].astype(np.float64) for name in ("groups", "m", "k", "n"))
    in_bytes = dtype_bytes(labels["dtype_in"])
    out_bytes = max(in_bytes, 2.0)
    return Shapes(
        points=log_points([groups, m, k, n]),
        flops=2.0 * m * k * n,
        size_bytes=in_bytes * (m * k + groups * k * n) + out_bytes * m * n,
    )


def fit(columns: dict[str, IntArray], labels: dict[str, str], seconds: FloatArray, noise: float) -> Arrays:
    """Fit one curve to samples (sizes by name, median seconds, relative noise)."""
    return fit_surface(shapes_of(columns, labels), seconds, noise)


def predict(arrays: Arrays, columns: dict[str, IntArray], labels: dict[str, str]) -> Prediction:
    """Seconds of grouped products with all sizes >= 1."""
    return predict_surface(arrays, shapes_of(columns, labels))
