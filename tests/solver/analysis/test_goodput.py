"""Goodput against the closed forms it cites, and against what a run of 54 days published."""

from dataclasses import replace
from math import exp, inf, sqrt
from random import Random

import pytest

from solver.analysis.goodput import (
    Goodput,
    Reliability,
    RunCost,
    RunTerms,
    best_interval_s,
    checkpoint_bytes,
    effective_share,
    goodput_of,
    run_cost,
    spare_wait_s,
)
from solver.report.sweeps import cost_words
from spec.job import JobSpec
from spec.readers.read_config import read_config
from tests.ops import layouts
from tests.solver.questions import ROOT, question


def job(world_size: int) -> JobSpec:
    return replace(layouts.job(seq_len=8192, world_size=world_size), global_batch_tokens=16 * 2**20)


MODEL = read_config(ROOT / "configs" / "405B_llama3.py").model


def test_interruptions_are_as_frequent_as_published() -> None:
    # 419 in 54 days on 16,384 GPUs (arXiv 2407.21783 sec. 3.3.4): one in 3.1 hours.
    found = goodput_of(MODEL, job(16_384), Reliability())
    assert 54 * 86_400 / found.mtbf_s == pytest.approx(419)


def test_a_run_that_never_ends_says_so() -> None:
    endless = RunCost(tokens=1e12, seconds=inf, gpu_hours=inf, price=None, energy_kwh=inf)
    assert cost_words(endless) == "1,000.0 G tokens: never ends, as an interruption comes before every checkpoint"


def test_llama_3_405b_keeps_its_published_effective_training_time() -> None:
    """ "Higher than 90 % effective training time" (arXiv 2407.21783 sec. 3.3.4), where it takes ten minutes to
    train again.
    """
    found = goodput_of(MODEL, job(16_384), Reliability(restart_s=600.0))
    assert 0.90 < found.effective < 0.95
    # Restarts alone: 419 x 10 min of 54 days.
    assert found.effective < 1 - 419 * 600 / (54 * 86_400)
    assert goodput_of(MODEL, job(16_384), Reliability(restart_s=1800.0)).effective < 0.90


def test_a_checkpoint_holds_parameters_master_and_moments() -> None:
    # bf16, fp32, and two moments of fp32: 14 bytes of each of 405.85 G parameters.
    assert checkpoint_bytes(MODEL, job(8)) == 14 * 405_853_388_800
    seconds = goodput_of(MODEL, job(16_384), Reliability()).checkpoint_s
    assert seconds == pytest.approx(14 * 405_853_388_800 / 2e12)
    assert goodput_of(MODEL, job(8192), Reliability()).checkpoint_s == pytest.approx(2 * seconds)
    assert goodput_of(MODEL, job(8), Reliability(storage_bandwidth=1e12)).checkpoint_s == pytest.approx(
        14 * 0.4058533888
    )
    assert goodput_of(MODEL, job(8), Reliability(checkpoint_s=7.0)).checkpoint_s == 7.0


def test_the_interval_is_young_s_where_checkpoints_are_short_and_the_best_there_is() -> None:
    assert best_interval_s(1.0, 1e8) == pytest.approx(sqrt(2e8), rel=1e-3)
    assert best_interval_s(3.0, 1.0) == 1.0
    for checkpoint_s, mtbf_s in ((10.0, 1e4), (60.0, 1e4), (300.0, 5e3)):
        best = best_interval_s(checkpoint_s, mtbf_s)
        here, *others = (
            effective_share(best * factor, checkpoint_s, 600.0, mtbf_s) for factor in (1.0, 0.8, 0.9, 1.1, 1.25)
        )
        assert here > max(others)


def test_effective_time_is_daly_s_and_loses_what_small_terms_lose() -> None:
    # First order in 1 / M: delta / tau + tau / 2M + R / M.
    found = effective_share(1000.0, 5.0, 60.0, 1e6)
    assert 1 - found == pytest.approx(5 / 1000 + 1005 / 2e6 + 60 / 1e6, rel=0.01)
    assert effective_share(1.0, 0.0, 0.0, 1.0) == pytest.approx(1 / (exp(1.0) - 1.0))
    assert effective_share(1.0, 1.0, 1e9, 1.0) == 0.0


def test_a_checkpoint_that_takes_no_time_loses_only_restarts() -> None:
    found = goodput_of(MODEL, job(16_384), Reliability(checkpoint_s=0.0))
    assert (found.checkpoint_s, found.interval_s) == (0.0, 0.0)
    assert found.effective == exp(-600.0 / found.mtbf_s)
    short = goodput_of(MODEL, job(16_384), Reliability(checkpoint_s=1e-9)).effective
    assert short == pytest.approx(found.effective, rel=1e-5)


def test_spares_are_waited_for_as_erlang_says() -> None:
    # One node in repair on average, Poisson: with none spare every interruption waits for it.
    assert spare_wait_s(0, 1e-3, 1000.0) == 1000.0
    assert spare_wait_s(1, 1e-3, 1000.0) == pytest.approx((1 - exp(-1)) * 500.0)
    assert spare_wait_s(2, 1e-3, 1000.0) == pytest.approx((1 - 2 * exp(-1)) * 1000.0 / 3)
    # So many in repair that the first to come back is one of all the spares and one more.
    assert spare_wait_s(1, 0.4, 1000.0) == 500.0
    assert spare_wait_s(1, 0.3, 1000.0) == pytest.approx(500.0)
    assert spare_wait_s(50, 1e-3, 1000.0) == pytest.approx(0.0, abs=1e-9)
    few = goodput_of(MODEL, job(16_384), Reliability(spare_nodes=2, repair_hours=24.0))
    many = goodput_of(MODEL, job(16_384), Reliability(spare_nodes=30, repair_hours=24.0))
    assert few.spare_wait_s > 3600
    assert many.spare_wait_s < 1
    assert few.effective < 0.5
    assert many.effective > 0.9


def test_effective_time_is_that_of_a_played_run() -> None:
    """Segments of training and their checkpoint, tried until no failure comes; a failure also during a
    restart starts that again.
    """
    draw = Random(0)
    interval_s, checkpoint_s, restart_s, mtbf_s = 900.0, 120.0, 2000.0, 4000.0
    segments, spent_s = 20_000, 0.0
    for _ in range(segments):
        left_s = interval_s + checkpoint_s
        while (failed_s := draw.expovariate(1.0 / mtbf_s)) < left_s:
            spent_s += failed_s
            while (failed_s := draw.expovariate(1.0 / mtbf_s)) < restart_s:
                spent_s += failed_s
            spent_s += restart_s
        spent_s += left_s
    played = segments * interval_s / spent_s
    assert effective_share(interval_s, checkpoint_s, restart_s, mtbf_s) == pytest.approx(played, rel=0.01)


# Days, GPU-hours, price and energy by hand.

ASKED = question(world_size=16, sequences=64, seq_len=1024)
CLUSTER = replace(ASKED.cluster, gpu=replace(ASKED.cluster.gpu, power_w=700.0))


def test_a_run_is_its_steps_on_all_its_gpus() -> None:
    # 65,536 tokens a step of 10 s: 6,553.6 million tokens are 1,000,000 s.
    found = run_cost(ASKED.job, CLUSTER, 10.0, RunTerms(tokens=65_536e5, price_per_gpu_hour=2.0))
    assert found.seconds == pytest.approx(1e6)
    assert found.days == pytest.approx(1e6 / 86_400)
    assert found.gpu_hours == pytest.approx(16e6 / 3600)
    assert found.price == pytest.approx(2 * 16e6 / 3600)
    assert found.energy_kwh == pytest.approx(16 * 0.7 * 1e6 / 3600)
    assert run_cost(ASKED.job, CLUSTER, 10.0, RunTerms(tokens=1e9)).price is None


def test_interruptions_lengthen_it_and_spares_are_paid_for() -> None:
    half = Goodput(
        mtbf_s=1.0,
        checkpoint_bytes=1.0,
        checkpoint_s=1.0,
        interval_s=1.0,
        restart_s=1.0,
        spare_wait_s=0.0,
        effective=0.5,
    )
    alone = run_cost(ASKED.job, CLUSTER, 10.0, RunTerms(tokens=1e9))
    found = run_cost(ASKED.job, CLUSTER, 10.0, RunTerms(tokens=1e9, spare_nodes=1), half)
    assert found.seconds == pytest.approx(2 * alone.seconds)
    assert found.gpu_hours == pytest.approx(2 * 24 / 16 * alone.gpu_hours)
    assert found.energy_kwh == pytest.approx(2 * alone.energy_kwh)
