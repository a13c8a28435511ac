"""The picture of a pipeline shows the passes that are priced."""

from dataclasses import replace
from itertools import pairwise

import pytest

from solver.analysis.timeline import num_passes, timeline_of
from solver.plans.plan_table import Plan, PlanTable
from solver.problem.price import price_plan
from solver.report.timeline_picture import MAX_PASSES, boxes_of, shortened_plan, timeline_picture
from spec.frameworks import framework_preset
from tests.solver.questions import question, small_model

PLAN = Plan(strategy="fsp", preset="megatron", pp=4, vpp=2, dp=2, num_micro=8)
CASE = question(model=small_model(layers=8), world_size=8, sequences=16, preset=framework_preset("megatron"))


def test_boxes_do_not_overlap_on_a_stage_and_end_with_the_step() -> None:
    boxes = list(boxes_of(timeline_of(CASE, PLAN)))
    for stage in range(PLAN.pp):
        own = sorted((one.start_ms, one.end_ms) for one in boxes if one.stage == stage)
        assert all(before[1] <= after[0] + 1e-9 for before, after in pairwise(own))
    step_s = price_plan(CASE, PlanTable.of(PLAN))[0].step_s
    assert max(one.end_ms for one in boxes) == pytest.approx(1e3 * step_s, rel=1e-9)
    assert {(one.micro, one.chunk) for one in boxes if one.micro >= 0} == {(m, c) for m in range(8) for c in range(2)}


def test_a_step_too_long_to_play_is_drawn_with_fewer_micro_batches() -> None:
    long = replace(PLAN, num_micro=1_000_000)
    drawn = shortened_plan(long)
    assert drawn.num_micro % (2 * long.pp) == 0
    assert 0.9 * MAX_PASSES < num_passes(drawn) <= MAX_PASSES
    assert shortened_plan(PLAN) is PLAN


def test_the_picture_has_both_ends_of_a_long_step_and_says_how_busy_it_is() -> None:
    long = replace(PLAN, num_micro=64)
    found = timeline_picture(replace(CASE, job=replace(CASE.job, global_batch_tokens=128 * 1024)), long)
    assert "first and the last of 64 micro-batches" in found.alt
    assert ">1<" in found.wide
    assert ">64<" in found.wide
    assert "micro-batches: the middle repeats" not in found.caption
