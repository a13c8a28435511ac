"""Fit a handful of factors to measured steps of the user's cluster.

    python -m solver.calibrate --steps STEPS.csv [--pre_profiling_data_path FILE] [--out FILE]

Fitted: robust least squares on log(predicted / measured): soft_l1, so that a step that stuttered counts
linearly. A prior holds what few rows do not determine at "as priced".
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from solver.calibration import (
    HIGHEST_EFFICIENCY,
    LOWEST_EFFICIENCY,
    Calibration,
    Fit,
    Terms,
    calibrated_parts,
)
from spec.arrays import FloatArray, IntArray
from spec.errors import UserError

EFFICIENCIES = (
    "compute_efficiency",
    "memory_bound_efficiency",
    "intra_comm_efficiency",
    "inter_comm_efficiency",
)
# Assumption: priors of the log efficiencies. A cluster that is slow is slow at everything first (clocks,
# a loaded host) and differs by part second, so few rows move the level before they move one part alone.
COMMON_STD, OWN_STD = 0.4, 0.1
# Assumption: prior spread of the hidden share, and of fixed times as a share of the priced step.
OVERLAP_STD, FIXED_STD = 0.25, 0.01
# Assumption: measured steps repeat to 3 %; misses beyond that count linearly.
NOISE = 0.03
# One step says nothing about how well the others are told.
FEWEST_STEPS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """R measured steps: the terms of their plans and seconds."""

    terms: Terms
    measured_s: FloatArray

    def take(self, rows: IntArray) -> "Steps":
        """The rows asked for."""
        terms = self.terms
        return Steps(
            terms=Terms(
                parts={name: value[rows] for name, value in terms.parts.items()},
                crosses={name: value[rows] for name, value in terms.crosses.items()},
                hidden={name: value[rows] for name, value in terms.hidden.items()},
                passes=terms.passes[rows],
            ),
            measured_s=self.measured_s[rows],
        )

    @property
    def priced_s(self) -> FloatArray:
        """Steps as priced."""
        return np.asarray(np.sum(list(self.terms.parts.values()), axis=0), dtype=np.float64)

    def predicted_s(self, factors: Calibration) -> FloatArray:
        """Steps under the factors."""
        parts = calibrated_parts(self.terms, factors)
        return np.asarray(np.sum(list(parts.values()), axis=0), dtype=np.float64)


def joined(terms: Sequence[Terms], measured_s: Sequence[float]) -> Steps:
    """Steps of one-row terms."""
    first = terms[0]
    return Steps(
        terms=Terms(
            parts={name: np.concatenate([one.parts[name] for one in terms]) for name in first.parts},
            crosses={name: np.concatenate([one.crosses[name] for one in terms]) for name in first.crosses},
            hidden={name: np.concatenate([one.hidden[name] for one in terms]) for name in first.hidden},
            passes=np.concatenate([one.passes for one in terms]),
        ),
        measured_s=np.array(measured_s, dtype=np.float64),
    )


def fit(steps: Steps) -> Fit:
    """Factors from all steps, with leave-one-out errors; the residual spread is a robust one.

    Raises UserError for fewer than two steps.
    """
    count = len(steps.measured_s)
    if count < FEWEST_STEPS:
        raise UserError(f"calibration needs {FEWEST_STEPS} measured steps or more, not {count}")
    left_out = np.zeros(count)
    for row in range(count):
        rest = np.delete(np.arange(count, dtype=np.int64), row)
        one = steps.take(np.array([row], dtype=np.int64))
        left_out[row] = np.log(one.predicted_s(factors_of(steps.take(rest)))[0] / one.measured_s[0])
    # The root mean square, but no less than what steps repeat to: few rows may agree by chance.
    spread = max(float(np.sqrt(np.mean(left_out**2))), NOISE)
    found = factors_of(steps)
    values = {name: getattr(found, name) for name in (*EFFICIENCIES, *OTHERS)}
    return Fit(factors=Calibration(**values, residual_std=spread), left_out=left_out)


OTHERS = ("overlap", "fixed_per_micro_batch_s", "fixed_per_step_s")


def factors_of(steps: Steps) -> Calibration:
    """The factors with the least robust misses and prior."""
    from scipy.optimize import least_squares

    rows, count = len(steps.measured_s), len(EFFICIENCIES)
    priced = steps.priced_s
    scales = np.array([np.median(priced / steps.terms.passes), np.median(priced)]) * FIXED_STD
    prior = _prior(count)

    def factors(values: FloatArray) -> Calibration:
        efficiencies = dict(zip(EFFICIENCIES, np.exp(values[:count]).tolist(), strict=True))
        return Calibration(
            **efficiencies,
            overlap=1.0 - float(values[count]) * OVERLAP_STD,
            fixed_per_micro_batch_s=float(values[count + 1] * scales[0]),
            fixed_per_step_s=float(values[count + 2] * scales[1]),
        )

    def misses(values: FloatArray) -> FloatArray:
        ratio = np.log(steps.predicted_s(factors(values)) / steps.measured_s) / NOISE
        return np.concatenate([ratio, prior @ values[:count], values[count:]])

    def loss(squares: FloatArray) -> FloatArray:
        """soft_l1 for what was measured, plain squares for the prior."""
        rho = np.stack([squares, np.ones_like(squares), np.zeros_like(squares)])
        root = np.sqrt(1.0 + squares[:rows])
        rho[:, :rows] = 2.0 * (root - 1.0), 1.0 / root, -0.5 / root**3
        return rho

    low = np.concatenate([np.full(count, np.log(LOWEST_EFFICIENCY)), np.zeros(3)])
    high = np.concatenate([np.full(count, np.log(HIGHEST_EFFICIENCY)), [1.0 / OVERLAP_STD, 30.0, 30.0]])
    level = float(np.median(np.log(priced / steps.measured_s)))
    inside = float(np.clip(level, low[0] + 1e-3, high[0] - 1e-3))
    start = np.concatenate([np.full(count, inside), np.full(3, 0.1)])
    found = least_squares(misses, start, bounds=(low, high), loss=loss)
    return factors(np.asarray(found.x, dtype=np.float64))


def _prior(count: int) -> FloatArray:
    """Whitens log efficiencies of covariance COMMON_STD^2 (all) + OWN_STD^2 (each)."""
    covariance = COMMON_STD**2 * np.ones((count, count)) + OWN_STD**2 * np.eye(count)
    return np.asarray(np.linalg.cholesky(np.linalg.inv(covariance)).T)
