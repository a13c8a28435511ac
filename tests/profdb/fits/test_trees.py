"""Boosted trees as arrays: the same values as the library gives, and used only where they help."""

import numpy as np
import pytest

from profdb.cases import Family
from profdb.fits.families import FITTERS
from profdb.fits.surface import DEPTH, LEARNING_RATE, TREES, fit_trees, read_trees

WORDS = {"layout": "NT", "dtype_in": "bf16", "scale_recipe": "", "bias": "0"}


def test_arrays_tell_what_the_library_tells() -> None:
    from sklearn.ensemble import GradientBoostingRegressor

    rng = np.random.default_rng(0)
    points, asked = rng.uniform(0, 15, (200, 3)), rng.uniform(-2, 17, (300, 3))
    target = np.sin(points[:, 0]) + points[:, 1] / 5.0
    model = GradientBoostingRegressor(
        loss="absolute_error",
        n_estimators=TREES,
        max_depth=DEPTH,
        learning_rate=LEARNING_RATE,
        min_samples_leaf=3,
        subsample=0.7,
        random_state=0,
    ).fit(points, target)
    predicted = read_trees(fit_trees(points, target), asked)
    assert predicted == pytest.approx(model.predict(asked), abs=1e-9)


def test_trees_help_scattered_samples_with_a_step_and_leave_samples_alone() -> None:
    rng = np.random.default_rng(1)
    m, k, n = ((2.0 ** rng.uniform(8, 14, 1200)).astype(np.int64) for _ in range(3))
    # kernels chosen by steps in all three sizes, which planes and means smear
    slow = 1.0 + (n > 2000) + 2.0 * (m > 1500) + 0.5 * (k > 3000)
    seconds = 2.0 * m * k * n / 4e14 * slow + 5e-6
    columns = {"batch": np.ones_like(m), "m": m, "k": k, "n": n}
    seen, hidden = np.arange(600), np.arange(600, 1200)

    def part(rows: np.ndarray) -> dict[str, np.ndarray]:
        return {name: column[rows] for name, column in columns.items()}

    fitted = FITTERS[Family.GEMM].fit(part(seen), WORDS, seconds[seen], 0.0)
    assert fitted["tree_share"][0] > 0.0
    mixed = np.abs(FITTERS[Family.GEMM].predict(fitted, part(hidden), WORDS).seconds / seconds[hidden] - 1.0)
    lines = np.abs(
        FITTERS[Family.GEMM].predict(fitted | {"tree_share": np.zeros(1)}, part(hidden), WORDS).seconds
        / seconds[hidden]
        - 1.0
    )
    assert np.mean(mixed) < 0.9 * np.mean(lines)
    own = FITTERS[Family.GEMM].predict(fitted, part(seen), WORDS).seconds
    assert own == pytest.approx(seconds[seen], rel=1e-3)
