"""Fit a handful of factors to measured steps of the user's cluster.

    python -m solver.calibrate --steps STEPS.csv [--pre_profiling_data_path FILE] [--out FILE]

Fitted: by solver.calibrate.posterior, which moves a factor as far as the steps tell it, from "as priced" and
as wide as the prediction's own interval (solver.answer.interval) states each cause to be.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from solver.answer.interval import WIDTHS
from solver.calibrate.posterior import Prior, expected_logs
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
# The width that the interval states for a cause; of the others, that of their curves.
STATED = {
    "expert_efficiency": WIDTHS["experts"],
    "host_efficiency": WIDTHS["host"],
    "intra_comm_efficiency": WIDTHS["network"],
    "inter_comm_efficiency": WIDTHS["network"],
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedStep:
    """R steps before they are measured: their terms, the standard deviation (R) that the interval states of
    log(measured / priced), and the curves' own relative error (R)."""

    terms: Terms
    std: FloatArray
    curves: FloatArray

    def scaled(self, factor: float) -> "PricedStep":
        """Every second times a factor."""
        return replace(self, terms=self.terms.scaled(factor))


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """R measured steps: what was priced, and seconds."""

    priced: PricedStep
    measured_s: FloatArray

    @property
    def terms(self) -> Terms:
        """The terms of their plans."""
        return self.priced.terms

    def take(self, rows: IntArray) -> "Steps":
        """The rows asked for."""
        terms = self.terms
        taken = Terms(
            parts={name: value[rows] for name, value in terms.parts.items()},
            crosses={name: value[rows] for name, value in terms.crosses.items()},
            hidden={name: value[rows] for name, value in terms.hidden.items()},
            passes=terms.passes[rows],
        )
        priced = PricedStep(terms=taken, std=self.priced.std[rows], curves=self.priced.curves[rows])
        return Steps(priced=priced, measured_s=self.measured_s[rows])

    @property
    def priced_s(self) -> FloatArray:
        """Steps as priced."""
        return np.asarray(np.sum(list(self.terms.parts.values()), axis=0), dtype=np.float64)

    def predicted_s(self, factors: Calibration) -> FloatArray:
        """Steps under the factors."""
        parts = calibrated_parts(self.terms, factors)
        return np.asarray(np.sum(list(parts.values()), axis=0), dtype=np.float64)

    @property
    def slower(self) -> FloatArray:
        """log(measured / priced)."""
        return np.log(self.measured_s / self.priced_s)

    @property
    def prior(self) -> Prior:
        """What the interval states of them: the width of the formulas is common to all causes."""
        curves = WIDTHS["curves"] * float(self.priced.curves.mean())
        own = np.array([STATED.get(name, curves) for name in EFFICIENCIES])
        return Prior(std=self.priced.std, common=WIDTHS["formulas"], own=own)


def joined(priced: Sequence[PricedStep], measured_s: Sequence[float]) -> Steps:
    """Steps of one row each."""
    terms = [one.terms for one in priced]
    first = terms[0]
    together = Terms(
        parts={name: np.concatenate([one.parts[name] for one in terms]) for name in first.parts},
        crosses={name: np.concatenate([one.crosses[name] for one in terms]) for name in first.crosses},
        hidden={name: np.concatenate([one.hidden[name] for one in terms]) for name in first.hidden},
        passes=np.concatenate([one.passes for one in terms]),
    )
    return Steps(
        priced=PricedStep(
            terms=together,
            std=np.concatenate([one.std for one in priced]),
            curves=np.concatenate([one.curves for one in priced]),
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
    logs = expected_logs(cause_shares(steps.terms), steps.slower, kept, steps.prior)
    left_out = np.log(_without(steps, logs[1:]) / steps.measured_s)
    # The root mean square, but no less than what steps repeat to: few rows may agree by chance.
    spread = max(float(np.sqrt(np.mean(left_out**2))), NOISE)
    return Fit(factors=_factors(logs[0], residual_std=spread), left_out=left_out)


def _without(steps: Steps, logs: FloatArray) -> FloatArray:
    """Each step under the factors of its own row of ``logs``."""
    rows = (np.array([row], dtype=np.int64) for row in range(len(logs)))
    return np.array(
        [steps.take(row).predicted_s(_factors(one))[0] for row, one in zip(rows, logs, strict=True)]
    )


def _factors(logs: FloatArray, *, residual_std: float = 0.0) -> Calibration:
    """Efficiencies of causes that take exp(``logs``) times as long, within their bounds."""
    efficiencies = np.clip(np.exp(-logs), LOWEST_EFFICIENCY, HIGHEST_EFFICIENCY).tolist()
    return Calibration(**dict(zip(EFFICIENCIES, efficiencies, strict=True)), residual_std=residual_std)
