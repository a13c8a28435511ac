"""Which factors a few steps tell: Bayesian linear regression of what was measured over priced on shares of the step.

With s_c the share of a cause c in a step and e_c the log of what it takes longer, log(measured / priced) is
sum_c s_c e_c to first order. Prior: e_c = common + own_c, both normal around 0. Noise is Student's t of three degrees, by
iteratively reweighted least squares (Lange, Little and Taylor 1989, JASA 84(408)), so that a step that stuttered says
little. The spreads of prior and noise are not known: a grid of them is averaged by the evidence of each (MacKay 1992, Neural
Computation 4(3)), so that causes part only where the steps tell them apart.
"""

import itertools

import numpy as np

from spec.arrays import FloatArray

# Assumption: spreads that are tried, of the log of a step: what a step's time scatters by, what all causes share, and by how
# much a cause differs from the others; 0: not at all.
NOISES = (0.02, 0.05, 0.1, 0.2, 0.4)
COMMON = (0.0, 0.05, 0.15, 0.4)
OWN = (0.0, 0.05, 0.1, 0.2)
# Assumption: degrees of freedom of the noise, few as for any robust fit (Lange et al. sec. 1).
DEGREES = 3.0
TURNS = 5


def expected_logs(shares: FloatArray, slower: FloatArray, kept: FloatArray) -> FloatArray:
    """(B, C) expected logs of what each cause takes longer, for B choices of the rows.

    ``shares`` (R, C) of each step, ``slower`` (R) log of measured over priced, ``kept`` (B, R) 1 for the rows that
    a choice has and 0 for the others.
    """
    noise, roots = _spreads(shares.shape[1])
    causes = np.einsum("rc,gcj->grj", shares, roots)
    precision = 1.0 / noise[:, None] ** 2
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
    likely = np.exp(evidence - evidence.max(axis=1, keepdims=True))
    likely /= likely.sum(axis=1, keepdims=True)
    return np.asarray(np.einsum("bg,gcj,bgj->bc", likely, roots, means), dtype=np.float64)


def _noise_evidence(weights: FloatArray, kept: FloatArray, noise: FloatArray) -> FloatArray:
    """What the noise's scale and the rows' weights add to the log evidence: normal of variance noise^2 / weight, the
    weights gamma-distributed."""
    logs = np.log(np.where(weights > 0.0, weights, 1.0))
    of_weights = 0.5 * logs + 0.5 * DEGREES * (logs - weights)
    return np.asarray(
        (of_weights * kept[:, None, :]).sum(axis=2) - kept.sum(axis=1)[:, None] * np.log(noise),
        dtype=np.float64,
    )


def _spreads(causes: int) -> tuple[FloatArray, FloatArray]:
    """(G) spreads of the noise and (G, C, C + 1) roots of the prior's covariance."""
    grid = list(itertools.product(NOISES, COMMON, OWN))
    roots = np.array(
        [np.hstack([np.full((causes, 1), common), own * np.eye(causes)]) for _, common, own in grid]
    )
    return np.array([noise for noise, _, _ in grid]), roots
