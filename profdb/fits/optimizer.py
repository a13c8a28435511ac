"""The optimizer step: time over elements and tensors, by bytes moved."""

import numpy as np

from profdb.fits.prediction import Arrays, Prediction
from profdb.fits.surface import Shapes, fit_surface, log_points, predict_surface
from spec.arrays import FloatArray, IntArray
from spec.dtypes import dtype_bytes

VERSION = 5
CURVE_LABELS: tuple[str, ...] = ("kernel", "parameter_dtype", "gradient_dtype")
CURVE_FLAGS: tuple[str, ...] = ()


def shapes_of(columns: dict[str, IntArray], labels: dict[str, str]) -> Shapes:
    """AdamW reads parameter, gradient and two fp32 moments and writes all but the gradient
    (Loshchilov and Hutter, 1711.05101, algorithm 2): 2 p + g + 16 bytes an element."""
    elements = columns["elements"].astype(np.float64)
    tensors = columns["tensors"].astype(np.float64)
    per_element = 2.0 * dtype_bytes(labels["parameter_dtype"]) + dtype_bytes(labels["gradient_dtype"]) + 16.0
    return Shapes(
        points=log_points([elements, tensors]),
        flops=np.zeros_like(elements),
        size_bytes=per_element * elements,
    )


def fit(columns: dict[str, IntArray], labels: dict[str, str], seconds: FloatArray, noise: float) -> Arrays:
    """Fit one curve to samples (sizes by name, median seconds, relative noise)."""
    return fit_surface(shapes_of(columns, labels), seconds, noise)


def predict(arrays: Arrays, columns: dict[str, IntArray], labels: dict[str, str]) -> Prediction:
    """Seconds of optimizer steps with elements, tensors >= 1."""
    return predict_surface(arrays, shapes_of(columns, labels))
