"""Memory-bound kernels: time over rows x width for one kernel and direction, by bytes moved."""

import numpy as np

from ops.memory_bound import KERNELS, bytes_moved_per_element
from ops.op import KernelCall, flag_names, label_names
from profdb.fits.prediction import Arrays, Prediction
from profdb.fits.surface import Shapes, fit_surface, log_points, predict_surface
from spec.arrays import FloatArray, IntArray

VERSION = 5
CURVE_LABELS: tuple[str, ...] = (*label_names(KernelCall), "direction")
CURVE_FLAGS: tuple[str, ...] = flag_names(KernelCall)


def bytes_per_element(kernel: str, direction: str, dtype: str) -> float:
    """Bytes moved for one element as ops.memory_bound counts them; a kernel it does not know counts as a copy."""
    known = kernel if kernel in KERNELS else "copy"
    return bytes_moved_per_element(known, backward=direction == "backward", dtype=dtype)


def moves_bytes(kernel: str, direction: str, dtype: str) -> bool:
    """Whether the kernel has anything to do in this direction."""
    return bytes_per_element(kernel, direction, dtype) > 0.0


def shapes_of(columns: dict[str, IntArray], labels: dict[str, str]) -> Shapes:
    """No FLOPs that count; bytes by ``bytes_per_element``."""
    rows, width = columns["rows"].astype(np.float64), columns["width"].astype(np.float64)
    per_element = bytes_per_element(labels["kernel"], labels["direction"], labels["dtype"])
    return Shapes(
        points=log_points([rows, width]), flops=np.zeros_like(rows), size_bytes=per_element * rows * width
    )


def fit(columns: dict[str, IntArray], labels: dict[str, str], seconds: FloatArray, noise: float) -> Arrays:
    """Fit one curve to samples (sizes by name, median seconds, relative noise)."""
    return fit_surface(shapes_of(columns, labels), seconds, noise)


def predict(arrays: Arrays, columns: dict[str, IntArray], labels: dict[str, str]) -> Prediction:
    """Seconds of kernel calls with rows, width >= 1."""
    return predict_surface(arrays, shapes_of(columns, labels))
