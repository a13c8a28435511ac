"""Monotone curves: isotonic medians, chords, ends."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from profdb.fits.monotone_curve import BENDS, climb, fit_monotone_curve, isotonic_median

SIZES = 2.0 ** np.arange(10, 30)


def test_isotonic_median_matches_the_brute_force() -> None:
    # L1 isotonic fit of 3 values over a grid of their own levels: the optimum lies on sample values
    rng = np.random.default_rng(1)
    for _ in range(50):
        values = rng.integers(0, 6, 3).astype(float)
        predicted = isotonic_median(values)
        assert np.all(np.diff(predicted) >= 0)
        levels = np.unique(values)
        best = min(
            np.abs(values - np.asarray([a, b, c])).sum() for a in levels for b in levels for c in levels if a <= b <= c
        )
        assert np.abs(values - predicted).sum() == pytest.approx(best)


def test_one_slow_outlier_moves_only_itself() -> None:
    times = 1e-5 + SIZES / 1e11
    spoiled = times.copy()
    spoiled[2] *= 3.0
    monotone = fit_monotone_curve(SIZES, spoiled)
    predicted, _ = climb(monotone, SIZES)
    assert predicted[[0, 1, 4, 5, 10, 19]] == pytest.approx(times[[0, 1, 4, 5, 10, 19]], rel=0.01)
    assert predicted[2] < 1.1 * times[3]


@given(
    logs=st.lists(st.floats(-14, 2), min_size=1, max_size=20),
    asked=st.lists(st.integers(1, 2**40), min_size=2, max_size=20),
    bend=st.sampled_from(BENDS),
)
def test_never_falls(logs: list[float], asked: list[int], bend: float) -> None:
    monotone = fit_monotone_curve(SIZES[: len(logs)], np.exp(logs), bend)
    predicted, _ = climb(monotone, np.sort(np.asarray(asked, dtype=np.float64)))
    assert np.all(np.diff(predicted) >= -1e-12 * predicted[1:])
    assert np.all(predicted > 0.0)


def test_latency_and_bandwidth_beyond_the_ends() -> None:
    monotone = fit_monotone_curve(SIZES, 1e-5 + SIZES / 1e11)
    predicted, within = climb(monotone, np.asarray([1.0, 2.0**20, 2.0**33]))
    assert within.tolist() == [False, True, False]
    assert predicted[0] == pytest.approx(1e-5 + SIZES[0] / 1e11)
    assert predicted[2] == pytest.approx(1e-5 + 2.0**33 / 1e11, rel=0.01)


def test_several_runs_of_one_size_give_their_median() -> None:
    monotone = fit_monotone_curve(np.asarray([4.0, 4.0, 4.0, 8.0]), np.asarray([9.0, 1.0, 2.0, 5.0]))
    assert np.exp(monotone.log_seconds) == pytest.approx([2.0, 5.0])
