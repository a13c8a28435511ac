"""Traffic of a plan rank by rank: pipeline hops of virtual chunks, and totals by the closed form."""

import numpy as np
import pytest

from ops.op import Axis
from solver.plans.plan_table import Plan
from spec.presets.registry import PRESETS
from tests.solver.questions import question
from workload.stage_work import stage_works
from workload.traffic.plan_traffic import axis_matrices, plan_groups


@pytest.mark.parametrize("vpp", [1, 2])
def test_hops_by_rank_are_the_hops_of_the_stages(vpp: int) -> None:
    plan = Plan(strategy="mtp", preset="internevo", tp=2, pp=4, vpp=vpp, dp=2, micro_batch=1, num_micro=4)
    asked = question(world_size=16, sequences=8)
    matrix = axis_matrices(asked, plan)[Axis.PP]
    # Each rank sends and receives; a stage's hops count both, so its ranks send half of them.
    sent = matrix.sum(axis=1)
    for work in stage_works(asked, plan):
        expected = work.hops / 2 * plan.num_micro * work.hop_bytes
        assert sent[work.position * 4] == pytest.approx(expected)
    wraps = matrix[12, 0]
    assert wraps == (vpp - 1) * plan.num_micro * stage_works(asked, plan)[0].hop_bytes
    assert np.array_equal(matrix, matrix.T)


def test_a_ring_of_two_sends_the_array_once_each() -> None:
    plan = Plan(strategy="mtp", preset="internevo", dp=2, micro_batch=1, num_micro=2)
    asked = question(world_size=2, sequences=4)
    matrix = axis_matrices(asked, plan)[Axis.DP_CP]
    (work,) = stage_works(asked, plan)
    size = sum(item.total_bytes for item in work.step if item.collective is not None)
    # 2 (n - 1) / n of an all-reduce leaves every rank
    assert matrix.sum(axis=1).tolist() == pytest.approx([size, size])


def test_groups_of_a_plan_partition_the_ranks_and_follow_the_expert_grid() -> None:
    plan = Plan(strategy="fsp", preset="megatron", tp=2, pp=2, dp=4, ep=4, etp=1, num_micro=2)
    groups = plan_groups(plan)
    for members in groups.values():
        assert sorted(rank for group in members for rank in group) == list(range(16))
    assert groups["tp"][:2] == ((0, 1), (2, 3))
    assert groups["pp"][0] == (0, 8)
    # experts are not cut over tp: their ranks are neighbours, and copies of an expert 4 apart
    assert groups["ep"][:2] == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert groups["edp"][:2] == ((0, 4), (1, 5))


def test_ulysses_sends_gradients_around_all_ranks_that_share_its_weights() -> None:
    """Four ranks in two sequence groups: neighbours exchange heads, and one ring of four reduces."""
    plan = Plan(strategy="ulysses", preset="deepspeed", tp=2, dp=2, num_micro=2)
    asked = question(world_size=4, sequences=4, preset=PRESETS["deepspeed"])
    matrices = axis_matrices(asked, plan)
    assert set(matrices) == {Axis.TP, Axis.SDP}
    assert np.flatnonzero(matrices[Axis.TP][0]).tolist() == [1]
    assert np.flatnonzero(matrices[Axis.SDP][0]).tolist() == [1]
    assert np.flatnonzero(matrices[Axis.SDP][3]).tolist() == [0]
    (work,) = stage_works(asked, plan)
    size = sum(item.total_bytes for item in work.step if item.collective is not None)
    # 2 (n - 1) / n of an all-reduce leaves every rank
    assert matrices[Axis.SDP].sum(axis=1).tolist() == pytest.approx([1.5 * size] * 4)
    assert plan_groups(plan)["sdp"] == ((0, 1, 2, 3),)
