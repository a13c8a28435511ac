"""The search: complete, counted, ranked, and honest about what it refused."""

import itertools
from dataclasses import replace
from math import prod

import pytest

from ops.recompute import Recompute
from ops.strategies import STRATEGIES
from solver.plans.plan_table import PlanTable
from solver.plans.schedules import Schedule
from solver.plans.space import divisors, full_space, tensor_degrees
from solver.problem.price import price_plan
from solver.problem.requested_plan import broken_rules, parse_plan, plan_of
from solver.search import search
from spec.errors import ConfigError, NoFeasiblePlanError
from spec.frameworks import framework_names, framework_preset
from spec.settings.constraints import constraints_of
from spec.settings.plan import PlanSettings
from tests.solver.questions import question, small_model


def test_plans_seen_are_the_product_of_the_degrees_and_each_is_priced_or_counted_under_a_reason() -> None:
    asked = question(world_size=8)
    space = full_space(asked.model, asked.job)
    result = search(asked, space)
    sizes = {name: len(values) for name, values in space.degrees.items()}
    whole = prod(sizes.values())
    assert result.num_seen == 2 * (3 * whole // sizes["wp"] + whole) > 1000
    assert result.num_seen == result.num_priced + sum(result.rejected.values())


RANKS, SEQUENCES = 4, 4


def test_the_best_plan_is_the_best_of_all_priced_alone() -> None:
    """Every feasible plan of a small space, written out with loops: those of one strategy and recomputation priced
    together, and one in eight alone."""
    asked = question(world_size=RANKS, sequences=SEQUENCES)
    found = search(asked, full_space(asked.model, asked.job), top_k=3)
    allowed = [plan for plan in every_plan(asked) if not broken_rules(asked, plan)]
    priced = [
        answer
        for _, alike in itertools.groupby(allowed, key=lambda plan: (plan.strategy, plan.recompute))
        for answer in price_plan(asked, PlanTable.of(*alike))
    ]
    assert len(priced) == len(allowed)
    for plan, answer in list(zip(allowed, priced, strict=True))[::8]:
        assert price_plan(asked, PlanTable.of(plan))[0].step_s == pytest.approx(answer.step_s, rel=1e-12)
    assert found.best[0].step_s == pytest.approx(min(answer.step_s for answer in priced), rel=1e-12)
    assert [answer.step_s for answer in found.best] == sorted(answer.step_s for answer in found.best)


def every_plan(asked):
    for strategy, recompute, tp, pp, zero, micro in itertools.product(
        STRATEGIES, (Recompute.NONE, Recompute.FULL), (1, 2, 4), (1, 2, 4), (1, 2, 4), (1, 2, 4)
    ):
        dp = RANKS // (tp * pp)
        if not dp or dp % zero or SEQUENCES % (dp * micro):
            continue
        for wp in (1, 2, 4) if strategy == "isp" else (1,):
            copies = RANKS // (pp * wp) if strategy == "isp" else dp
            if (RANKS // pp) % wp == 0 and zero <= copies:
                written = PlanSettings(
                    strategy=strategy, recompute=recompute.value, tp=tp, pp=pp, wp=wp, zero_size=zero, micro_batch=micro
                )
                yield plan_of(written, asked, "test")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in ("megatron", "internevo", "deepspeed", "fsdp") else pytest.mark.nightly)
        for name in framework_names(legacy=True)
    ],
)
def test_every_plan_names_a_preset_that_accepts_it(name: str) -> None:
    preset = framework_preset(name)
    asked = question(preset=preset, world_size=4, sequences=4)
    result = search(asked, full_space(asked.model, asked.job), top_k=10**6)
    assert sum(1 + len(answer.also_zero_sizes) for answer in result.best) == result.num_priced
    for answer in result.best:
        assert answer.plan.preset == name
        assert answer.plan.strategy in preset.tensor_parallel.strategies
        assert answer.plan.zero_stage in preset.data_parallel.zero_stages


def test_pareto_plans_are_beaten_by_none() -> None:
    asked = question(world_size=8, sequences=32)
    result = search(asked, full_space(asked.model, asked.job), top_k=10**6)
    for kept in result.pareto:
        assert not any(other.step_s <= kept.step_s and other.needed_bytes < kept.needed_bytes for other in result.best)


def test_nothing_fits_names_the_reasons_and_the_nearest_miss() -> None:
    asked = question(memory_gib=0.5)
    with pytest.raises(
        NoFeasiblePlanError, match=r"^no plan fits: nearest miss: .* GiB of 0\.5; .*does not fit in memory"
    ):
        search(asked, full_space(asked.model, asked.job))


def test_a_space_of_one_plan_is_searched_by_the_same_lines() -> None:
    asked = question(world_size=8)
    fixed = {"strategy": "msp", "recompute": "none", "tp": 2, "pp": 2, "vpp": 1, "zero_size": 2, "micro_batch": 4}
    space = full_space(asked.model, asked.job, constraints_of({"fix": fixed}))
    result = search(asked, space)
    written = parse_plan("strategy=msp,tp=2,pp=2,zero_size=2,micro_batch=4")
    alone = price_plan(asked, PlanTable.of(plan_of(written, asked, "test")))[0]
    assert result.best == (alone,)


@pytest.mark.parametrize(
    "text",
    [
        *("tp", "tp=x", "tp=-1", "width=3", "tp=2;pp=2", "recompute=maybe", "strategy=3d"),
        *("tp=0", "cp=0", "vpp=0", "micro_batch=0", "tp=2,tp=4", "strategy=mtp,strategy=fsp", "ep=4096"),
        *("", " ", ",", "schedule=chimera", "recompute=block", "recompute=none,recompute_layers=2"),
        *("recompute_layers=0", "recompute_modules=", "recompute_modules=attention", "recompute_modules=moe_act+"),
        *("optimizer_offload=2", "optimizer_offload=all", "optimizer_offload=-1", "offloaded_layers=1.5"),
    ],
)
def test_a_typed_plan_that_is_no_plan(text: str) -> None:
    with pytest.raises(ConfigError):
        plan_of(parse_plan(text), question(), "--plan")


def test_all_that_a_plan_says_can_be_typed() -> None:
    asked = question(preset=framework_preset("megatron"))
    typed = plan_of(parse_plan("pp=2,recompute=full,recompute_layers=3,schedule=1f1b,etp=2"), asked, "--plan")
    assert (typed.recompute, typed.num_recompute_layers, typed.etp) == (Recompute.BLOCK, 3, 2)
    offloading = parse_plan("optimizer_offload=0.5,offloaded_layers=3")
    assert (offloading.optimizer_offload, offloading.offloaded_layers) == (0.5, 3)
    assert plan_of(parse_plan("recompute_layers=3"), asked, "--plan").recompute is Recompute.BLOCK
    assert parse_plan("recompute_modules=moe_act+layernorm").recompute_modules == ("moe_act", "layernorm")


def test_degree_lists() -> None:
    assert divisors(12) == (1, 2, 3, 4, 6, 12)
    # InternEvo's pattern: 1, 2, 4, 6, 8, then multiples of 8.
    assert tensor_degrees(26) == (1, 2, 4, 6, 8, 16, 24)
    assert tensor_degrees(5) == (1, 2, 4)


@pytest.mark.parametrize(
    ("text", "stage", "size"),
    [
        ("tp=1", 0, 1),
        ("zero_size=4", 1, 4),
        ("zero_size=0", 1, 8),
        ("zero_stage=3", 3, 8),
        ("zero_stage=3,zero_size=2", 3, 2),
        ("zero_stage=0,zero_size=8", 0, 8),
        # isp shards over the ranks that hold the same weights: 8 / wp 4.
        ("strategy=isp,wp=4,zero_size=0", 1, 2),
        ("tp=8,zero_size=0", 0, 1),
    ],
)
def test_sharding_is_taken_as_typed(text: str, stage: int, size: int) -> None:
    plan = plan_of(parse_plan(text), question(world_size=8, model=small_model(kv_heads=8)), "--plan")
    assert (plan.zero_stage, plan.zero_size) == (stage, size)


def test_what_a_preset_supports_is_searched_and_nothing_else() -> None:
    """Context parallelism from 8,192 tokens on, zero-bubble schedules in their fork, chunks that divide."""
    long = question(preset=framework_preset("megatron"), seq_len=16384, sequences=16)
    assert full_space(long.model, long.job).degrees["cp"] == (1, 2, 4)
    assert full_space(long.model, replace(long.job, preset=framework_preset("internevo"))).degrees["cp"] == (1,)
    forked = replace(long.job, preset=framework_preset("zero-bubble"))
    assert {Schedule.ZB_H1, Schedule.ZB_H2} < set(full_space(long.model, forked).schedules)
    assert full_space(long.model, long.job).schedules == (Schedule.ONE_F_ONE_B,)
    assert full_space(small_model(layers=12), long.job).degrees["vpp"] == (1, 2, 3, 6, 7)
    asked = question(preset=framework_preset("zero-bubble"), world_size=4, sequences=8)
    space = full_space(asked.model, asked.job)
    for plan in (kept.plan for kept in search(asked, space, top_k=10**6).best):
        assert broken_rules(asked, plan) == ()
        if plan.schedule is not Schedule.ONE_F_ONE_B:
            assert plan.pp > 1
            assert plan.vpp == 1


@pytest.mark.parametrize(
    ("text", "preset", "reason"),
    [
        ("recompute=selective", "internevo", "does not support this recomputation"),
        ("recompute=full", "picotron", "does not support this recomputation"),  # its model.py has no checkpoints
        ("recompute=full,recompute_layers=2", "deepspeed", "does not support this recomputation"),
        ("pp=2,schedule=zb-h1", "megatron", "does not support this schedule"),
        ("schedule=zb-h1", "zero-bubble", "several stages"),
        ("cp=2", "internevo", "no context parallelism"),
        ("pp=2,vpp=2", "nanotron", "interleaving needs"),
        ("zero_stage=0,zero_size=8", "nanotron", "ZeRO stage and shard count disagree"),
        ("etp=2", "megatron", "etp"),
    ],
)
def test_a_typed_plan_beyond_the_framework_says_so(text: str, preset: str, reason: str) -> None:
    asked = question(preset=framework_preset(preset))
    assert any(reason in one for one in broken_rules(asked, plan_of(parse_plan(text), asked, "--plan")))
