"""Surfaces over several sizes: what cross-validation must find, and how errors are told."""

import numpy as np
import pytest

from profdb.cases import Family
from profdb.fits.families import FITTERS, attended_pairs
from profdb.fits.lines import Blend, build_lines, fit_error, read_lines

WORDS = {"layout": "NT", "dtype_in": "bf16", "scale_recipe": "", "bias": "0"}


def waves(m: np.ndarray, k: np.ndarray, n: np.ndarray) -> np.ndarray:
    """128 x 128 tiles on 108 SMs, one wave after another: steps in m and n, straight in k."""
    tiles = np.ceil(m / 128) * np.ceil(n / 128)
    return np.ceil(tiles / 108) * k * 2e-9 + 5e-6


def test_the_metric_learns_that_equal_n_matters_and_k_does_not() -> None:
    sizes = np.asarray([256, 512, 768, 1024, 1536, 2048, 2560, 3072, 4096, 5120])
    m, k, n = (grid.ravel() for grid in np.meshgrid(np.asarray([512, 2048, 4096]), sizes, sizes))
    rng = np.random.default_rng(0)
    hidden = rng.random(m.shape) < 0.15
    columns = {"batch": np.ones_like(m), "m": m, "k": k, "n": n}
    fitted = FITTERS[Family.GEMM].fit(
        {name: column[~hidden] for name, column in columns.items()},
        WORDS,
        waves(m, k, n)[~hidden],
        0.0,
    )
    predicted = FITTERS[Family.GEMM].predict(
        fitted, {name: column[hidden] for name, column in columns.items()}, WORDS
    )
    errors = np.abs(predicted.seconds / waves(m, k, n)[hidden] - 1.0)
    assert np.median(errors) < 0.03
    metric = fitted["metric"]
    assert metric[2] < metric[3] or int(fitted["axis"][0]) == 2


def test_error_grows_with_distance_and_is_learned_from_left_out_lines() -> None:
    sizes = np.asarray([512, 1024, 2048, 4096])
    m, k, n = (grid.ravel() for grid in np.meshgrid(sizes, sizes, sizes))
    rng = np.random.default_rng(3)
    seconds = waves(m, k, n) * rng.lognormal(0.0, 0.1, m.shape)
    columns = {"batch": np.ones_like(m), "m": m, "k": k, "n": n}
    fitted = FITTERS[Family.GEMM].fit(columns, WORDS, seconds, 0.02)
    one = {name: np.asarray([value]) for name, value in zip(columns, (1, 1024, 1024, 1024), strict=True)}
    far = {name: np.asarray([value]) for name, value in zip(columns, (1, 1024, 60000, 60000), strict=True)}
    near_std = FITTERS[Family.GEMM].predict(fitted, one, WORDS).relative_std[0]
    far_std = FITTERS[Family.GEMM].predict(fitted, far, WORDS).relative_std[0]
    assert near_std == pytest.approx(0.02)
    assert far_std > 3 * near_std
    assert 0.02 < fit_error(fitted)["median"] < 1.0


def test_lines_are_read_exactly_at_samples_and_straight_between() -> None:
    points = np.asarray([[0.0, 0.0], [2.0, 0.0], [4.0, 0.0], [0.0, 5.0], [4.0, 5.0]])
    arrays = build_lines(points, np.asarray([1.0, 3.0, 2.0, 10.0, 30.0]), axis=0)
    reading = read_lines(
        arrays, Blend(neighbours=1, plane=False), np.asarray([[2.0, 0.0], [3.0, 0.0], [1.0, 5.0], [9.0, 5.0]])
    )
    assert reading.value == pytest.approx([3.0, 2.5, 15.0, 30.0])
    assert reading.inside.tolist() == [True, True, True, False]


@pytest.mark.parametrize(
    ("mask", "window", "q_len", "kv_len"),
    [("full", 0, 5, 9), ("causal", 0, 7, 7), ("causal", 0, 3, 8), ("window", 4, 7, 7), ("window", 3, 4, 9)],
)
def test_attended_pairs_are_those_of_the_mask(mask: str, window: int, q_len: int, kv_len: int) -> None:
    query = np.arange(q_len)[:, None] + kv_len - q_len
    key = np.arange(kv_len)[None, :]
    seen = np.ones((q_len, kv_len), dtype=bool) if mask == "full" else key <= query
    if mask == "window":
        seen &= key > query - window
    columns = {"q_len": np.asarray([q_len]), "kv_len": np.asarray([kv_len]), "window": np.asarray([window])}
    assert attended_pairs(columns, mask)[0] == seen.sum()
