"""Efficiencies of a cluster from a few measured steps: ``python -m solver.calibrate --steps STEPS.csv``.

Fitted: Bayesian linear regression of measured over predicted seconds on shares of the step (``posterior_of``). It
moves a factor from 1 only as far as the steps support it.

    model    with s_c the share of a cause c in a step and e_c the log of how much longer the cause takes,
             log(measured / predicted) = sum_c s_c e_c + noise, to first order
    prior    e_c = common + own_c around 0: the common part is the spread between sources of runs, Student's t as
             the interval of a new source has it, and own_c as wide as the interval has each cause
             (solver.problem.interval). Causes move apart only where steps differ in their shares
    noise    Student's t, by iteratively reweighted least squares (Lange, Little and Taylor 1989, JASA 84(408)), in units
             of each step's own standard error, so that an outlier, or a step with a wide interval, counts little
    scales   how much of the prior the steps of a cluster share, and how much each of them scatters, is unknown: a
             grid of both is averaged by the evidence of each point (MacKay 1992, Neural Computation 4(3)). One point is
             that they share nothing, and factors stay at 1
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
from solver.problem.interval import NEW_SOURCES, WIDTHS, SourceSpread
from spec.arrays import FloatArray, IntArray

EFFICIENCIES = tuple(CAUSES)
# The width of a cause in the interval of predictions; causes that are not here have that of their curves.
CAUSE_WIDTHS = {
    "expert_efficiency": WIDTHS["experts"],
    "host_efficiency": WIDTHS["host"],
    "intra_comm_efficiency": WIDTHS["network"],
    "inter_comm_efficiency": WIDTHS["network"],
}
# The grid of noise over a step's standard error, every octave as likely, and of the part of the prior that the steps of one
# cluster share.
NOISES = (0.25, 0.5, 1.0, 2.0, 4.0)
SHARED = (0.0, 0.5, 1.0)
# Assumption: degrees of freedom of the noise, few as for any robust fit (Lange et al. sec. 1).
DEGREES = 3.0
# Scales of the normals that make up the common part's Student's t.
WIDER = np.array([0.35, 0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0, 8.0])
ITERATIONS = 5
"""Iterations of the reweighting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prior:
    """The prior of logs: each step's standard error (R), the spread common to all causes, and each cause's own (C)."""

    std: FloatArray
    common: SourceSpread
    own: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Posterior:
    """What B subsets of steps say of the logs of how much longer each cause takes: their mean (B, C) and covariance (B, C, C),
    and the noise in units of the steps' standard errors (B)."""

    mean: FloatArray
    covariance: FloatArray
    noise: FloatArray


def posterior_of(shares: FloatArray, slower: FloatArray, included: FloatArray, prior: Prior) -> Posterior:
    """Returns the posterior for B subsets of the rows.

    ``shares`` (R, C) of the causes in each step, ``slower`` (R) log of measured over predicted, ``included`` (B, R) 1
    for the rows of a subset and 0 for the others. Axes below: b subset, g grid point, r row, c cause, j independent
    normals that the causes are made of."""
    scatter, roots, likely = _grid(prior)
    noise = scatter[:, None] * prior.std
    # The regressors: logs of causes are ``roots`` times standard normals, so their prior is an identity matrix.
    causes = np.einsum("rc,gcj->grj", shares, roots)
    precision = 1.0 / noise**2
    weights = np.broadcast_to(included[:, None, :], (len(included), len(noise), len(slower)))
    for _ in range(ITERATIONS):
        row_precision = weights * precision
        # Normal equations of ridge regression.
        inner = np.einsum("bgr,grj,gri->bgji", row_precision, causes, causes) + np.eye(causes.shape[2])
        target = np.einsum("bgr,grj,r->bgj", row_precision, causes, slower)
        means = np.linalg.solve(inner, target[..., None])[..., 0]
        misses = slower - np.einsum("grj,bgj->bgr", causes, means)
        # Log evidence of a grid point: misfit, Occam factor, and the noise's own terms.
        fit = np.einsum("bgr,bgr->bg", row_precision, misses**2) + np.einsum("bgj,bgj->bg", means, means)
        evidence = -0.5 * (fit + np.linalg.slogdet(inner)[1]) + _noise_evidence(weights, included, noise)
        # Weights of Student's t: (degrees + 1) / (degrees + squared miss in units of the noise).
        weights = included[:, None, :] * (DEGREES + 1.0) / (DEGREES + misses**2 * precision)
    probability = likely * np.exp(evidence - evidence.max(axis=1, keepdims=True))
    probability /= probability.sum(axis=1, keepdims=True)
    logs = np.einsum("gcj,bgj->bgc", roots, means)
    mean = np.einsum("bg,bgc->bc", probability, logs)
    # Covariance of a mixture: the mean covariance, and that of the means.
    within = np.einsum("bg,gcj,bgji,gdi->bcd", probability, roots, np.linalg.inv(inner), roots, optimize=True)
    away = logs - mean[:, None]
    return Posterior(
        mean=np.asarray(mean, dtype=np.float64),
        covariance=np.asarray(within + np.einsum("bg,bgc,bgd->bcd", probability, away, away), dtype=np.float64),
        noise=np.exp(probability @ np.log(scatter)),
    )


def _noise_evidence(weights: FloatArray, included: FloatArray, noise: FloatArray) -> FloatArray:
    """Returns what the noise's scale and the rows' weights add to the log evidence: normal noise of variance noise^2 /
    weight, with gamma-distributed weights."""
    logs = np.log(np.where(weights > 0.0, weights, 1.0))
    of_weights = 0.5 * logs + 0.5 * DEGREES * (logs - weights) - np.log(noise)
    return np.asarray((of_weights * included[:, None, :]).sum(axis=2), dtype=np.float64)


def _grid(prior: Prior) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Returns for the points of the grid (G) the noise in units of the standard errors, (G, C, C + 1) roots of the
    prior's covariance, and (G) the prior probability up to a factor."""
    grid = list(itertools.product(NOISES, SHARED, WIDER))
    ones = np.ones((len(prior.own), 1))
    # Columns: the common normal, and one for each cause.
    roots = [shared * np.hstack([wider * prior.common.std * ones, np.diag(prior.own)]) for _, shared, wider in grid]
    scatter, _, wider = np.array(grid).T
    # A normal whose precision is gamma-distributed is Student's t: density of the logarithm of its scale.
    degrees = prior.common.sources
    return scatter, np.array(roots), wider**-degrees * np.exp(-0.5 * degrees / wider**2)


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedStep:
    """R predicted steps: their terms, the standard deviation (R) of log(measured / predicted) by the interval, and the
    curves' own relative error (R)."""

    terms: CalibrationTerms
    std: FloatArray
    curves: FloatArray

    def scaled(self, factor: float) -> "PricedStep":
        """Returns the steps with all seconds times a factor."""
        return replace(self, terms=self.terms.scaled(factor))


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """R measured steps: their predictions, and the measured seconds."""

    priced: PricedStep
    measured_s: FloatArray

    @property
    def terms(self) -> CalibrationTerms:
        """Returns the terms of their plans."""
        return self.priced.terms

    def take(self, rows: IntArray) -> "Steps":
        """Returns these rows."""
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
        """Returns the predicted steps without factors."""
        return np.asarray(np.sum(list(self.terms.parts.values()), axis=0), dtype=np.float64)

    def predicted_s(self, factors: Calibration) -> FloatArray:
        """Returns the predicted steps under ``factors``."""
        parts = calibrated_parts(self.terms, factors)
        return np.asarray(np.sum(list(parts.values()), axis=0), dtype=np.float64)

    @property
    def slower(self) -> FloatArray:
        """Returns log(measured / predicted without factors)."""
        return np.log(self.measured_s / self.priced_s)

    def prior(self, spread: SourceSpread = NEW_SOURCES) -> Prior:
        """Returns the prior by the interval of predictions, for sources with a ``spread``."""
        curves = WIDTHS["curves"] * float(self.priced.curves.mean())
        own = np.array([CAUSE_WIDTHS.get(name, curves) for name in EFFICIENCIES])
        return Prior(std=self.priced.std, common=spread, own=own)


def concatenate_steps(priced: Sequence[PricedStep], measured_s: Sequence[float]) -> Steps:
    """Returns predictions of one row each as one."""
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


def fit(steps: Steps, spread: SourceSpread = NEW_SOURCES) -> Fit:
    """Returns the factors from all steps, one or more, and the error of each step by factors from the others (leave one
    out). ``spread`` is that of the sources that the cluster is one of."""
    count = len(steps.measured_s)
    # All rows, then all but each.
    included = np.vstack([np.ones(count), 1.0 - np.eye(count)])[: count + 1 if count > 1 else 1]
    factors, *others = calibrations(steps, included, spread)
    left_out = [
        float(np.log(steps.take(np.array([row])).predicted_s(one)[0] / steps.measured_s[row]))
        for row, one in enumerate(others)
    ]
    return Fit(factors=factors, left_out=np.array(left_out), priced=-steps.slower)


def calibrations(steps: Steps, included: FloatArray, spread: SourceSpread = NEW_SOURCES) -> list[Calibration]:
    """Returns the factors by each of B subsets of the steps, ``included`` (B, R) 1 or 0; ``spread`` as for ``fit``."""
    shares = cause_shares(steps.terms)
    found = posterior_of(shares, steps.slower, included, steps.prior(spread))
    # Of steps like those that were fitted to.
    weights = included / included.sum(axis=1, keepdims=True)
    stds = np.sqrt(np.einsum("br,rc,bcd,rd->b", weights, shares, found.covariance, shares, optimize=True))
    return [
        _factors(logs, factors_std=float(std), scatter=float(noise))
        for logs, std, noise in zip(found.mean, stds, found.noise, strict=True)
    ]


def _factors(logs: FloatArray, *, factors_std: float, scatter: float) -> Calibration:
    """Returns the efficiencies of causes that take exp(``logs``) times as long, within their bounds."""
    efficiencies = np.clip(np.exp(-logs), LOWEST_EFFICIENCY, HIGHEST_EFFICIENCY).tolist()
    return Calibration(**dict(zip(EFFICIENCIES, efficiencies, strict=True)), factors_std=factors_std, scatter=scatter)
