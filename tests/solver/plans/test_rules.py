"""What a framework or a strategy demands of a plan, rule by rule; the search keeps the same rules."""

from dataclasses import replace

import numpy as np
import pytest

from solver.plans.plan_table import PlanTable
from solver.plans.rules import UNEVEN_CHUNKS, nearly_equal
from solver.plans.schedules import Schedule
from solver.plans.space import enumerate_block, full_space
from solver.problem.typed_plan import broken_rules, parse_plan, plan_of
from solver.search import price_plan, search
from spec.arrays import ints
from spec.cluster.cluster import HostSpec
from spec.frameworks import framework_preset
from spec.model import MoeSpec
from tests.solver.questions import question, small_model

DENSE = small_model(heads=8, kv_heads=2)
BLOCK = DENSE.blocks[0].block
EXPERTS = replace(
    DENSE,
    blocks=(
        replace(
            DENSE.blocks[0],
            block=replace(BLOCK, mlp=None, moe=MoeSpec(num_experts=8, topk=2, expert_ffn_hidden=512)),
        ),
    ),
)


def broken(text: str, *, model=DENSE, preset: str = "deepspeed") -> tuple[str, ...]:
    asked = question(model=model, world_size=16, preset=framework_preset(preset))
    return broken_rules(asked, plan_of(parse_plan(f"strategy=ulysses,{text}"), asked, "--plan"))


@pytest.mark.parametrize(
    ("optimizer", "zero_size", "kept"), [("muon", 4, False), ("muon", 16, True), ("adamw", 4, True)]
)
def test_muon_is_sharded_over_all_data_parallel_ranks(optimizer: str, zero_size: int, *, kept: bool) -> None:
    """Megatron-LM asserts the distributed optimizer for several instances of it, and Muon without it."""
    asked = question(model=DENSE, world_size=16, preset=framework_preset("megatron"))
    asked = replace(asked, job=replace(asked.job, optimizer=optimizer))
    plan = plan_of(parse_plan(f"strategy=mtp,zero_stage=1,zero_size={zero_size}"), asked, "--plan")
    assert ("the framework shards over all data-parallel ranks only" not in broken_rules(asked, plan)) is kept


HOST = HostSpec(link_bandwidth=50e9, memory_bandwidth=400e9, links=4)
MUON = "Muon takes whole matrices: state sharded at most, on the device, weights not over wp"


@pytest.mark.parametrize(
    ("text", "preset", "reason"),
    [
        ("strategy=mtp,zero_stage=1,zero_size=0", "deepspeed", None),
        ("strategy=mtp,zero_stage=2,zero_size=0", "deepspeed", MUON),
        ("strategy=mtp,zero_stage=1,zero_size=0,optimizer_offload=1", "deepspeed", MUON),
        ("strategy=isp,wp=4,zero_stage=1,zero_size=0", "internevo", MUON),
    ],
)
def test_muon_takes_whole_matrices(text: str, preset: str, reason: str | None) -> None:
    asked = question(model=DENSE, world_size=16, preset=framework_preset(preset))
    asked = replace(asked, cluster=replace(asked.cluster, host=HOST))
    for optimizer, expected in (("muon", reason), ("adamw", None)):
        one = replace(asked, job=replace(asked.job, optimizer=optimizer))
        found = broken_rules(one, plan_of(parse_plan(text), one, "--plan"))
        assert (MUON in found) == (expected is not None)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("tp=4", None),
        ("tp=4,zero_stage=3", None),
        ("tp=8,zero_stage=1", None),  # two kv heads, each repeated four times
        ("tp=4,pp=2", "the strategy does not run in pipeline stages"),
        ("tp=16", "heads do not divide by tp"),
        ("tp=4,zero_stage=1,zero_size=4", "the framework shards over all data-parallel ranks only"),
        ("tp=4,zero_stage=1,zero_size=3", "zero_size does not divide the data-parallel ranks"),
    ],
)
def test_ulysses_on_sixteen_ranks(text: str, reason: str | None) -> None:
    found = broken(text)
    assert reason in found if reason else not found


def test_its_shards_are_those_of_data_and_sequence_ranks() -> None:
    """zero_size 0 is the whole group that holds the same weights: dp 4 x tp 4."""
    asked = question(model=DENSE, world_size=16, preset=framework_preset("deepspeed"))
    plan = plan_of(parse_plan("strategy=ulysses,tp=4,zero_size=0"), asked, "--plan")
    assert (plan.dp, plan.zero_stage, plan.zero_size) == (4, 1, 16)


def test_the_width_need_not_divide_because_nobody_cuts_it() -> None:
    odd = replace(DENSE.blocks[0], block=replace(BLOCK, mlp=replace(BLOCK.mlp, ffn_hidden=1001)))
    assert not broken("tp=4", model=replace(DENSE, blocks=(odd,)))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("tp=4,ep=8,zero_stage=2", None),
        ("tp=4,ep=1,zero_stage=3", None),
        ("tp=4,ep=8,zero_stage=3", "the strategy has no experts over ep at this ZeRO stage"),
        ("tp=4,ep=2,etp=4", "ep x etp does not divide the stage's ranks, or nothing to cut"),
    ],
)
def test_experts_are_whole_and_over_ep_up_to_stage_2(text: str, reason: str | None) -> None:
    """deepspeed/runtime/engine.py, _validate_zero3_moe_compatibility."""
    found = broken(text, model=EXPERTS)
    assert reason in found if reason else not found


def test_other_frameworks_do_not_run_it() -> None:
    assert broken("tp=4", preset="megatron")[0] == "megatron does not run ulysses"


def test_deepspeed_s_search_finds_its_best() -> None:
    asked = question(model=DENSE, world_size=16, preset=framework_preset("deepspeed"))
    found = search(asked, full_space(asked.model, asked.job), top_k=10**6)
    best = found.best_of_mode["ulysses"].plan
    assert (best.strategy, best.pp) == ("ulysses", 1)
    plans = [answer.plan for answer in found.best if answer.plan.strategy == "ulysses"]
    assert {plan.zero_size for plan in plans} == {1, 16}
    assert {plan.tp for plan in plans} == {2, 4, 8}


@pytest.mark.parametrize(
    ("preset", "runs"),
    [("fsdp", True), ("fsdp-compiled", True), ("megatron-fsdp", True), ("deepspeed", False)],
)
@pytest.mark.parametrize("stage", [2, 3])
def test_only_deepspeed_shards_no_weights_of_stages(preset: str, stage: int, runs: bool) -> None:
    """torchtitan trains with pipeline stages of FSDP2; deepspeed/runtime/pipe/engine.py refuses stages 2 and 3."""
    asked = question(model=DENSE, world_size=16, preset=framework_preset(preset))
    plan = plan_of(parse_plan(f"pp=2,zero_stage={stage}"), asked, "--plan")
    refused = [reason for reason in broken_rules(asked, plan) if "in pipeline stages" in reason]
    assert refused == [] if runs else len(refused) == 1


@pytest.mark.parametrize(
    ("preset", "chunks"),
    [
        # 61 layers on 4 stages divide over no chunks, with their ends counted neither; on 3 (63) they do over 3 and 7
        ("megatron", {4: {1, 2, 4, 8}, 3: {1, 3, 7}, 2: {1, 2, 4, 8}}),
        ("nemo2", {4: {1}, 3: {1, 3, 7}, 2: {1}}),
        ("megatron-2021", {4: {1}, 3: {1}, 2: {1}}),
    ],
)
def test_chunks_that_do_not_divide_are_searched_as_the_framework_lays_them(
    preset: str, chunks: dict[int, set[int]]
) -> None:
    asked = question(
        model=small_model(layers=61), world_size=12, sequences=144, preset=framework_preset(preset)
    )
    space = full_space(asked.model, asked.job)
    plans = [
        enumerate_block(asked.model, asked.job, asked.cluster, space, block).plans for block in space.blocks
    ]
    found = {
        pp: {int(n) for one in plans for n in np.unique(one.vpp[one.layout.pp == pp])} for pp in (2, 3, 4)
    }
    assert found == chunks


def test_chunks_far_from_equal_are_not_tried() -> None:
    """61 layers on 32 chunks are twos and a few ones; 80 on 64 would be twos and ones, a mean of 1.25."""
    assert nearly_equal(61, ints([8, 32, 62, 64])).tolist() == [True, True, True, True]
    assert nearly_equal(80, ints([64, 32])).tolist() == [False, True]


def test_a_typed_plan_may_have_chunks_that_the_search_leaves_out() -> None:
    """8 layers on 2 x 3 chunks, where 2 x 2 and 2 x 4 divide."""
    for preset, runs in (("megatron", True), ("nemo2", False), ("zero-bubble", False)):
        asked = question(
            model=small_model(layers=8), world_size=2, sequences=8, preset=framework_preset(preset)
        )
        plan = plan_of(parse_plan("pp=2,vpp=3,micro_batch=1"), asked, "--plan")
        assert (UNEVEN_CHUNKS not in broken_rules(asked, plan)) is runs


def test_fsdp_s_search_finds_plans_of_sharded_stages() -> None:
    asked = question(model=DENSE, world_size=8, sequences=16, preset=framework_preset("fsdp"))
    found = search(asked, full_space(asked.model, asked.job), top_k=10**6)
    staged = {answer.plan.zero_stage for answer in found.best if answer.plan.pp > 1}
    assert 2 in staged
    # Stages keep what they gathered, so both are one plan, which the search shows once.
    plans = [
        plan_of(parse_plan(f"pp=2,zero_stage={stage},zero_size=4,micro_batch=1"), asked, "--plan")
        for stage in (2, 3)
    ]
    answers = price_plan(asked, PlanTable.of(*plans))
    assert answers[0].step_s == answers[1].step_s
    assert answers[0].needed_bytes == answers[1].needed_bytes


STAGES = "the framework has no pipeline stages"
LAYERS = "the framework does not cut layers over tp"
RANKS = "the framework keeps all experts on every rank"


@pytest.mark.parametrize(
    ("preset", "text", "reason"),
    [
        ("hf-trainer", "strategy=mtp,pp=2", STAGES),
        ("hf-trainer", "strategy=mtp,tp=2", LAYERS),
        ("hf-trainer", "strategy=mtp,ep=8,zero_stage=2", RANKS),
        ("hf-trainer", "strategy=mtp,cp=2", "the framework does not cut sequences over cp"),
        ("xtuner", "strategy=mtp,tp=2", LAYERS),
        ("xtuner", "strategy=ulysses,tp=2,zero_stage=2", None),  # tokens are cut, and no matrix
        ("xtuner-v1", "strategy=mtp,pp=2", STAGES),
        ("xtuner-v1", "strategy=mtp,ep=8,zero_stage=3", None),
        ("composer", "strategy=mtp,ep=8,zero_stage=3", None),
        ("composer", "strategy=mtp,pp=2", STAGES),
        ("fsdp", "strategy=mtp,pp=2,tp=2,ep=4", None),
    ],
)
def test_a_framework_cuts_what_it_has_groups_for(preset: str, text: str, reason: str | None) -> None:
    asked = question(model=EXPERTS, world_size=16, preset=framework_preset(preset))
    found = set(broken_rules(asked, plan_of(parse_plan(text), asked, "--plan")))
    assert found & {STAGES, LAYERS, RANKS, reason} == ({reason} if reason else set())


@pytest.mark.parametrize(
    ("preset", "one"), [("hf-trainer", ("tp", "pp", "ep", "cp")), ("xtuner", ("pp", "ep", "cp"))]
)
def test_no_search_offers_what_the_framework_lacks(preset: str, one: tuple[str, ...]) -> None:
    asked = question(model=EXPERTS, world_size=16, preset=framework_preset(preset))
    found = [answer.plan for answer in search(asked, full_space(asked.model, asked.job), top_k=10**6).best]
    assert found
    assert {getattr(plan, key) for plan in found for key in one} == {1}


@pytest.mark.parametrize(
    ("text", "changes", "kept"),
    [
        ("strategy=mtp,pp=2", {}, False),
        ("strategy=mtp,pp=2", {"data_parallel.overlap_grad_reduce": False}, True),
        ("strategy=isp,wp=2,pp=2", {"data_parallel.overlap_grad_reduce": False}, False),
        (
            "strategy=isp,wp=2,pp=2",
            {"data_parallel.overlap_grad_reduce": False, "data_parallel.overlap_weights": False},
            True,
        ),
    ],
)
def test_zero_bubbles_have_nothing_beside_a_backward(
    text: str, changes: dict[str, bool], *, kept: bool
) -> None:
    preset = framework_preset("internevo").changed(changes)
    asked = question(model=DENSE, world_size=16, preset=preset)
    plan = plan_of(parse_plan(f"{text},schedule=zb-h1"), asked, "--plan")
    reason = "zero-bubble schedules reduce and gather nothing beside a backward"
    assert (reason not in broken_rules(asked, plan)) is kept
    searched = full_space(asked.model, asked.job).schedules
    assert (Schedule.ZB_H1 in searched) is bool(changes)


PARTLY = "the framework shards over all data-parallel ranks only"
KEPT = "the framework cannot keep these layers' activations on the host"
UPDATED = "the framework cannot run so much of this optimizer on the host"


def test_picotron_runs_nothing_again() -> None:
    """picotron/model.py has no checkpoints."""
    texts = ("strategy=mtp,recompute=full", "strategy=mtp")
    for preset, refused in (("picotron", [True, False]), ("nanotron", [False, False])):
        asked = question(model=DENSE, world_size=8, preset=framework_preset(preset))
        plans = [plan_of(parse_plan(text), asked, "--plan") for text in texts]
        found = ["the framework has no such recomputation" in broken_rules(asked, plan) for plan in plans]
        assert found == refused


@pytest.mark.parametrize(
    ("preset", "lacks"),
    [
        ("megatron", set()),
        ("megatron-bridge", set()),
        ("nemo", {PARTLY, UPDATED}),
        ("nanotron", {PARTLY, KEPT, UPDATED}),
        ("megatron-2021", {PARTLY, KEPT, UPDATED}),
        ("zero-bubble", {PARTLY, KEPT, UPDATED}),
        ("aleph-alpha", {PARTLY, KEPT, UPDATED}),
        ("deepspeed", {PARTLY, KEPT}),
    ],
)
def test_what_came_later_is_not_offered_for_what_came_before(preset: str, lacks: set[str]) -> None:
    """Megatron-LM: --num-distributed-optimizer-instances since core 0.10, --optimizer-cpu-offload since 0.12."""
    asked = question(model=DENSE, world_size=16, preset=framework_preset(preset))
    asked = replace(asked, cluster=replace(asked.cluster, host=HOST))
    texts = {
        PARTLY: "zero_stage=1,zero_size=4",
        KEPT: "offloaded_layers=1",
        UPDATED: "zero_stage=1,zero_size=0,optimizer_offload=1",
    }
    plans = {
        reason: plan_of(parse_plan(f"strategy=mtp,{text}"), asked, "--plan") for reason, text in texts.items()
    }
    assert {reason for reason, plan in plans.items() if reason in broken_rules(asked, plan)} == lacks
