"""The slowest of N GPUs: against drawn samples, and what of a step it slows."""

from dataclasses import replace
from statistics import NormalDist

import numpy as np
import pytest

from solver.plans.plan_table import Plan, PlanTable
from solver.problem.result import Answer
from solver.search import price_plan
from solver.times.op_times import SPREAD, VARIATION, slowest_of
from tests.solver.questions import question


@pytest.mark.parametrize("ranks", [2, 8, 64, 1024])
def test_it_is_the_mean_of_the_largest_of_that_many_draws(ranks: int) -> None:
    draws = np.random.default_rng(0).normal(1.0, SPREAD, (4000, ranks)).max(axis=1)
    # The mean of 4,000 maxima is known to SPREAD / sqrt(4000), and Blom's formula to a few per cent.
    assert slowest_of(ranks) - 1.0 == pytest.approx(draws.mean() - 1.0, rel=0.05)


def test_one_gpu_waits_for_nobody() -> None:
    assert slowest_of(1) == 1.0


def test_more_gpus_are_slower() -> None:
    assert np.all(np.diff([slowest_of(ranks) for ranks in (1, 2, 8, 64, 512, 16384)]) > 0.0)


def test_a_step_on_more_gpus_takes_that_much_longer_in_its_products_alone() -> None:
    """Copies of one model side by side compute the same: only the slowest GPU differs."""
    plan = Plan(strategy="mtp", preset="internevo", dp=1, num_micro=4)

    def priced(dp: int) -> Answer:
        asked = question(world_size=dp, sequences=4 * dp)
        pricer = replace(asked.pricer, gpu=asked.cluster.gpu)
        return price_plan(replace(asked, pricer=pricer), PlanTable.of(replace(plan, dp=dp)))[0]

    one, many = priced(1), priced(16)
    slower = slowest_of(16)
    assert many.parts_s["gemm"] == pytest.approx(one.parts_s["gemm"] * slower, rel=1e-12)
    assert many.parts_s["attention"] == pytest.approx(one.parts_s["attention"] * slower, rel=1e-12)
    assert many.parts_s["memory_bound"] == pytest.approx(one.parts_s["memory_bound"], rel=1e-12)


def test_the_whiskers_of_a_normal_distribution_lie_as_far_apart_as_was_published() -> None:
    """Quartiles, and 1.5 times their distance beyond them."""
    quartile = NormalDist(0.0, SPREAD).inv_cdf(0.75)
    assert 2 * (quartile + 1.5 * 2 * quartile) == pytest.approx(VARIATION, rel=1e-4)
