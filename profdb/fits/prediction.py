"""What a fitted curve answers: seconds, their relative error, and whether data surround the point."""

from dataclasses import dataclass

import numpy as np

from spec.arrays import BoolArray, FloatArray

Arrays = dict[str, FloatArray]
"""A fitted curve as it is stored: named 1-D or 2-D float64 arrays, nothing else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """``seconds``, ``relative_std`` and ``inside`` (interpolated inside the samples), length Q."""

    seconds: FloatArray
    relative_std: FloatArray
    inside: BoolArray


def fit_error(arrays: Arrays) -> dict[str, float]:
    """Cross-validated errors of a stored curve as shares: median, p90, worst (NaN-free, 0 if unknown)."""
    errors = arrays.get("cv_error", np.zeros(0))
    if not errors.size:
        return {"median": 0.0, "p90": 0.0, "worst": 0.0}
    return {
        "median": float(np.median(errors)),
        "p90": float(np.quantile(errors, 0.9)),
        "worst": float(errors.max()),
    }
