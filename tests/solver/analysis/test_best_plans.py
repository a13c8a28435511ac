"""The cheapest change: the plan it names is there, and none gives up less."""

from dataclasses import replace
from functools import cache

import pytest

from solver.analysis import best_plans as cheapest_change_file
from solver.analysis.best_plans import best_plans, cheapest_changes
from solver.memory.device import usable_bytes
from solver.plans.space import full_space
from solver.problem.problem import Problem
from solver.problem.result import Answer
from solver.search import search
from spec.cluster.cluster import HostSpec
from spec.errors import NoFeasiblePlanError
from spec.frameworks import framework_preset
from spec.settings.constraints import NO_CONSTRAINTS, Constraints, constraints_of
from spec.units import GIB
from tests.solver.questions import question, small_model


def cheapest_change(asked: Problem, constraints: Constraints) -> str:
    """The words of the first change."""
    return next((one.words for one in cheapest_changes(asked, constraints)), "")


def test_the_nearest_value_of_the_one_constraint_that_stands_in_the_way() -> None:
    asked = question()
    said = {"fix": {"tp": 7}, "max": {"pp": 4}}
    assert cheapest_change(asked, constraints_of(said)) == "tp = 8 instead of tp = 7"
    best_plans(asked, constraints_of({**said, "fix": {"tp": 8}}))


def test_fewer_constraints_given_up_are_cheaper_than_nearer_values() -> None:
    asked = question(preset=framework_preset("megatron"))
    # isp is not Megatron-LM's; everything else can be kept.
    words = cheapest_change(asked, constraints_of({"modes": ["isp"], "fix": {"tp": 2, "pp": 2}}))
    assert words in ("strategy = mtp instead of strategy = isp", "strategy = fsp instead of strategy = isp")


def test_one_constraint_far_off_is_given_up_before_two_that_are_near() -> None:
    # isp with all of a layer run again breaks two words, a doubling each; mtp wants tp 8, three doublings.
    model = small_model(layers=4, hidden=2048, kv_heads=8)
    preset = framework_preset("internevo")
    asked = question(model=model, world_size=8, sequences=8, seq_len=8192, memory_gib=5.0 / 0.99, preset=preset)
    ones = dict.fromkeys(("tp", "pp", "cp", "zero_size", "micro_batch"), 1)
    words = cheapest_change(asked, constraints_of({"fix": {"strategy": "mtp", "recompute": "none", **ones}}))
    assert words in ("tp = 8 instead of tp = 1", "pp = 4 instead of pp = 1", "zero_size = 8 instead of zero_size = 1")
    nearer = {"fix": {"strategy": "isp", "recompute": "full", **ones}}
    best_plans(asked, constraints_of(nearer))


def test_of_one_strategy_too_fewer_constraints_come_before_nearer_values() -> None:
    # Two kv heads stop tp at 2, which with half of the optimizer is two doublings of two keys; all ranks'
    # shares are three of one.
    model = small_model(layers=1, hidden=8192, kv_heads=2)
    asked = question(
        model=model, world_size=8, sequences=8, seq_len=512, memory_gib=12.0 / 0.99, preset=framework_preset("megatron")
    )
    ones = dict.fromkeys(("tp", "pp", "cp", "zero_size", "micro_batch"), 1)
    said = {"fix": {"strategy": "mtp", "recompute": "none", **ones}}
    assert cheapest_change(asked, constraints_of(said)) == "zero_size = 8 instead of zero_size = 1"
    best_plans(asked, constraints_of({"fix": {**said["fix"], "tp": 2, "zero_size": 2}}))


def test_memory_asked_for_rounds_up_to_what_lets_the_plan_in() -> None:
    asked = question(world_size=4, sequences=4, preset=framework_preset("megatron"))
    least = search(asked, full_space(asked.model, asked.job)).pareto[-1].needed_bytes
    asked_gib = 0.9 * least / GIB
    words = cheapest_change(asked, constraints_of({"memory_gib": asked_gib}))
    enough = float(words.split(" GiB")[0])
    assert 0 <= enough - least / GIB <= 0.1
    best_plans(asked, constraints_of({"memory_gib": enough}))


def small(memory_gib: float) -> Problem:
    """A model that two GPUs of so much memory do not hold."""
    return question(
        model=small_model(layers=12, hidden=1024),
        world_size=2,
        sequences=64,
        memory_gib=memory_gib,
        preset=framework_preset("megatron"),
    )


def with_host(asked: Problem) -> Problem:
    host = HostSpec(link_bandwidth=50e9, memory_bandwidth=200e9)
    return replace(asked, op_timer=replace(asked.op_timer, host=host), cluster=replace(asked.cluster, host=host))


def test_more_gpus_where_nothing_else_helps() -> None:
    asked = small(3.0)
    with pytest.raises(NoFeasiblePlanError, match="cheapest change: 8 GPUs instead of 2"):
        best_plans(asked, constraints_of({}))
    best_plans(replace(asked, job=replace(asked.job, world_size=8)), constraints_of({}))
    half = replace(asked, job=replace(asked.job, world_size=4))
    with pytest.raises(NoFeasiblePlanError):
        search(half, full_space(half.model, half.job))


@cache
def best_of_the_question() -> Answer:
    return search(question(), full_space(question().model, question().job), top_k=1).best[0]


@pytest.mark.parametrize(
    ("world", "enough", "words"),
    [
        (1, 64, "64 GPUs instead of 1"),
        (1, 128, ""),
        (16, 24, "24 GPUs instead of 16"),
        (64, 112, "112 GPUs instead of 64"),
        (256, 1024, "1,024 GPUs instead of 256"),
        (256, 900, "960 GPUs instead of 256"),
    ],
)
def test_every_number_of_nodes_is_tried_up_to_64_times_as_many(
    world: int, enough: int, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever fits them: a plan fits ``enough`` GPUs and more; from 512 GPUs on every eighth of the doubling, 64 GPUs."""
    plan = best_of_the_question()
    monkeypatch.setattr(cheapest_change_file, "_nearest", lambda *_: None)
    monkeypatch.setattr(
        cheapest_change_file, "best_of", lambda asked, *_, **__: plan if asked.job.world_size >= enough else None
    )
    asked = question(world_size=world, sequences=1024, preset=framework_preset("megatron"))
    asked = replace(asked, cluster=replace(asked.cluster, max_nodes=max(64 * world // 8 - (enough == 128) * 8, 1)))
    assert cheapest_change(asked, constraints_of({})) == words


def test_up_to_three_changes_each_with_its_price() -> None:
    asked = with_host(small(3.6))
    found = cheapest_changes(asked, NO_CONSTRAINTS)
    assert [one.words.split(",")[0] for one in found] == ["optimizer_offload = 1", "4 GPUs instead of 2"]
    for one in found:
        assert one.answer.needed_bytes <= usable_bytes(asked.cluster)
        assert f"{1000 * one.answer.step_s:,.0f} ms a step: {one.answer.plan.label()}" in one.text()
    with pytest.raises(NoFeasiblePlanError, match=r"cheapest change: optimizer_offload.* ms a step: .*; or 4 GPUs"):
        best_plans(asked, NO_CONSTRAINTS)


def test_gradients_in_16_bits_are_a_change_where_they_are_wider(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = search(question(), full_space(question().model, question().job), top_k=1).best[0]
    asked = question(preset=framework_preset("megatron"))
    wide = replace(asked.job.precision, gradient="fp32", reduce="fp32")
    asked = replace(asked, job=replace(asked.job, precision=wide))
    monkeypatch.setattr(cheapest_change_file, "_nearest", lambda *_: None)
    monkeypatch.setattr(
        cheapest_change_file,
        "best_of",
        lambda one, *_, **__: plan if one.job.precision.gradient == one.job.precision.reduce == "bf16" else None,
    )
    words = "precision.gradient = bf16 and precision.reduce = bf16, gradients in 16 bits"
    assert [one.words for one in cheapest_changes(asked, NO_CONSTRAINTS)] == [words]


def test_headroom_is_given_up_in_whole_per_cents() -> None:
    asked = question(world_size=4, sequences=4, preset=framework_preset("megatron"))
    least = search(asked, full_space(asked.model, asked.job)).pareto[-1].needed_bytes
    share = 1.0 - 0.95 * least / usable_bytes(asked.cluster)
    words = cheapest_change(asked, constraints_of({"headroom": share}))
    enough = float(words.removeprefix("headroom ").split("%")[0]) / 100.0
    assert 0 <= 1.0 - least / usable_bytes(asked.cluster) - enough < 0.01
    best_plans(asked, constraints_of({"headroom": enough}))


@pytest.mark.nightly
def test_a_model_that_no_number_of_gpus_holds_has_no_such_change() -> None:
    assert cheapest_change(small(2.0), constraints_of({})) == ""


def test_the_host_is_asked_before_more_gpus_are() -> None:
    alone = small(3.6)
    assert cheapest_change(alone, constraints_of({})) == "4 GPUs instead of 2"
    asked = with_host(alone)
    for kept in ({}, {"min": {"micro_batch": 1}}):
        assert cheapest_change(asked, constraints_of(kept)).startswith("optimizer_offload = 1")
    on_device = {"fix": {"optimizer_offload": 0.0}}
    assert not cheapest_change(asked, constraints_of(on_device)).startswith("optimizer_offload = 1,")
    best_plans(asked, constraints_of({"fix": {"optimizer_offload": 1.0}}))
