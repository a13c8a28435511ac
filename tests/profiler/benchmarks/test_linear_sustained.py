"""Sustained products: trials of a second, one clock reading each, and clocks may fall."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from profdb.cases import GemmCase, SustainedCase
from profiler.benchmarks.launched import Launched
from profiler.benchmarks.linear import launch_sustained
from profiler.cases.sweep_plan import gpu_compute
from profiler.clocks import ClockMonitor, ClockReading
from profiler.device import Device
from profiler.measurement import measure
from profiler.rehearsal import CASE_S, expected_s, smoke_cases
from profiler.timing import TrialPlan
from tests.profiler.fakes import fake_bench

CASE = SustainedCase(seconds=30, m=64, k=32, n=16)


def test_it_runs_the_product_that_its_case_names() -> None:
    launched = launch_sustained(CASE, Device(kind="cpu"))
    assert (launched.case, launched.sustained_s, launched.implementation) == (CASE, 30, "torch.mm")
    result = launched.calls[0]()
    assert isinstance(result, torch.Tensor)
    assert (tuple(result.shape), result.dtype) == ((64, 16), torch.bfloat16)


def test_it_goes_on_for_its_seconds_with_a_clock_reading_each() -> None:
    bench = fake_bench()
    clock: Any = bench.device_clock
    calls = 0

    def product() -> None:
        nonlocal calls
        calls += 1
        clock.now_s += 2e-3 if clock.now_s < 10.0 else 2.5e-3

    fell = iter([ClockReading(sm_clock_hz=2e9)] * 10 + [ClockReading(sm_clock_hz=1.6e9)] * 1000)
    source: Any = SimpleNamespace(reading=lambda: next(fell))
    bench.clocks = ClockMonitor(source=source, now=lambda: clock.now_s)
    launches: list[object] = []

    def launch(case: SustainedCase) -> Launched:
        launches.append(case)
        return Launched(case=case, calls=(product,), implementation="fake", sustained_s=case.seconds)

    bench.launcher = SimpleNamespace(launch=launch)  # type: ignore[assignment]
    sample = measure(CASE, bench, "2026-01-01")
    assert len(sample.trials_s) == 30
    assert (sample.trials_s[0], sample.trials_s[-1]) == pytest.approx((2e-3, 2.5e-3))
    assert sample.launched["launches_per_trial"] == 500
    assert clock.now_s > 30.0
    assert len(launches) == 1  # a clock that falls is what it is there for
    assert str(sample.launched["sm_clocks_mhz"]).split() == ["2000"] * 10 + ["1600"] * 21


def test_a_sweep_measures_it_beside_the_same_product_and_a_smoke_test_does_not() -> None:
    cases = [plan.case for plan in gpu_compute()]
    long = [case for case in cases if isinstance(case, SustainedCase)]
    assert [(case.dtype_in, case.scale_recipe, case.seconds) for case in long] == [
        ("bf16", "", 30),
        ("fp8", "tensor", 30),
    ]
    for case in long:
        alone = GemmCase(m=case.m, k=case.k, n=case.n, dtype_in=case.dtype_in, scale_recipe=case.scale_recipe)
        assert alone in cases
    assert not any(isinstance(case, SustainedCase) for case in smoke_cases(cases))


def test_a_dry_run_knows_how_long_it_takes() -> None:
    assert expected_s([CASE], None, TrialPlan()).tolist() == pytest.approx([30.0 + CASE_S])
