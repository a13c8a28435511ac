"""Trials, bursts and outliers."""

from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from profdb.cases import GemmCase
from profiler import timing
from profiler.benchmarks.launched import Launched
from profiler.device import Device
from profiler.measurement import Bench, measure
from profiler.timing import (
    LONGEST_BURST,
    SHORTEST_TRIAL_S,
    ColdStopwatch,
    CpuStopwatch,
    TrialPlan,
    burst_length,
    launches,
    outliers,
    spread,
    stopwatch_for,
)
from profiler.torch_launcher import TorchLauncher
from tests.profiler.fakes import single_world

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


def test_a_slow_call_is_tried_so_often_that_one_bad_trial_does_not_show() -> None:
    trials = TrialPlan().trials(2.0)
    assert spread(np.asarray([9.0, *[1.0] * (trials - 1)])) == 0.0
    assert spread(np.asarray([9.0, *[1.0] * (trials - 2)])) > 1.0  # one fewer would show it


class Clocks:
    """The wall's and this thread's seconds, which advance by what the test runs and nothing else."""

    def __init__(self) -> None:
        self.wall_s = self.thread_s = 0.0
        self.order: list[str] = []

    def perf_counter(self) -> float:
        return self.wall_s

    def thread_time(self) -> float:
        return self.thread_s

    def work(self, name: str, seconds: float, *, asleep_s: float = 0.0) -> None:
        self.order.append(name)
        self.thread_s += seconds
        self.wall_s += seconds + asleep_s


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    made = Clocks()
    monkeypatch.setattr(timing, "time", made)
    return made


def test_the_cpu_clock_reads_seconds_of_one_call_and_calls_take_turns(clocks: Clocks) -> None:
    # each call takes 2 ms, so three of them must read 2 ms a call, not 6; alignment is outside
    calls = (lambda: clocks.work("first", 2e-3), lambda: clocks.work("second", 2e-3))
    read_s = CpuStopwatch().burst(calls, 3, lambda: clocks.work("align", 0.05))
    assert clocks.order == ["align", "first", "second", "first"]
    assert read_s == pytest.approx(2e-3)


def test_a_cold_launch_comes_after_a_sweep_and_reads_its_own_work_alone(clocks: Clocks) -> None:
    """2 ms of work a launch: neither the sweep's 5 ms nor the 20 ms in which another process has the core."""
    sweep: Any = SimpleNamespace(sum=lambda: clocks.work("sweep", 5e-3))
    call = partial(clocks.work, "call", 2e-3, asleep_s=0.02)
    assert ColdStopwatch(sweep=sweep).burst((call,), 3, None) == pytest.approx(2e-3)
    assert clocks.order == ["sweep", "call"] * 3


def test_a_processor_of_one_thread_is_read_cold_and_its_collectives_by_the_wall(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(timing, "core_cache_bytes", lambda: 1 << 20)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    cold = stopwatch_for(Device(kind="cpu"))
    assert isinstance(cold, ColdStopwatch)
    assert cold.sweep.nbytes == 2 << 20
    assert isinstance(stopwatch_for(Device(kind="cpu"), collective=True), CpuStopwatch)
    # bursts make small launches readable by the wall's clock; swept ones are launched one by one
    assert launches(cold, 1e-6)[0] == 1 < launches(CpuStopwatch(), 1e-6)[0]
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert isinstance(stopwatch_for(Device(kind="cpu")), CpuStopwatch)


def test_samples_of_one_thread_name_their_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    world = single_world()
    bench = Bench(world=world, launcher=TorchLauncher(world=world), plan=TrialPlan(max_trials=3))
    sample = measure(GemmCase(m=8, k=8, n=8), bench, "2026-01-01")
    assert sample.status == "ok"
    assert (sample.launched["timed"], sample.launched["launches_per_trial"]) == ("CPU seconds, caches swept", 1)
    together = Launched(case=sample.case, calls=(lambda: None,), implementation="", collective=True)
    assert isinstance(bench.clock_for(together), CpuStopwatch)


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
