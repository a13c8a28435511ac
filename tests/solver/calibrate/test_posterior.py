"""What a grid of spreads makes of steps, where it has a closed form."""

import numpy as np
import pytest
from scipy.stats import norm, t

from solver.calibrate.fit import ITERATIONS, Posterior, Prior, posterior_of
from solver.problem.interval import SourceSpread

# The grid stands here once more, so that none of it goes unseen.
SHARED, WIDER = (one.ravel() for one in np.meshgrid([0.0, 0.5, 1.0], [0.35, 0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0, 8.0]))
# The precision of a normal that is Student's t is gamma-distributed: here of the logarithm of its scale, three degrees.
CHANCE = WIDER**-3 * np.exp(-1.5 / WIDER**2)


def spread_of(std: float) -> SourceSpread:
    return SourceSpread(std=std, sources=3, reach=1.638)


def test_the_scales_of_the_common_part_make_up_students_t() -> None:
    """Of six degrees, as six sources have it: the shares beyond one, two and four scales."""
    chance = WIDER**-6 * np.exp(-3.0 / WIDER**2)
    for reach in (1.0, 2.0, 4.0):
        beyond = (chance * norm.sf(reach / WIDER)).sum() / chance.sum()
        assert beyond == pytest.approx(t(6).sf(reach), rel=0.15)


@pytest.mark.parametrize("slower", [0.04, 0.1, 0.3, 0.6])
@pytest.mark.parametrize("own", [0.03, 0.2])
def test_a_cause_never_seen_takes_what_all_share(slower: float, own: float) -> None:
    """Steps that agree tell cause 1; of cause 2 they tell the common part, c^2 / (c^2 + o^2) of it, averaged over
    spreads by how likely each makes cause 1: N(slower; 0, c^2 + o^2)."""
    count = 400
    shares = np.tile([1.0, 0.0], (count, 1))
    prior = Prior(std=np.full(count, 0.02), common=spread_of(0.04), own=np.array([own, 0.5]))
    found = posterior_of(shares, np.full(count, slower), np.ones((1, count)), prior)
    seen, unseen = found.mean[0]
    some = SHARED > 0
    common, shared = (WIDER[some] * 0.04) ** 2, SHARED[some] ** 2
    variance = shared * (common + own**2)
    likely = CHANCE[some] * np.exp(-0.5 * slower**2 / variance) / np.sqrt(variance)
    told = (likely * common / (common + own**2)).sum() / likely.sum()
    assert seen == pytest.approx(slower, rel=0.01)
    assert unseen == pytest.approx(slower * told, rel=0.01)
    # What is left of the common part, the cause's own, and what spreads differ by.
    each = slower * common / (common + own**2)
    left = shared * (common * own**2 / (common + own**2) + 0.5**2) + each**2
    assert found.covariance[0, 1, 1] == pytest.approx(
        (likely * left).sum() / likely.sum() - (slower * told) ** 2, rel=0.02
    )
    assert found.covariance[0, 0, 0] < 0.01**2


@pytest.mark.parametrize("scatter", [0.25, 0.5, 1.0, 2.0, 4.0])
@pytest.mark.parametrize("slower", [0.1, 0.3])
def test_steps_that_scatter_say_how_far_one_is_to_be_trusted(scatter: float, slower: float) -> None:
    """400 steps without the cause scatter as Student's t of three degrees with one of the grid's noises times
    their stated error of 0.1, so the last step is read under that noise alone, times its own of 0.06: per
    spread v its log is ``slower`` v / (v + noise^2 / w), its weight w as Lange, Little and Taylor's, averaged
    by N(slower; 0, v + noise^2 / w) times the weight's own density."""
    others = 0.1 * scatter * t(3).ppf((np.arange(1, 401) * 2 - 1) / 800)
    shares = np.append(np.zeros(400), 1.0)[:, None]
    prior = Prior(std=np.append(np.full(400, 0.1), 0.06), common=spread_of(0.05), own=np.array([0.1]))
    posterior = posterior_of(shares, np.append(others, slower), np.ones((1, 401)), prior)
    ((found,),) = posterior.mean
    assert posterior.noise[0] == pytest.approx(scatter, rel=1e-3)
    noise, variance = 0.06 * scatter, SHARED**2 * ((WIDER * 0.05) ** 2 + 0.1**2)
    weight = np.ones_like(variance)
    for _ in range(ITERATIONS):
        used, told = weight, slower * variance / (variance + noise**2 / weight)
        weight = 4.0 / (3.0 + ((slower - told) / noise) ** 2)
    spread = variance + noise**2 / used
    logs = -0.5 * slower**2 / spread - 0.5 * np.log(spread) + 1.5 * (np.log(used) - used)
    likely = CHANCE * np.exp(logs - logs.max())
    assert found == pytest.approx((likely * told).sum() / likely.sum(), rel=1e-6)


def test_a_row_that_is_left_out_says_nothing() -> None:
    """Whatever it took, and whether it is there or not."""
    rng = np.random.default_rng(0)
    shares, slower = rng.dirichlet([1.0, 1.0, 1.0], 5), rng.normal(0.1, 0.05, 5)
    kept = np.array([[1.0, 1.0, 1.0, 1.0, 0.0]])
    prior = Prior(std=np.full(5, 0.07), common=spread_of(0.035), own=np.array([0.03, 0.1, 0.4]))
    found = posterior_of(shares, slower, kept, prior)
    same_as(posterior_of(shares, np.append(slower[:4], 3.0), kept, prior), found)
    without = Prior(std=prior.std[:4], common=prior.common, own=prior.own)
    same_as(posterior_of(shares[:4], slower[:4], np.ones((1, 4)), without), found)


def same_as(one: Posterior, other: Posterior) -> None:
    for name in ("mean", "covariance", "noise"):
        assert getattr(one, name) == pytest.approx(getattr(other, name))
