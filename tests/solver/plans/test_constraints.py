"""Constraints as rules: what is left is what the search would have found among plans that keep them."""

from dataclasses import replace

import numpy as np
import pytest

from solver.memory.device import limit_bytes, usable_bytes
from solver.plans.plan_table import Plan, PlanTable
from solver.plans.space import enumerate_block, full_space
from solver.problem.problem import Problem
from solver.problem.requested_plan import broken_rules
from solver.search import LACKS_HEADROOM, OUT_OF_MEMORY, search
from spec.errors import ConfigError, NoFeasiblePlanError
from spec.frameworks import framework_preset
from spec.settings.constraints import Constraints, constraints_of
from tests.solver.questions import cluster, question


def plans(asked: Problem, said: dict[str, object]) -> list[Plan]:
    """Every plan that the rules leave."""
    space = full_space(asked.model, asked.job, constraints_of(said))
    found: list[Plan] = []
    for block in space.blocks:
        table = enumerate_block(asked.model, asked.job, asked.cluster, space, block).plans
        found += [table.plan(row) for row in range(len(table))]
    return found


ASKED = question(world_size=16, sequences=32)
ALL = plans(ASKED, {})


@pytest.mark.parametrize(
    ("said", "keeps"),
    [
        ({"fix": {"tp": 4}}, lambda p: p.tp == 4),
        ({"fix": {"tp": 2, "pp": 2}}, lambda p: (p.tp, p.pp) == (2, 2)),
        ({"max": {"tp": 2, "micro_batch": 4}}, lambda p: p.tp <= 2 and p.micro_batch <= 4),
        ({"min": {"pp": 4}}, lambda p: p.pp >= 4),
        ({"modes": ["mtp", "isp"]}, lambda p: p.strategy in ("mtp", "isp")),
        ({"zero": [0]}, lambda p: p.zero_stage == 0),
        ({"no_recompute": True}, lambda p: p.recompute == "none"),
        ({"fix": {"recompute": "full"}}, lambda p: p.recompute == "full"),
        ({"min": {"dp": 4}, "max": {"num_micro": 4}}, lambda p: p.dp >= 4 and p.num_micro <= 4),
        ({"fix": {"zero_size": 0}, "modes": ["msp"]}, lambda p: p.strategy == "msp" and p.zero_size == p.dp),
    ],
)
def test_what_is_left_is_what_keeps_them(said: dict[str, object], keeps) -> None:
    left = plans(ASKED, said)
    assert left == [plan for plan in ALL if keeps(plan)]
    assert 0 < len(left) < len(ALL)


def test_tensor_parallel_groups_stay_inside_a_server() -> None:
    asked = replace(ASKED, cluster=cluster(gpus_per_node=4))
    left = plans(asked, {"keep_tp_in_node": True})
    # Six ranks straddle servers of four wherever they begin.
    assert left == [plan for plan in plans(asked, {}) if plan.tp in (1, 2, 4)]
    assert any(plan.tp == 8 for plan in ALL)


def test_every_plan_that_falls_is_counted_under_its_reason() -> None:
    constraints = constraints_of({"fix": {"tp": 2}, "modes": ["mtp"], "no_recompute": True})
    result = search(ASKED, full_space(ASKED.model, ASKED.job, constraints))
    assert result.num_seen == result.num_priced + sum(result.rejected.values())
    for reason in ("constraint: tp = 2", "constraint: strategy = mtp", "constraint: recompute = none"):
        assert result.rejected[reason] > 0


def test_a_value_that_no_search_tries_is_tried_when_asked_for() -> None:
    asked = question(preset=framework_preset("megatron"))
    assert {plan.offloaded_layers for plan in plans(asked, {})} == {0}
    assert {plan.offloaded_layers for plan in plans(asked, {"fix": {"offloaded_layers": 3}})} == {3}
    modules = plans(asked, {"fix": {"recompute_modules": ["mlp"], "tp": 2}})
    assert {plan.recompute_modules for plan in modules} == {("mlp",)}


def test_memory_left_free_drops_plans_that_fit() -> None:
    asked = question(world_size=4, sequences=32, memory_gib=3.0, preset=framework_preset("megatron"))
    free = search(asked, full_space(asked.model, asked.job))
    constraints = constraints_of({"headroom": "20%"})
    limit = limit_bytes(asked.cluster, constraints)
    assert limit == pytest.approx(0.8 * usable_bytes(asked.cluster))
    left = search(asked, full_space(asked.model, asked.job, constraints))
    assert left.rejected[LACKS_HEADROOM] > 0
    assert left.rejected.get(OUT_OF_MEMORY, 0) == free.rejected.get(OUT_OF_MEMORY, 0)
    assert all(answer.needed_bytes <= limit for answer in (*left.best, *left.pareto))
    # The fastest plan of all needs the whole device; relaxed ones are not among the plans as searched.
    tight = left.with_all_memory
    assert tight is not None
    assert limit < tight.needed_bytes <= usable_bytes(asked.cluster)
    assert free.best[0].step_s <= tight.step_s < left.best[0].step_s
    assert free.with_all_memory is None
    assert limit_bytes(asked.cluster, constraints_of({"memory_gib": 2})) == 2 * 2**30


def test_the_plan_of_all_memory_is_the_fastest_simulated_not_the_least_bound() -> None:
    """Pipelines, whose bounds rank them otherwise than their simulated steps do."""
    asked = question(world_size=16, sequences=32, memory_gib=4.0, preset=framework_preset("megatron"))
    pipelines = {"min": {"pp": 2}}
    left = search(asked, full_space(asked.model, asked.job, constraints_of({"headroom": "20%"} | pipelines)))
    free = search(asked, full_space(asked.model, asked.job, constraints_of(pipelines)), relaxes=False)
    assert left.with_all_memory is not None
    assert left.with_all_memory.step_s == pytest.approx(free.best[0].step_s, rel=1e-12)


def test_a_limit_beyond_the_device_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"at most 79\.2"):
        limit_bytes(ASKED.cluster, constraints_of({"memory_gib": 81}))


def test_a_priced_plan_says_which_it_breaks() -> None:
    from solver.plans.constraints import constraint_rules

    plan = next(plan for plan in ALL if plan.tp == 2 and plan.strategy == "mtp")
    rules = constraint_rules(constraints_of({"fix": {"tp": 4}, "modes": ["mtp"]}))
    assert broken_rules(ASKED, plan, rules) == (*broken_rules(ASKED, plan), "constraint: tp = 4")


def test_an_empty_space_says_why() -> None:
    with pytest.raises(NoFeasiblePlanError, match=r"constraint: tp = 7: \d+"):
        search(ASKED, full_space(ASKED.model, ASKED.job, constraints_of({"fix": {"tp": 7}})))


def test_fsdp_has_pipeline_stages_only_where_a_constraint_names_them() -> None:
    """accelerate and Lightning have none, torchtitan, which has, is a preset of its own."""
    asked = question(world_size=8, sequences=16, preset=framework_preset("fsdp"))
    assert {plan.pp for plan in plans(asked, {})} == {1}
    assert {plan.pp for plan in plans(asked, {"min": {"pp": 2}})} == {2, 4, 8}
    assert {plan.pp for plan in plans(asked, {"fix": {"pp": 2}})} == {2}
    torchtitan = question(world_size=8, sequences=16, preset=framework_preset("torchtitan"))
    assert {plan.pp for plan in plans(torchtitan, {})} == {1, 2, 4, 8}


def test_no_constraints_change_no_space() -> None:
    space = full_space(ASKED.model, ASKED.job, Constraints())
    assert space == replace(full_space(ASKED.model, ASKED.job), constraints=Constraints())
    assert np.all(PlanTable.of(ALL[0]).layout.tp == ALL[0].tp)
