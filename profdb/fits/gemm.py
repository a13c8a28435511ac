"""Matrix products: time over (batch, m, k, n) for one layout and number format."""

import numpy as np

from ops.op import ProductCall, flag_names, label_names
from profdb.fits.prediction import Arrays, Prediction
from profdb.fits.surface import Shapes, fit_surface, log_points, predict_surface
from spec.arrays import FloatArray, IntArray
from spec.dtypes import dtype_bytes

VERSION = 5
CURVE_LABELS: tuple[str, ...] = (*label_names(ProductCall), "dtype_in")
CURVE_FLAGS: tuple[str, ...] = flag_names(ProductCall)


def shapes_of(columns: dict[str, IntArray], labels: dict[str, str]) -> Shapes:
    """FLOPs 2 b m k n; bytes of A, B and C once each (C in 16 bits for 8-bit inputs)."""
    batch, m, k, n = (columns[name].astype(np.float64) for name in ("batch", "m", "k", "n"))
    in_bytes = dtype_bytes(labels["dtype_in"])
    out_bytes = max(in_bytes, 2.0)
    return Shapes(
        points=log_points([batch, m, k, n]),
        flops=2.0 * batch * m * k * n,
        size_bytes=batch * (in_bytes * (m * k + k * n) + out_bytes * m * n),
    )


def fit(columns: dict[str, IntArray], labels: dict[str, str], seconds: FloatArray, noise: float) -> Arrays:
    """Fit one curve to samples (sizes by name, median seconds, relative noise)."""
    return fit_surface(shapes_of(columns, labels), seconds, noise)


def predict(arrays: Arrays, columns: dict[str, IntArray], labels: dict[str, str]) -> Prediction:
    """Seconds of products with all sizes >= 1."""
    return predict_surface(arrays, shapes_of(columns, labels))
