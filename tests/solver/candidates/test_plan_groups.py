"""Of plans that differ in zero_size alone and are within 1 %, one is shown and names the others."""

from dataclasses import replace

from solver.candidates.candidates import group_similar
from solver.plans.plan_table import Plan
from solver.plans.schedules import Schedule
from solver.plans.space import full_space
from solver.search import search
from spec.frameworks import framework_preset
from tests.solver.questions import question

ONE = Plan(strategy="mtp", preset="internevo", dp=16)


def sharded(size: int, **changes: int) -> Plan:
    return replace(ONE, zero_stage=int(size > 1), zero_size=size, **changes)


def shown(*ranked: tuple[float, Plan], most: int = 10) -> list[tuple[float, list[int]]]:
    """Seconds of each group's leader, and the sizes that it stands for."""
    groups = group_similar(((place, step_s, plan) for place, (step_s, plan) in enumerate(ranked)), most)
    return [(group.step_s, [one.zero_size for *_, one in group.others]) for group in groups]


def test_within_a_hundredth_one_stands_for_all() -> None:
    assert shown((1.0, sharded(4)), (1.005, sharded(8)), (1.0099, sharded(1))) == [(1.0, [8, 1])]


def test_beyond_a_hundredth_it_stands_alone() -> None:
    assert shown((1.0, sharded(4)), (1.011, sharded(8)), (1.02, sharded(2))) == [(1.0, []), (1.011, [2])]


def test_plans_that_differ_in_more_stand_alone() -> None:
    other = sharded(8, micro_batch=2)
    assert shown((1.0, sharded(4)), (1.001, other), (1.002, sharded(2))) == [(1.0, [2]), (1.001, [])]


def test_groups_fill_the_places_asked_for_and_no_more() -> None:
    ranked = [(1.0, sharded(4)), (1.001, sharded(8)), (1.002, sharded(4, tp=2)), (1.003, sharded(4, tp=4))]
    assert [step_s for step_s, _ in shown(*ranked, most=2)] == [1.0, 1.002]


def test_a_search_shows_no_two_plans_that_are_alike() -> None:
    asked = question(world_size=16, sequences=4096)
    best = search(asked, full_space(asked.model, asked.job), top_k=10).best
    assert any(answer.also_zero_sizes for answer in best)
    assert all("(or " in answer.label() for answer in best if answer.also_zero_sizes)
    kinds = [replace(answer.plan, zero_size=0, zero_stage=0) for answer in best]
    for place, answer in enumerate(best):
        for other in range(place):
            if kinds[other] == kinds[place] and best[other].plan.zero_stage == answer.plan.zero_stage:
                assert answer.step_s > 1.01 * best[other].step_s


def test_a_plan_of_another_stage_is_told_by_it() -> None:
    """Under a pipeline PyTorch's stages 2 and 3 run alike."""
    asked = question(world_size=16, sequences=64, preset=framework_preset("torchtitan"))
    space = replace(full_space(asked.model, asked.job), schedules=(Schedule.ONE_F_ONE_B,))
    best = search(asked, space, top_k=50).best
    others = [one for one in best if len(set(one.also_zero_stages) - {one.plan.zero_stage}) > 0]
    assert any(one.plan.pp > 1 for one in others)
    for one in best:
        words = one.label().partition(" (or ")[2].rstrip(")")
        told = words.split(", ") if words else []
        assert len(set(told)) == len(told) == len(one.also_zero_sizes)
        for stage, size in zip(one.also_zero_stages, one.also_zero_sizes, strict=True):
            word = f"zero{size}" if stage == one.plan.zero_stage else f"zero{stage}/{size}"
            assert (word if size > 1 else "no zero") in told
