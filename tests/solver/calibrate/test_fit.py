"""Calibration: factors that made synthetic steps are found again, stay bounded, and act only when asked."""

from dataclasses import fields, replace
from itertools import groupby

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solver.calibrate.fit import EFFICIENCIES, PricedStep, Steps, concatenate_steps, fit
from solver.calibrate.measured_steps import priced_step
from solver.plans.plan_table import Plan, PlanTable
from solver.problem.calibration import (
    COMM_AXES,
    HIGHEST_EFFICIENCY,
    LOWEST_EFFICIENCY,
    Calibration,
    CalibrationTerms,
    cause_shares,
)
from solver.problem.interval import NEW_SOURCES
from solver.problem.price import price_plan
from solver.problem.problem import Problem
from solver.problem.result import Answer
from spec.origin import Origin
from tests.solver.questions import question, small_model

# A layer of Llama-2-7B's width, so that compute, traffic and memory-bound work each take a real share.
QUESTION = question(model=small_model(hidden=4096, heads=32, kv_heads=32), world_size=16, sequences=64)
# Plans that differ in what they are made of: traffic inside a node (tp 8), between nodes (dp, pp), bubbles.
PLANS = [
    Plan(
        strategy="fsp" if tp > 1 else "mtp",
        preset="internevo",
        tp=tp,
        pp=pp,
        dp=16 // (tp * pp),
        micro_batch=micro,
        num_micro=64 * tp * pp // (16 * micro),
    )
    for tp, pp in ((1, 1), (2, 1), (8, 1), (1, 4), (4, 2), (8, 2))
    for micro in (1, 2, 4)
]


# Dense layers of many tokens have neither experts nor a host that is waited for.
ACTING = tuple(name for name in EFFICIENCIES if name not in ("expert_efficiency", "host_efficiency"))


def steps(factors: Calibration, plans: list[Plan] = PLANS) -> Steps:
    """The plans' steps as long as the factors make them."""
    priced = concatenate_steps([priced_step(QUESTION, plan) for plan in plans], [1.0] * len(plans))
    return replace(priced, measured_s=priced.predicted_s(factors))


def test_factors_that_made_the_steps_are_found() -> None:
    true = Calibration(
        compute_efficiency=0.75, memory_bound_efficiency=0.7, intra_comm_efficiency=0.65, inter_comm_efficiency=0.85
    )
    measured = steps(true)
    found = fit(measured)
    # The prior draws efficiencies together: by little where parts are half a step in some plans, by more for
    # memory-bound work and traffic inside a node, which are a sixth at most.
    near = dict(zip(ACTING, (0.03, 0.15, 0.15, 0.03), strict=True))
    for name in ACTING:
        assert getattr(found.factors, name) == pytest.approx(getattr(true, name), rel=near[name])
    assert found.factors.inter_comm_efficiency > found.factors.intra_comm_efficiency + 0.05
    assert measured.predicted_s(found.factors) == pytest.approx(measured.measured_s, rel=0.02)
    assert found.leave_one_out_error is not None
    assert found.leave_one_out_error < 0.02
    assert found.factors.scatter == pytest.approx(0.25, rel=0.1)  # the least of the grid
    assert found.factors.factors_std < 0.02


def test_steps_as_priced_move_nothing() -> None:
    found = fit(steps(Calibration(), PLANS[::3])).factors
    for name in EFFICIENCIES:
        assert getattr(found, name) == pytest.approx(1.0, abs=0.01)
    assert found.overlap == pytest.approx(1.0, abs=0.01)


def test_a_left_out_step_is_told_by_the_others_alone() -> None:
    """Six steps with a spread: what is said of each is the error of the factors that the other five choose."""
    measured = steps(Calibration(compute_efficiency=0.8), PLANS[::3])
    spread = measured.measured_s * np.linspace(0.9, 1.1, len(measured.measured_s))
    measured = replace(measured, measured_s=spread)
    alike = replace(measured.priced, curves=np.full_like(spread, 0.05))
    measured = replace(measured, priced=alike)
    told = fit(measured).left_out
    for row in range(len(spread)):
        others = np.delete(np.arange(len(spread)), row)
        factors = fit(measured.take(others)).factors
        alone = measured.take(np.array([row])).predicted_s(factors)[0]
        assert told[row] == pytest.approx(np.log(alone / spread[row]), abs=1e-9)


def test_one_step_that_stuttered_moves_the_others_little() -> None:
    measured = steps(Calibration(compute_efficiency=0.8, memory_bound_efficiency=0.8), PLANS[::2])
    spoilt = measured.measured_s.copy()
    spoilt[4] *= 2.0
    honest, robust = fit(measured).factors, fit(replace(measured, measured_s=spoilt)).factors
    others = np.delete(np.arange(len(spoilt)), 4)
    change = measured.predicted_s(robust) / measured.predicted_s(honest)
    assert np.abs(change[others] - 1.0).max() < 0.01


@settings(max_examples=settings.default.max_examples // 3)
@given(st.lists(st.floats(0.01, 100.0), min_size=2, max_size=4))
def test_factors_stay_within_bounds_whatever_was_measured(ratios: list[float]) -> None:
    priced = steps(Calibration(), PLANS[: len(ratios)])
    found = fit(replace(priced, measured_s=priced.measured_s * np.array(ratios))).factors
    for name in EFFICIENCIES:
        assert LOWEST_EFFICIENCY * 0.999 <= getattr(found, name) <= HIGHEST_EFFICIENCY * 1.001
    assert 0.0 <= found.overlap <= 1.0
    assert found.fixed_per_micro_batch_s >= 0.0
    assert found.fixed_per_step_s >= 0.0
    assert all(np.isfinite(getattr(found, field.name)) for field in fields(found))


def made_up(share: np.ndarray, slower: np.ndarray) -> Steps:
    """Steps of one second as priced, of products, of experts (``share``) and of a host (a tenth), which took
    exp(slower).
    """
    zero = np.zeros_like(share)
    parts = dict.fromkeys((*COMM_AXES, "attention", "memory_bound", "optimizer", "bubble"), zero)
    parts |= {"grouped_gemm": share, "host": zero + 0.1, "gemm": 0.9 - share}
    crosses = dict.fromkeys(COMM_AXES, zero > 1)
    terms = CalibrationTerms(parts=parts, crosses=crosses, hidden=dict.fromkeys(COMM_AXES, zero), passes=zero + 8)
    priced = PricedStep(terms=terms, std=zero + 0.07, curves=zero + 0.06)
    return Steps(priced=priced, measured_s=np.exp(slower))


def test_shares_of_causes_sum_to_the_step_with_its_bubble() -> None:
    bare = made_up(np.linspace(0.0, 0.8, 6), np.zeros(6))
    terms = replace(bare.terms, parts=bare.terms.parts | {"bubble": np.full(6, 0.5), "tp_comm": np.full(6, 0.2)})
    terms = replace(terms, crosses=terms.crosses | {"tp_comm": np.arange(6) > 2})
    shares = dict(zip(EFFICIENCIES, cause_shares(terms).T, strict=True))
    assert sum(shares.values()) == pytest.approx(np.ones(6))
    assert shares["host_efficiency"] == pytest.approx(np.full(6, 0.1 * (1 + 0.5 / 1.2) / 1.7))
    assert (shares["inter_comm_efficiency"] > 0).tolist() == (np.arange(6) > 2).tolist()


def test_a_slow_cause_is_told_apart_where_steps_differ_in_it() -> None:
    share = np.linspace(0.0, 0.8, 6)
    measured = made_up(share, np.log(1.0 - share + share / 0.7))
    found = fit(measured).factors
    assert found.expert_efficiency == pytest.approx(0.7, abs=0.06)
    assert found.compute_efficiency == pytest.approx(1.0, abs=0.06)


def test_where_steps_differ_in_nothing_the_less_certain_cause_takes_more() -> None:
    """Products are stated to 0.03 (half of the curves' 0.06), experts to 0.1, the host to 0.55: what each
    takes beyond the common part goes as its share times its variance."""
    same = made_up(np.full(6, 0.45), np.full(6, 0.1))
    logs = {name: -np.log(getattr(fit(same).factors, name)) for name in EFFICIENCIES}
    common = logs["inter_comm_efficiency"]  # which no step has
    beyond = {name: log - common for name, log in logs.items()}
    products = beyond["compute_efficiency"]
    assert products > 0.0
    assert beyond["expert_efficiency"] / products == pytest.approx((0.1 / 0.03) ** 2)
    assert beyond["host_efficiency"] / products == pytest.approx((0.55 / 0.03) ** 2 * 0.1 / 0.45)
    assert same.predicted_s(fit(same).factors) == pytest.approx(same.measured_s, rel=0.02)


@pytest.mark.parametrize("slower", [1.05, 1.2, 1.6, 2.5])
def test_steps_that_agree_are_believed_however_far_they_lie(slower: float) -> None:
    share, wobble = np.linspace(0.3, 0.4, 5), 0.02 * np.array([1.0, -1.0, 0.5, -0.7, 0.2])
    found = fit(made_up(share, np.log(slower) + wobble))
    assert made_up(share, wobble).predicted_s(found.factors) == pytest.approx(slower, rel=0.04)


def test_three_that_agree_within_a_few_points_are_mostly_believed() -> None:
    """Priced at 0.07: that they lie 1.45 times as far is either the cluster's or, four times less likely than
    0.07, scatter.
    """
    wobble = np.array([0.03, -0.03, 0.0])
    found = fit(made_up(np.zeros(3), np.log(1.45) + wobble))
    assert made_up(np.zeros(3), wobble).predicted_s(found.factors).mean() > 1.0 + 0.6 * 0.45


def test_steps_that_scatter_about_the_price_leave_it() -> None:
    scattered = made_up(np.linspace(0.0, 0.8, 6), np.array([0.3, -0.3, 0.25, -0.25, 0.2, -0.3]))
    found = fit(scattered)
    for name in EFFICIENCIES:
        assert getattr(found.factors, name) == pytest.approx(1.0, abs=0.01)
    assert found.left_out == pytest.approx(-np.log(scattered.measured_s), abs=0.04)
    assert found.factors.scatter > 2.0
    assert found.priced == pytest.approx(-np.log(scattered.measured_s))


def test_one_step_moves_part_of_the_way_and_leaves_the_rest_uncertain() -> None:
    """Its scatter and the cluster's bias are not told apart; more steps that say the same are believed, and narrow it."""
    one, many = (fit(made_up(np.zeros(count), np.full(count, 0.3))) for count in (1, 8))
    assert one.leave_one_out_error is None
    assert 0.03 < -np.log(one.factors.compute_efficiency) < 0.27
    assert -np.log(many.factors.compute_efficiency) == pytest.approx(0.3, abs=0.03)
    own = np.array([0.07])
    unlike = NEW_SOURCES.interval_std(own, np.zeros(1))
    assert many.factors.interval_std(own) < 0.6 * one.factors.interval_std(own)
    assert many.factors.interval_std(own) < 0.5 * unlike


def test_a_wider_spread_of_sources_believes_a_step_more() -> None:
    lone = made_up(np.zeros(1), np.full(1, 0.3))
    narrow, wide = (fit(lone, replace(NEW_SOURCES, std=std)).factors.compute_efficiency for std in (0.05, 0.3))
    assert wide < 0.95 * narrow


def test_the_interval_holds_the_factors_error_and_the_scatter_of_steps() -> None:
    factors = Calibration(factors_std=0.05, scatter=2.0)
    # Half of 80 % of Student's t with three degrees of freedom is 1.638 of its scale.
    assert factors.interval_std(np.array([0.04])) == pytest.approx(np.hypot(0.05, 2.0 * 0.04 * 1.6377 / 1.2816))
    assert Calibration().interval_std(np.array([0.0])) == pytest.approx(0.03)  # what steps repeat to
    answers = priced(QUESTION), priced(replace(QUESTION, calibration=factors))
    for bare, calibrated in zip(*answers, strict=True):
        low, high = (
            np.log(bound / calibrated.step_s) for bound in (calibrated.interval_low_s, calibrated.interval_high_s)
        )
        assert high == pytest.approx(-low)
        own = np.hypot.reduce(list(bare.scatter_s.values())) / bare.step_s
        assert high == pytest.approx(1.2816 * factors.interval_std(np.array([own]))[0], rel=1e-9)


def priced(asked: Problem) -> list[Answer]:
    """Answers to all plans, those of a strategy in one table."""
    alike = groupby(sorted(PLANS, key=lambda plan: plan.strategy), key=lambda plan: plan.strategy)
    return [answer for _, plans in alike for answer in price_plan(asked, PlanTable.of(*plans))]


def test_neutral_factors_change_no_price() -> None:
    neutral_answers = priced(replace(QUESTION, calibration=Calibration()))
    for bare, neutral in zip(priced(QUESTION), neutral_answers, strict=True):
        assert neutral.step_s == pytest.approx(bare.step_s, rel=1e-12)
        assert neutral.origins_s["calibrated"] == 0.0
        assert "calibrated" not in bare.origins_s


@pytest.mark.parametrize(
    "slower",
    [
        *(Calibration(**{name: 0.8}) for name in ACTING),
        Calibration(overlap=0.5),
        Calibration(fixed_per_micro_batch_s=1e-4),
        Calibration(fixed_per_step_s=1e-2),
    ],
    ids=str,
)
def test_a_worse_factor_never_shortens_a_step_and_is_called_calibrated(slower: Calibration) -> None:
    longer = 0
    for bare, worse in zip(priced(QUESTION), priced(replace(QUESTION, calibration=slower)), strict=True):
        assert worse.step_s >= bare.step_s * (1 - 1e-12)
        assert sum(worse.parts_s.values()) == pytest.approx(worse.step_s, rel=1e-12)
        assert sum(worse.origins_s.values()) == pytest.approx(worse.step_s, rel=1e-12)
        if worse.step_s > bare.step_s * (1 + 1e-9):
            longer += 1
            assert worse.origins_s[Origin.CALIBRATED.name.lower()] > 0.0
    assert longer > 0


def test_compute_efficiency_stretches_compute_and_nothing_else() -> None:
    plan = PLANS[0]
    (bare,) = price_plan(QUESTION, PlanTable.of(plan))
    (half,) = price_plan(replace(QUESTION, calibration=Calibration(compute_efficiency=0.5)), PlanTable.of(plan))
    for part in ("gemm", "attention"):
        assert half.parts_s[part] == pytest.approx(2.0 * bare.parts_s[part])
    for part in ("memory_bound", "dp_comm", "optimizer"):
        assert half.parts_s[part] == bare.parts_s[part]
    assert half.memory_bytes == bare.memory_bytes
