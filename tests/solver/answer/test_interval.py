"""The 80 % interval: it holds the step, widens with errors, and covers what it says."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from solver.answer.interval import MODEL_STD, interval_of
from spec.arrays import floats


@given(st.floats(1e-6, 1e6), st.floats(0.0, 0.5), st.floats(0.0, 0.5))
def test_it_holds_the_step_and_widens_with_the_error(step: float, error: float, more: float) -> None:
    low, high = interval_of(floats(step), floats(step * error))
    lower, higher = interval_of(floats(step), floats(step * (error + more)))
    assert lower[0] <= low[0] < step < high[0] <= higher[0]


def test_curves_without_error_leave_the_error_of_the_formulas() -> None:
    low, high = interval_of(floats(2.0), floats(0.0))
    assert high[0] == pytest.approx(2.0 * np.exp(1.2816 * 0.07))
    assert low[0] * high[0] == pytest.approx(4.0)


def test_residuals_of_a_calibration_take_the_place_of_all_errors() -> None:
    low, high = interval_of(floats(1.0), floats(0.3), 0.01)
    assert (low[0], high[0]) == pytest.approx((np.exp(-0.012816), np.exp(0.012816)))


def test_eight_draws_in_ten_lie_inside() -> None:
    rng = np.random.default_rng(0)
    true = np.exp(rng.normal(0.0, np.hypot(0.1, MODEL_STD), 20_000))
    low, high = interval_of(np.ones(20_000), np.full(20_000, 0.1))
    # 20,000 draws: 0.8 with a standard error of 0.003.
    assert ((true > low) & (true < high)).mean() == pytest.approx(0.8, abs=0.012)
