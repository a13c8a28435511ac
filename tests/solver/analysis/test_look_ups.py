"""What a plan's seconds hang on: every look-up of it, weighed by how often a step runs it."""

import pytest

from profdb.cases import Case, CollectiveCase, GemmCase, HostCase
from profdb.cost_model import ProfileCostModel
from profdb.sample import MachineFacts, ProfileDatabase, Sample
from solver.analysis.look_ups import look_ups
from solver.plans.plan_table import Plan, PlanTable
from solver.problem.price import price_plan
from solver.problem.problem import Problem
from solver.times.op_times import OpTimer
from tests.solver.flat_cost_model import FLOPS
from tests.solver.questions import question

PLAN = Plan(strategy="mtp", preset="internevo", tp=2, pp=2, dp=4, zero_stage=1, num_micro=16)


def measured(cases: list[Case]) -> ProfileCostModel:
    """A profile of exactly these cases, each of a millisecond, which allows nothing else."""
    samples = [Sample(case=case, trials_s=(1e-3,)) for case in cases]
    return ProfileCostModel(ProfileDatabase(machine=MachineFacts(gpu="flat"), samples=samples))


def with_book(asked: Problem, cost_model: ProfileCostModel) -> Problem:
    op_timer = OpTimer(cost_model=cost_model, domain_ranks=8)
    return Problem(model=asked.model, job=asked.job, cluster=asked.cluster, op_timer=op_timer)


def test_a_profile_of_the_look_ups_alone_answers_everything_as_measured() -> None:
    asked = question()
    cases = [one.case for one in look_ups(asked, [PLAN])]
    answer = price_plan(with_book(asked, measured(cases)), PlanTable.of(PLAN))[0]
    assert set(answer.origins_s) <= {"measured", "derived"}
    busy_s = answer.step_s - answer.origins_s["derived"]
    assert answer.origins_s["measured"] == pytest.approx(busy_s)
    kinds = {type(case) for case in cases}
    assert kinds >= {GemmCase, CollectiveCase, HostCase}
    # hops between stages: tokens of a micro-batch in bf16
    assert any(getattr(case, "collective", "") == "p2p" for case in cases)


def test_a_product_weighs_what_a_stage_spends_on_it_in_a_step() -> None:
    found = {one.case: one.seconds for one in look_ups(question(), [PLAN])}
    # 4 of 8 layers a stage, 16 micro-batches of 1024 tokens, widths cut in two; gate and up are a product each, of
    # half the head's 4096 words.
    one_s = 2.0 * 1024 * 512 * 2048 / FLOPS
    assert found[GemmCase(m=1024, k=512, n=2048)] == pytest.approx(16 * one_s)
    assert found[GemmCase(m=1024, k=512, n=1024)] == pytest.approx(2 * 4 * 16 * one_s / 2)
    assert found[GemmCase(m=1024, k=1024, n=512)] == pytest.approx(4 * 16 * one_s / 2)


def test_the_heaviest_comes_first_and_plans_share_what_they_share() -> None:
    other = Plan(strategy="mtp", preset="internevo", tp=4, pp=1, dp=4, zero_stage=1, num_micro=16)
    both = look_ups(question(), [PLAN, other])
    weights = [one.seconds for one in both]
    assert weights == sorted(weights, reverse=True)
    assert len({one.case for one in both}) == len(both)
    alone = {one.case: one.seconds for plan in (PLAN, other) for one in look_ups(question(), [plan])}
    assert {one.case for one in both} == set(alone)
