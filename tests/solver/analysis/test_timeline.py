"""A step as it runs ends when its price says; the order within it is tested with its trace
(workload.settings.step_trace).
"""

import numpy as np
import pytest

from solver.analysis.timeline import num_passes, timeline_of
from solver.plans.plan_table import Plan, PlanTable
from solver.plans.schedules import Schedule
from solver.problem.price import price_plan
from spec.frameworks import framework_preset
from tests.solver.questions import question, small_model


def test_split_backwards_are_three_passes() -> None:
    plan = Plan(strategy="mtp", preset="zero-bubble", pp=4, dp=2, num_micro=8, schedule=Schedule.ZB_H1)
    case = question(model=small_model(layers=8), world_size=8, sequences=16, preset=framework_preset("zero-bubble"))
    found = timeline_of(case, plan)
    assert len(found.graph) == num_passes(plan) == 3 * 4 * 8
    assert all(one.end_s > one.start_s for one in found.afterwards)


def test_a_step_lasts_as_long_as_its_price() -> None:
    plan = Plan(strategy="fsp", preset="megatron", pp=4, dp=2, num_micro=8)
    case = question(model=small_model(layers=8), world_size=8, sequences=16, preset=framework_preset("megatron"))
    found = timeline_of(case, plan)
    assert len(found.graph) == num_passes(plan) == 2 * 4 * 8
    assert found.afterwards[0].start_s >= np.max(found.ends_s[found.graph.stage == 0])
    last_s = max(one.end_s for one in found.afterwards)
    assert last_s == pytest.approx(price_plan(case, PlanTable.of(plan))[0].step_s, rel=1e-9)
