"""Calibration: factors that made synthetic steps are found again, stay bounded, and act only when asked."""

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solver.calibrate.fit import EFFICIENCIES, Steps, factors_of, fit, joined
from solver.calibrate.measured_steps import plan_terms
from solver.calibration import HIGHEST_EFFICIENCY, LOWEST_EFFICIENCY, Calibration
from solver.plans.plan_table import Plan, PlanTable
from solver.search import price_plan
from spec.errors import UserError
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


def steps(factors: Calibration, plans: list[Plan] = PLANS) -> Steps:
    """The plans' steps as long as the factors make them."""
    priced = joined([plan_terms(QUESTION, plan) for plan in plans], [1.0] * len(plans))
    return replace(priced, measured_s=priced.predicted_s(factors))


def test_factors_that_made_the_steps_are_found() -> None:
    true = Calibration(
        compute_efficiency=0.75,
        memory_bound_efficiency=0.7,
        intra_comm_efficiency=0.65,
        inter_comm_efficiency=0.85,
    )
    measured = steps(true)
    found = fit(measured)
    # The prior draws efficiencies together: by little where parts are half a step in some plans, by more for
    # memory-bound work and traffic inside a node, which are a sixth at most.
    near = dict(zip(EFFICIENCIES, (0.03, 0.15, 0.15, 0.03), strict=True))
    for name in EFFICIENCIES:
        assert getattr(found.factors, name) == pytest.approx(getattr(true, name), rel=near[name])
    assert found.factors.inter_comm_efficiency > found.factors.intra_comm_efficiency + 0.05
    assert measured.predicted_s(found.factors) == pytest.approx(measured.measured_s, rel=0.02)
    assert found.left_out_error < 0.02


def test_steps_as_priced_move_nothing() -> None:
    found = factors_of(steps(Calibration()))
    for name in EFFICIENCIES:
        assert getattr(found, name) == pytest.approx(1.0, abs=0.01)
    assert found.overlap == pytest.approx(1.0, abs=0.01)


def test_one_step_that_stuttered_moves_the_others_little() -> None:
    measured = steps(Calibration(compute_efficiency=0.8, memory_bound_efficiency=0.8))
    spoilt = measured.measured_s.copy()
    spoilt[4] *= 2.0
    honest, robust = factors_of(measured), factors_of(replace(measured, measured_s=spoilt))
    others = np.delete(np.arange(len(spoilt)), 4)
    change = measured.predicted_s(robust) / measured.predicted_s(honest)
    assert np.abs(change[others] - 1.0).max() < 0.05


@settings(max_examples=15, deadline=None)
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


def test_one_step_is_too_few() -> None:
    with pytest.raises(UserError, match="2 measured steps or more, not 1"):
        fit(steps(Calibration(), PLANS[:1]))


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan.label())
def test_neutral_factors_change_no_price(plan: Plan) -> None:
    (bare,) = price_plan(QUESTION, PlanTable.of(plan))
    (neutral,) = price_plan(replace(QUESTION, calibration=Calibration()), PlanTable.of(plan))
    assert neutral.step_s == pytest.approx(bare.step_s, rel=1e-12)
    assert neutral.origins_s["calibrated"] == 0.0
    assert "calibrated" not in bare.origins_s


@pytest.mark.parametrize(
    "slower",
    [
        *(Calibration(**{name: 0.8}) for name in EFFICIENCIES),
        Calibration(overlap=0.5),
        Calibration(fixed_per_micro_batch_s=1e-4),
        Calibration(fixed_per_step_s=1e-2),
    ],
    ids=str,
)
def test_a_worse_factor_never_shortens_a_step_and_is_called_calibrated(slower: Calibration) -> None:
    longer = 0
    for plan in PLANS:
        (bare,) = price_plan(QUESTION, PlanTable.of(plan))
        (worse,) = price_plan(replace(QUESTION, calibration=slower), PlanTable.of(plan))
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
    (half,) = price_plan(
        replace(QUESTION, calibration=Calibration(compute_efficiency=0.5)), PlanTable.of(plan)
    )
    for part in ("gemm", "attention"):
        assert half.parts_s[part] == pytest.approx(2.0 * bare.parts_s[part])
    for part in ("memory_bound", "dp_comm", "optimizer"):
        assert half.parts_s[part] == bare.parts_s[part]
    assert half.memory_bytes == bare.memory_bytes
