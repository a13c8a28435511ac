"""Which factors a few steps tell: Bayesian linear regression of what was measured over priced on shares of the step.

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
from dataclasses import dataclass

import numpy as np

from spec.arrays import FloatArray

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
    """What the noise's scale and the rows' weights add to the log evidence: normal of variance noise^2 / weight, the
    weights gamma-distributed."""
    logs = np.log(np.where(weights > 0.0, weights, 1.0))
    of_weights = 0.5 * logs + 0.5 * DEGREES * (logs - weights) - np.log(noise)
    return np.asarray((of_weights * kept[:, None, :]).sum(axis=2), dtype=np.float64)


def _spreads(prior: Prior) -> tuple[FloatArray, FloatArray, FloatArray]:
    """(G) scatters in units of the stated errors, (G, C, C + 1) roots of the prior's covariance, and (G) how
    likely each is before anything is measured, up to a factor."""
    grid = list(itertools.product(NOISES, SHARED, WIDER))
    ones = np.ones((len(prior.own), 1))
    roots = [
        shared * np.hstack([wider * prior.common * ones, np.diag(prior.own)]) for _, shared, wider in grid
    ]
    scatter, _, wider = np.array(grid).T
    return scatter, np.array(roots), wider**-DEGREES / scatter
