"""Fit a handful of factors to measured steps of the user's cluster.

    python -m solver.calibrate --steps STEPS.csv [--pre_profiling_data_path FILE] [--out FILE]

Fitted: by solver.calibrate.posterior, which moves a factor as far as the steps tell it; then drawn towards "as priced" by
what fits without each step say of that step, so that a fit that tells others no better than the price is not used.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from solver.calibrate.posterior import expected_logs
from solver.calibration import (
    CAUSES,
    HIGHEST_EFFICIENCY,
    LOWEST_EFFICIENCY,
    Calibration,
    Fit,
    Terms,
    calibrated_parts,
    cause_shares,
)
from spec.arrays import FloatArray, IntArray
from spec.errors import UserError

EFFICIENCIES = tuple(CAUSES)
# Assumption: measured steps repeat to 3 %: no interval is narrower.
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
    """Factors from all steps, with leave-one-out errors; the spread of the residuals is of those.

    Raises UserError for fewer than two steps.
    """
    count = len(steps.measured_s)
    if count < FEWEST_STEPS:
        raise UserError(f"calibration needs {FEWEST_STEPS} measured steps or more, not {count}")
    kept = np.vstack([np.ones(count), 1.0 - np.eye(count)])
    slower = np.log(steps.measured_s / steps.priced_s)
    logs = expected_logs(cause_shares(steps.terms), slower, kept)
    used = used_share(steps, logs[1:])
    left_out = np.log(_without(steps, used * logs[1:]) / steps.measured_s)
    # The root mean square, but no less than what steps repeat to: few rows may agree by chance.
    spread = max(float(np.sqrt(np.mean(left_out**2))), NOISE)
    return Fit(factors=_factors(used * logs[0], residual_std=spread), left_out=left_out)


def used_share(steps: Steps, logs: FloatArray) -> float:
    """How much of a fit is used, 0 to 1, by what fits without each row (``logs``, R x C) gain on that row.

    With the mean gain in absolute error g and its standard error e, the share is 1 - (e / g)^2 (James and Stein's
    estimator for one figure, positive part; Efron and Morris 1973, JASA 68(341)); nothing where g is not positive.
    """
    priced = np.abs(steps.priced_s / steps.measured_s - 1.0)
    gains = priced - np.abs(_without(steps, logs) / steps.measured_s - 1.0)
    mean, error = float(gains.mean()), float(gains.std(ddof=1) / np.sqrt(len(gains)))
    return max(1.0 - (error / mean) ** 2, 0.0) if mean > 0.0 else 0.0


def _without(steps: Steps, logs: FloatArray) -> FloatArray:
    """Each step under the factors of its own row of ``logs``."""
    rows = (np.array([row], dtype=np.int64) for row in range(len(logs)))
    return np.array(
        [steps.take(row).predicted_s(_factors(one))[0] for row, one in zip(rows, logs, strict=True)]
    )


def factors_of(steps: Steps) -> Calibration:
    """The factors that the steps tell, all of them used."""
    slower = np.log(steps.measured_s / steps.priced_s)
    return _factors(
        expected_logs(cause_shares(steps.terms), slower, np.ones((1, len(slower))))[0], residual_std=0.0
    )


def _factors(logs: FloatArray, *, residual_std: float = 0.0) -> Calibration:
    """Efficiencies of causes that take exp(``logs``) times as long, within their bounds."""
    efficiencies = np.clip(np.exp(-logs), LOWEST_EFFICIENCY, HIGHEST_EFFICIENCY).tolist()
    return Calibration(**dict(zip(EFFICIENCIES, efficiencies, strict=True)), residual_std=residual_std)
