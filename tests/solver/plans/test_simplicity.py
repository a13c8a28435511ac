"""Switches of a plan: each counts once, and the first of plans that no prediction tells apart has the fewest."""

from dataclasses import replace
from typing import Any

import pytest

from ops.recompute import Recompute
from solver.plans.plan_table import Plan
from solver.plans.schedules import Schedule
from solver.plans.simplicity import SWITCHES, alternatives, num_switches, switches_beyond
from solver.plans.space import full_space
from solver.problem.result import is_tie
from solver.search import candidate_pool, search
from spec.frameworks import framework_preset
from spec.settings.constraints import Constraints
from tests.solver.questions import question

PLAIN = Plan(strategy="mtp", preset="megatron", tp=1, dp=16, zero_stage=1, zero_size=16, num_micro=4)


def test_data_parallelism_and_micro_batches_are_no_switches() -> None:
    assert num_switches(PLAIN) == 0
    assert num_switches(replace(PLAIN, zero_size=1, zero_stage=0, micro_batch=2)) == 0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tp": 2, "zero_size": 16}, ["tensor parallelism"]),
        ({"pp": 2, "vpp": 2}, ["pipeline stages", "virtual chunks"]),
        ({"cp": 2, "dp": 8}, ["context parallelism"]),
        ({"ep": 8}, ["expert parallelism"]),
        ({"ep": 8, "etp": 2}, ["expert parallelism", "tensor parallelism of experts"]),
        ({"zero_size": 8}, ["ZeRO over a part of the ranks"]),
        ({"pp": 2, "stage_layout": "Et|tL"}, ["pipeline stages", "a layout written by hand"]),
        ({"schedule": Schedule.ZB_H1}, ["another schedule than 1F1B"]),
        ({"recompute": Recompute.FULL}, ["recomputation"]),
        ({"recompute": Recompute.BLOCK}, ["recomputation", "recomputation of some layers"]),
        ({"recompute_modules": ("mlp",)}, ["recomputation", "recomputed parts of layers"]),
        ({"optimizer_offload": 1.0}, ["an optimizer on the host"]),
        ({"optimizer_offload": 0.5}, ["an optimizer on the host", "a part of the optimizer on the host"]),
        ({"offloaded_layers": 1}, ["layers on the host"]),
        ({"offload_modules": ("mlp_norm",)}, ["parts of layers on the host"]),
    ],
)
def test_each_is_a_switch(changes: dict[str, Any], words: list[str]) -> None:
    plan = replace(PLAIN, **changes)
    assert switches_beyond(plan, PLAIN) == words
    rare = sum(word in ("an optimizer on the host", "layers on the host") for word in words)
    assert num_switches(plan) == len(words) + 2 * rare + 3 * (words == ["parts of layers on the host"])
    assert not switches_beyond(PLAIN, plan)


def test_alternatives_are_other_ways_to_train_before_other_numbers_of_one() -> None:
    """Of four counts of layers on the host the best one, then what has none; a second count only where room is left."""
    host = [replace(PLAIN, offloaded_layers=layers) for layers in (4, 5, 6, 7)]
    plans = [PLAIN, *host, replace(PLAIN, micro_batch=2), replace(PLAIN, tp=2, dp=8), replace(PLAIN, pp=2, dp=8)]
    assert alternatives(plans, 3) == [1, 6, 7]
    assert alternatives(plans, 5) == [1, 2, 3, 6, 7]
    assert alternatives(plans[:1], 5) == []


def test_pipeline_stages_with_chunks_come_before_a_plan_that_needs_the_host() -> None:
    staged = replace(PLAIN, pp=2, vpp=4, dp=8, zero_size=8)
    for host in ({"offloaded_layers": 11}, {"optimizer_offload": 1.0}, {"offload_modules": ("mlp_norm",)}):
        assert num_switches(staged) < num_switches(replace(PLAIN, **host))


def test_weight_groups_and_the_shards_of_isp() -> None:
    """16 ranks, wp 4: four ranks hold the same weights of linear layers."""
    plan = replace(PLAIN, strategy="isp", wp=4, zero_size=4)
    assert switches_beyond(plan, PLAIN) == ["weight groups"]
    assert "ZeRO over a part of the ranks" in switches_beyond(replace(plan, zero_size=2), plan)
    assert len({words for words, _ in SWITCHES}) == len(SWITCHES)


@pytest.mark.parametrize("memory_gib", [80.0, 3.0])
def test_the_simplest_of_the_plans_that_no_prediction_tells_apart_comes_first(memory_gib: float) -> None:
    asked = question(world_size=8, sequences=32, memory_gib=memory_gib, preset=framework_preset("megatron"))
    space = full_space(asked.model, asked.job)
    by_time = search(asked, space, top_k=1).best[0]
    simple = search(asked, replace(space, constraints=Constraints(rank_by="simple")), top_k=3).best
    assert simple[0].step_s <= 1.01 * by_time.step_s
    assert is_tie(by_time, simple[0])
    pool, _ = candidate_pool(asked, space, everything=True)
    near = pool.near_best()
    fewest = min(num_switches(group.plan) for group in near)
    assert num_switches(simple[0].plan) == fewest
    assert len({answer.plan for answer in simple}) == 3


def test_a_layout_for_two_thirds_of_a_per_cent_does_not_win() -> None:
    asked = question(world_size=32, sequences=64, preset=framework_preset("megatron"))
    space = full_space(asked.model, asked.job)
    by_time = search(asked, space, top_k=3).best[0]
    simple = search(asked, replace(space, constraints=Constraints(rank_by="simple")), top_k=3).best
    assert switches_beyond(by_time.plan, simple[0].plan) == ["a layout written by hand"]
    assert by_time.step_s < simple[0].step_s < 1.01 * by_time.step_s
    # The fastest one follows.
    assert simple[1].plan == by_time.plan
