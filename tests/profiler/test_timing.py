"""Trials, bursts and outliers."""

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiler.timing import (
    LONGEST_BURST,
    SHORTEST_TRIAL_S,
    CpuStopwatch,
    TrialPlan,
    burst_length,
    outliers,
    spread,
)

times = st.floats(min_value=1e-7, max_value=10.0)


@given(times)
def test_a_burst_is_long_enough_to_read_and_never_endless(one_call_s: float) -> None:
    count = burst_length(one_call_s)
    assert 1 <= count <= LONGEST_BURST
    assert count * one_call_s >= SHORTEST_TRIAL_S * 0.999 or count == LONGEST_BURST


@given(times)
def test_trials_stay_within_the_plan(one_trial_s: float) -> None:
    plan = TrialPlan(min_trials=3, max_trials=20, seconds=0.15)
    trials = plan.trials(one_trial_s)
    assert 3 <= trials <= 20
    assert trials == 3 or trials * one_trial_s <= 0.15 * 1.000001


def test_the_cpu_clock_reads_seconds_of_one_call() -> None:
    # each call sleeps 2 ms, so four of them must read 2 ms a call, not 8
    read = CpuStopwatch().burst((lambda: time.sleep(2e-3),), 4, None)
    assert 2e-3 <= read < 6e-3


def test_calls_take_turns_and_alignment_is_outside_the_clock() -> None:
    order: list[str] = []

    def align() -> None:
        order.append("align")
        time.sleep(0.05)

    calls = (lambda: order.append("first"), lambda: order.append("second"))
    read = CpuStopwatch().burst(calls, 3, align)
    assert order == ["align", "first", "second", "first"]
    assert read < 0.01


@pytest.mark.parametrize(
    ("trials", "flagged"),
    [
        ([1.0, 1.01, 0.99, 1.0, 1.02, 3.0], [5]),
        ([1.0, 1.0, 1.0, 1.0, 2.0], [4]),
        ([1.0, 1.0001, 0.9999, 1.0, 1.001], []),  # far beyond 3.5 deviations, 0.1 % from the median
        ([1.0, 5.0], []),
        ([1.0], []),
    ],
)
def test_outliers_are_those_that_lie_apart(trials: list[float], flagged: list[int]) -> None:
    assert np.flatnonzero(outliers(np.asarray(trials))).tolist() == flagged


@given(st.lists(times, min_size=1, max_size=30), st.floats(min_value=0.01, max_value=100.0))
def test_spread_and_outliers_do_not_depend_on_the_unit(trials: list[float], factor: float) -> None:
    array = np.asarray(trials)
    assert spread(array * factor) == pytest.approx(spread(array), rel=1e-6, abs=1e-9)
    assert spread(array) >= 0.0


def test_spread_is_the_middle_half_over_the_median() -> None:
    # quartiles of 1..5 are 2 and 4, the median 3
    assert spread(np.arange(1.0, 6.0)) == pytest.approx(2.0 / 3.0)
