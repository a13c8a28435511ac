"""The 80 % interval of a predicted step: errors of curves, and an error of the formulas themselves."""

import numpy as np

from spec.arrays import FloatArray

# Half of an 80 % interval of a normal distribution, in standard deviations.
EIGHTY_PERCENT = 1.2816
# Assumption: formulas err as a simulator of the same kind says of itself where its curves were measured on the
# same machine: a mean absolute error of 5.6 % (SimuMax, its README's B200 table), times sqrt(pi / 2) for the
# standard deviation of a normal distribution of that mean.
MODEL_STD = 0.07


def interval_of(
    step_s: FloatArray, standard_error_s: FloatArray, residual_std: float | None = None
) -> tuple[FloatArray, FloatArray]:
    """Seconds below and above which one step in ten lies each; arrays of the steps' length.

    Errors multiply, so the interval is one of log(step). ``residual_std``, the spread of what a
    calibration left, holds all errors and takes their place.
    """
    relative = np.divide(standard_error_s, step_s, out=np.zeros_like(step_s), where=step_s > 0)
    std = np.hypot(relative, MODEL_STD) if residual_std is None else np.full_like(step_s, residual_std)
    reach = np.exp(EIGHTY_PERCENT * std)
    return step_s / reach, step_s * reach
