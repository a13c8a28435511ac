"""Efficiencies of a cluster from a few measured steps: ``python -m solver.calibrate --steps STEPS.csv``.

Fitted: Bayesian linear regression of measured over priced seconds on shares of the step (``expected_logs``), which
moves a factor as far as the steps support it, from "as priced" and as wide as the prediction's own interval
(solver.problem.interval) states each cause to be.

With s_c the share of a cause c in a step and e_c the log of what it takes longer, log(measured / priced) is
sum_c s_c e_c to first order. Prior: e_c = common + own_c around 0, as wide as the prediction's own interval
states its causes to be; the common part is Student's t, so that a cluster far outside what was stated is
believed where its steps agree. Noise is Student's t as well, by iteratively reweighted least squares (Lange,
Little and Taylor 1989, JASA 84(408)), each step's in units of its own stated error, so that a step that
stuttered, or that rests on little, says little. How much of what is stated the steps of a cluster share, and
by how much of it each scatters, is not known: a grid is averaged by the evidence of each (MacKay 1992, Neural
Computation 4(3)). Nothing shared is "as priced".
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from solver.problem.calibration import (
    CAUSES,
    HIGHEST_EFFICIENCY,
    LOWEST_EFFICIENCY,
    Calibration,
    CalibrationTerms,
    Fit,
    calibrated_parts,
    cause_shares,
)
from solver.problem.interval import WIDTHS
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
# Assumption: of a step's stated error, what it scatters by, twice as much half as likely: steps of one
# cluster repeat better than clusters agree; of the stated widths, what the steps of one cluster share.
NOISES = (0.25, 0.5, 1.0, 2.0, 4.0)
SHARED = (0.0, 0.5, 1.0)
# Assumption: degrees of freedom of the noise and of what is common, few as for any robust fit (Lange et al. sec. 1).
DEGREES = 3.0
# The tail of Student's t as a mixture of normals so many times wider: a scale v has the density v^-degrees of log v.
WIDER = (1.0, 2.0, 4.0, 8.0, 16.0)
TURNS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Prior:
    """What is stated before anything is measured, of logs: each step's standard error (R), the spread that
    all causes share, and each cause's own (C)."""

    std: FloatArray
    common: float
    own: FloatArray


def expected_logs(shares: FloatArray, slower: FloatArray, kept: FloatArray, prior: Prior) -> FloatArray:
    """(B, C) expected logs of what each cause takes longer, for B choices of the rows.

    ``shares`` (R, C) of each step, ``slower`` (R) log of measured over priced, ``kept`` (B, R) 1 for the rows that
    a choice has and 0 for the others.
    """
    scatter, roots, likely = _spreads(prior)
    noise = scatter[:, None] * prior.std
    causes = np.einsum("rc,gcj->grj", shares, roots)
    precision = 1.0 / noise**2
    weights = np.broadcast_to(kept[:, None, :], (len(kept), len(noise), len(slower)))
    for _ in range(TURNS):
        weighted = weights * precision
        inner = np.einsum("bgr,grj,gri->bgji", weighted, causes, causes) + np.eye(causes.shape[2])
        target = np.einsum("bgr,grj,r->bgj", weighted, causes, slower)
        means = np.linalg.solve(inner, target[..., None])[..., 0]
        misses = slower - np.einsum("grj,bgj->bgr", causes, means)
        fit = np.einsum("bgr,bgr->bg", weighted, misses**2) + np.einsum("bgj,bgj->bg", means, means)
        evidence = -0.5 * (fit + np.linalg.slogdet(inner)[1]) + _noise_evidence(weights, kept, noise)
        weights = kept[:, None, :] * (DEGREES + 1.0) / (DEGREES + misses**2 * precision)
    chances = likely * np.exp(evidence - evidence.max(axis=1, keepdims=True))
    chances /= chances.sum(axis=1, keepdims=True)
    return np.asarray(np.einsum("bg,gcj,bgj->bc", chances, roots, means), dtype=np.float64)


def _noise_evidence(weights: FloatArray, kept: FloatArray, noise: FloatArray) -> FloatArray:
    """Returns what the noise's scale and the rows' weights add to the log evidence: normal of variance noise^2 /
    weight, the weights gamma-distributed."""
    logs = np.log(np.where(weights > 0.0, weights, 1.0))
    of_weights = 0.5 * logs + 0.5 * DEGREES * (logs - weights) - np.log(noise)
    return np.asarray((of_weights * kept[:, None, :]).sum(axis=2), dtype=np.float64)


def _spreads(prior: Prior) -> tuple[FloatArray, FloatArray, FloatArray]:
    """(G) scatters in units of the stated errors, (G, C, C + 1) roots of the prior's covariance, and (G) how
    likely each is before anything is measured, up to a factor."""
    grid = list(itertools.product(NOISES, SHARED, WIDER))
    ones = np.ones((len(prior.own), 1))
    roots = [shared * np.hstack([wider * prior.common * ones, np.diag(prior.own)]) for _, shared, wider in grid]
    scatter, _, wider = np.array(grid).T
    return scatter, np.array(roots), wider**-DEGREES / scatter


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedStep:
    """R steps before they are measured: their terms, the standard deviation (R) that the interval states of
    log(measured / priced), and the curves' own relative error (R)."""

    terms: CalibrationTerms
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
    def terms(self) -> CalibrationTerms:
        """The terms of their plans."""
        return self.priced.terms

    def take(self, rows: IntArray) -> "Steps":
        """The rows asked for."""
        terms = self.terms
        terms = CalibrationTerms(
            parts={name: value[rows] for name, value in terms.parts.items()},
            crosses={name: value[rows] for name, value in terms.crosses.items()},
            hidden={name: value[rows] for name, value in terms.hidden.items()},
            passes=terms.passes[rows],
        )
        priced = PricedStep(terms=terms, std=self.priced.std[rows], curves=self.priced.curves[rows])
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
        """Returns what the interval states of them: the width of the formulas is common to all causes."""
        curves = WIDTHS["curves"] * float(self.priced.curves.mean())
        own = np.array([STATED.get(name, curves) for name in EFFICIENCIES])
        return Prior(std=self.priced.std, common=WIDTHS["formulas"], own=own)


def joined(priced: Sequence[PricedStep], measured_s: Sequence[float]) -> Steps:
    """Steps of one row each."""
    terms = [one.terms for one in priced]
    first = terms[0]
    together = CalibrationTerms(
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
    return np.array([steps.take(row).predicted_s(_factors(one))[0] for row, one in zip(rows, logs, strict=True)])


def _factors(logs: FloatArray, *, residual_std: float = 0.0) -> Calibration:
    """Efficiencies of causes that take exp(``logs``) times as long, within their bounds."""
    efficiencies = np.clip(np.exp(-logs), LOWEST_EFFICIENCY, HIGHEST_EFFICIENCY).tolist()
    return Calibration(**dict(zip(EFFICIENCIES, efficiencies, strict=True)), residual_std=residual_std)
