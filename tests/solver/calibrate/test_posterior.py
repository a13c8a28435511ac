"""What a grid of spreads makes of steps, where it has a closed form."""

import numpy as np
import pytest
from scipy.stats import t

from solver.calibrate.posterior import TURNS, expected_logs

# The spreads stand here once more, so that none of them goes unseen.
COMMON, OWN = (one.ravel() for one in np.meshgrid([0.0, 0.05, 0.15, 0.4], [0.0, 0.05, 0.1, 0.2]))
VARIANCE = COMMON**2 + OWN**2


@pytest.mark.parametrize("slower", [0.04, 0.1, 0.3, 0.6])
def test_a_cause_never_seen_takes_what_all_share(slower: float) -> None:
    """Steps that agree tell cause 1; of cause 2 they tell the common part, c^2 / (c^2 + o^2) of it, averaged over
    spreads by how likely each makes cause 1: N(slower; 0, c^2 + o^2)."""
    count = 400
    shares = np.tile([1.0, 0.0], (count, 1))
    seen, unseen = expected_logs(shares, np.full(count, slower), np.ones((1, count)))[0]
    some = VARIANCE > 0
    likely = np.exp(-0.5 * slower**2 / VARIANCE[some]) / np.sqrt(VARIANCE[some])
    common = (likely * COMMON[some] ** 2 / VARIANCE[some]).sum() / likely.sum()
    assert seen == pytest.approx(slower, rel=0.01)
    assert unseen == pytest.approx(slower * common, rel=0.01)


@pytest.mark.parametrize("scatter", [0.05, 0.1, 0.2])
@pytest.mark.parametrize("slower", [0.1, 0.3])
def test_steps_that_scatter_say_how_far_one_is_to_be_trusted(scatter: float, slower: float) -> None:
    """400 steps without the cause scatter as Student's t of three degrees with one of the grid's noises, so the last step is read
    under that noise alone: per spread v its log is ``slower`` v / (v + noise^2 / w), its weight w as Lange, Little and
    Taylor's, averaged by N(slower; 0, v + noise^2 / w) times the weight's own density."""
    others = scatter * t(3).ppf((np.arange(1, 401) * 2 - 1) / 800)
    shares = np.append(np.zeros(400), 1.0)[:, None]
    (found,) = expected_logs(shares, np.append(others, slower), np.ones((1, 401)))[0]
    weight = np.ones_like(VARIANCE)
    for _ in range(TURNS):
        used, told = weight, slower * VARIANCE / (VARIANCE + scatter**2 / weight)
        weight = 4.0 / (3.0 + ((slower - told) / scatter) ** 2)
    spread = VARIANCE + scatter**2 / used
    logs = -0.5 * slower**2 / spread - 0.5 * np.log(spread) + 1.5 * (np.log(used) - used)
    likely = np.exp(logs - logs.max())
    assert found == pytest.approx((likely * told).sum() / likely.sum(), rel=1e-6)
