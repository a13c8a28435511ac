"""What a framework, a strategy or a schedule demands of a plan, rule by rule; the search keeps the same rules."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ops.recompute import Recompute
from solver.plans import rules
from solver.plans.plan_columns import plan_columns
from solver.plans.plan_table import Plan, PlanTable
from solver.plans.rules import RULES, UNEVEN_CHUNKS, nearly_equal
from solver.plans.schedules import Schedule
from solver.plans.space import enumerate_block, full_space
from solver.problem.price import price_plan
from solver.problem.problem import Problem
from solver.problem.requested_plan import broken_rules, parse_plan, plan_of
from solver.search import search
from spec.arrays import ints
from spec.cluster.cluster import HostSpec
from spec.errors import ConfigError
from spec.frameworks import FrameworkPreset, framework_preset
from spec.model import ModelSpec
from spec.settings.constraints import constraints_of
from tests.solver.questions import experts_model, question, small_model, with_part

MEGATRON = framework_preset("megatron")
HOST = HostSpec(link_bandwidth=50e9, memory_bandwidth=400e9, links=4)
DENSE = small_model(heads=8, kv_heads=2)


EXPERTS = experts_model(DENSE)


def problem(
    preset: str | FrameworkPreset = "megatron",
    *,
    model: ModelSpec = DENSE,
    world_size: int = 8,
    seq_len: int = 1024,
    **job: Any,
) -> Problem:
    """64 sequences or more, on a cluster whose hosts lend memory."""
    preset = framework_preset(preset) if isinstance(preset, str) else preset
    found = question(
        model=model, world_size=world_size, sequences=max(64, 2 * world_size), seq_len=seq_len, preset=preset
    )
    return replace(found, job=replace(found.job, **job), cluster=replace(found.cluster, host=HOST))


def broken(asked: Problem, text: str = "", **changes: Any) -> set[str]:
    """The rules that a plan breaks, of the strategy mtp where it names none."""
    text = text if "strategy" in text else ",".join(filter(None, ["strategy=mtp", text]))
    return set(broken_rules(asked, replace(plan_of(parse_plan(text), asked, "--plan"), **changes)))


def reason_of(keep: Callable[..., object]) -> str:
    return next(rule.reason for rule in RULES if rule.keep is keep)


# ZeRO and optimizers.

PARTLY = "the framework shards over all data-parallel ranks or none"
KEPT = "the framework cannot offload the activations of these layers"
UPDATED = "the framework cannot offload this share of the optimizer"
MUON = "Muon needs whole matrices: ZeRO 1 at most, no optimizer offload, no weights sharded over wp"


@pytest.mark.parametrize(
    ("optimizer", "zero_size", "refused"), [("muon", 4, True), ("muon", 16, False), ("adamw", 4, False)]
)
def test_muon_is_sharded_over_all_data_parallel_ranks(optimizer: str, zero_size: int, refused: bool) -> None:
    """Megatron-LM asserts the distributed optimizer for several instances of it, and Muon without it."""
    asked = problem(world_size=16, optimizer=optimizer)
    assert (PARTLY in broken(asked, f"zero_stage=1,zero_size={zero_size}")) is refused


@pytest.mark.parametrize(
    ("text", "preset", "refused"),
    [
        ("zero_stage=1,zero_size=0", "deepspeed", False),
        ("zero_stage=2,zero_size=0", "deepspeed", True),
        ("zero_stage=1,zero_size=0,optimizer_offload=1", "deepspeed", True),
        ("strategy=isp,wp=4,zero_stage=1,zero_size=0", "internevo", True),
    ],
)
def test_muon_takes_whole_matrices(text: str, preset: str, refused: bool) -> None:
    assert (MUON in broken(problem(preset, world_size=16, optimizer="muon"), text)) is refused
    assert MUON not in broken(problem(preset, world_size=16), text)


@pytest.mark.parametrize(
    ("preset", "lacks"), [("megatron", set()), ("nemo", {PARTLY, UPDATED}), ("deepspeed", {PARTLY, KEPT})]
)
def test_what_came_later_is_not_offered_for_what_came_before(preset: str, lacks: set[str]) -> None:
    """Megatron-LM: --num-distributed-optimizer-instances since core 0.10, --optimizer-cpu-offload since 0.12."""
    asked = problem(preset, world_size=16)
    texts = {
        PARTLY: "zero_stage=1,zero_size=4",
        KEPT: "offloaded_layers=1",
        UPDATED: "zero_stage=1,zero_size=0,optimizer_offload=1",
    }
    assert {reason for reason, text in texts.items() if reason in broken(asked, text)} == lacks


@pytest.mark.parametrize(
    ("preset", "runs"), [("fsdp", True), ("fsdp-compiled", True), ("megatron-fsdp", True), ("deepspeed", False)]
)
@pytest.mark.parametrize("stage", [2, 3])
def test_only_deepspeed_shards_no_weights_of_stages(preset: str, stage: int, runs: bool) -> None:
    """torchtitan trains with pipeline stages of FSDP2; deepspeed/runtime/pipe/engine.py refuses stages 2 and 3."""
    reasons = broken(problem(preset, world_size=16), f"pp=2,zero_stage={stage}")
    assert len([reason for reason in reasons if "in pipeline stages" in reason]) == (not runs)


def test_fsdp_s_search_finds_plans_of_sharded_stages() -> None:
    asked = question(model=DENSE, world_size=8, sequences=16, preset=framework_preset("fsdp"))
    found = search(asked, full_space(asked.model, asked.job, constraints_of({"fix": {"pp": 2}})), top_k=10**6)
    assert 2 in {answer.plan.zero_stage for answer in found.best}
    # Stages keep what they gathered, so both are one plan, which the search shows once.
    plans = [
        plan_of(parse_plan(f"pp=2,zero_stage={stage},zero_size=4,micro_batch=1"), asked, "--plan") for stage in (2, 3)
    ]
    two, three = price_plan(asked, PlanTable.of(*plans))
    assert (two.step_s, two.needed_bytes) == (three.step_s, three.needed_bytes)


# Strategies, heads, and what a framework has groups for.


@pytest.mark.parametrize(
    ("text", "model", "reason"),
    [
        ("tp=4", DENSE, None),
        ("tp=8,zero_stage=1", DENSE, None),  # two kv heads, each repeated four times
        ("tp=4,pp=2", DENSE, "the strategy does not run in pipeline stages"),
        ("tp=16", DENSE, "heads do not divide by tp"),
        ("tp=4,zero_stage=1,zero_size=4", DENSE, PARTLY),
        ("tp=4,zero_stage=1,zero_size=3", DENSE, "zero_size does not divide the data-parallel ranks"),
        # Experts are whole, and over ep up to stage 2: deepspeed/runtime/engine.py, _validate_zero3_moe_compatibility.
        ("tp=4,ep=8,zero_stage=2", EXPERTS, None),
        ("tp=4,ep=1,zero_stage=3", EXPERTS, None),
        ("tp=4,ep=8,zero_stage=3", EXPERTS, "the strategy does not support ep at this ZeRO stage"),
        ("tp=4,ep=2,etp=4", EXPERTS, "ep x etp does not divide the stage's ranks, or there are no experts to shard"),
    ],
)
def test_ulysses_on_sixteen_ranks(text: str, model: ModelSpec, reason: str | None) -> None:
    reasons = broken(problem("deepspeed", model=model, world_size=16), f"strategy=ulysses,{text}")
    assert reason in reasons if reason else not reasons


def test_its_shards_are_those_of_data_and_sequence_ranks() -> None:
    """zero_size 0 is the whole group that holds the same weights: dp 4 x tp 4."""
    plan = plan_of(parse_plan("strategy=ulysses,tp=4,zero_size=0"), problem("deepspeed", world_size=16), "--plan")
    assert (plan.dp, plan.zero_stage, plan.zero_size) == (4, 1, 16)


def test_the_width_need_not_divide_because_nobody_cuts_it() -> None:
    asked = problem("deepspeed", model=with_part(DENSE, "mlp", ffn_hidden=1001), world_size=16)
    assert not broken(asked, "strategy=ulysses,tp=4")


def test_other_frameworks_do_not_run_it() -> None:
    asked = problem("megatron", world_size=16)
    plan = plan_of(parse_plan("strategy=ulysses,tp=4"), asked, "--plan")
    assert broken_rules(asked, plan)[0] == "megatron does not run ulysses"


def test_deepspeed_s_search_finds_its_best() -> None:
    asked = question(model=DENSE, world_size=16, preset=framework_preset("deepspeed"))
    found = search(asked, full_space(asked.model, asked.job), top_k=10**6)
    best = found.best_of_mode["ulysses"].plan
    assert (best.strategy, best.pp) == ("ulysses", 1)
    plans = [answer.plan for answer in found.best if answer.plan.strategy == "ulysses"]
    assert {plan.zero_size for plan in plans} == {1, 16}
    assert {plan.tp for plan in plans} == {2, 4, 8}


@pytest.mark.parametrize(
    ("preset", "strategy", "tp", "kv_heads", "refused"),
    [
        ("megatron", "fsp", 4, 4, False),
        ("megatron", "fsp", 8, 4, True),  # Megatron-LM replicates no key and value heads here
        (MEGATRON.changed({"tensor_parallel.kv_replication": True}), "fsp", 8, 4, False),
        ("internevo", "isp", 8, 4, False),  # two ranks share each of them
        ("internevo", "isp", 8, 3, True),  # eight ranks cannot share three evenly
    ],
)
def test_key_and_value_heads_divide_or_are_shared_evenly(
    preset: str | FrameworkPreset, strategy: str, tp: int, kv_heads: int, refused: bool
) -> None:
    asked = problem(preset, model=small_model(kv_heads=kv_heads, heads=24, hidden=1536))
    assert ("kv heads do not divide by tp" in broken(asked, f"strategy={strategy},tp={tp}")) is refused


CUTS = "a layer of the model does not support this kind of context parallelism"
EXCHANGES = "sparse attention needs whole sequences, and the strategy exchanges tokens for heads"


@pytest.mark.parametrize(
    ("preset", "text", "refused"),
    [
        ("megatron", "tp=2", False),
        ("megatron", "cp=2", True),
        ("internevo", "strategy=isp,tp=2,wp=2", True),  # exchanges tokens for heads
        ("internevo", "strategy=isp,wp=2", False),
    ],
)
def test_a_selection_of_keys_needs_whole_sequences(preset: str, text: str, refused: bool) -> None:
    for index_topk in (0, 256):
        sparse = with_part(small_model(), "mixer", index_topk=index_topk)
        reasons = broken(problem(preset, model=sparse), text)
        assert bool(reasons & {CUTS, EXCHANGES}) is (refused and index_topk > 0)


STAGES = "the framework has no pipeline stages"
LAYERS = "the framework has no tensor parallelism"
RANKS = "the framework has no expert parallelism"
CONTEXT = "the framework has no context parallelism, or not of this kind"
REPLICAS = "the framework shards what tp and cp leave on a rank over other ranks as well"
CONTEXT_SHARDS = "cp does not divide the ranks of a ZeRO group"
EXPERT_SHARDS = "ep does not divide the ranks of tp and of a ZeRO group"


@pytest.mark.parametrize(
    ("preset", "text", "reason"),
    [
        ("hf-trainer", "pp=2", STAGES),
        ("hf-trainer", "tp=2", LAYERS),
        ("hf-trainer", "ep=8,zero_stage=2", RANKS),
        ("hf-trainer", "cp=2", CONTEXT),
        ("accelerate", "pp=2", STAGES),
        ("accelerate", "ep=8", RANKS),
        ("accelerate", "tp=2,zero_stage=0", REPLICAS),
        ("accelerate", "tp=2,zero_stage=2", None),
        ("accelerate", "tp=16,zero_stage=0", REPLICAS),
        ("accelerate", "cp=2,zero_stage=2,zero_size=2", REPLICAS),
        ("accelerate", "cp=2,zero_stage=2,zero_size=4", None),
        ("torchtitan", "cp=2,zero_stage=3", CONTEXT),  # by ring, which other frameworks have
        ("torchtitan", "tp=2,zero_stage=0", None),
        ("torchtitan", "tp=2,ep=4,zero_stage=2,zero_size=2", None),
        ("torchtitan", "tp=2,ep=8,zero_stage=2,zero_size=2", EXPERT_SHARDS),
        ("fsdp", "tp=2,zero_stage=0", None),
        ("xtuner", "tp=2", LAYERS),
        ("xtuner", "strategy=ulysses,tp=2,zero_stage=2", None),  # tokens are cut, and no matrix
        ("xtuner-v1", "ep=8,zero_stage=3", None),
        ("fsdp", "pp=2,tp=2,ep=4", None),
    ],
)
def test_a_framework_cuts_what_it_has_groups_for(preset: str, text: str, reason: str | None) -> None:
    reasons = broken(problem(preset, model=EXPERTS, world_size=16), text)
    known = {STAGES, LAYERS, RANKS, CONTEXT, REPLICAS, CONTEXT_SHARDS, EXPERT_SHARDS}
    assert reasons & known == ({reason} if reason else set())


def test_a_zero_group_holds_whole_cp_groups_where_the_framework_says_so() -> None:
    """accelerate's and torchtitan's mesh of dp_shard x cp ranks."""
    for preset, refused in (("accelerate", True), ("torchtitan", True), ("fsdp", False)):
        reasons = broken(problem(preset, model=EXPERTS, world_size=16), "cp=4,zero_stage=2,zero_size=2")
        assert (CONTEXT_SHARDS in reasons) is refused


# Schedules, stages and chunks.

ORDERED, TURNING, COMPILED, WIDE = map(
    reason_of,
    (rules.chunks_fit_order, rules.two_chunks_fit, rules.autograd_splits, rules.high_precision_layers_fit_stage),
)
CHUNKED = {ORDERED, TURNING, UNEVEN_CHUNKS}


@pytest.mark.parametrize(("layers", "refused"), [(7, True), (8, False)])
def test_every_stage_has_a_layer(layers: int, refused: bool) -> None:
    reasons = broken(problem(model=small_model(layers=layers)), "pp=8")
    assert ("more pipeline stages than layers" in reasons) is refused


@pytest.mark.parametrize(("text", "refused"), [("pp=1", True), ("pp=2", False), ("pp=2,vpp=2", True)])
def test_zero_bubble_schedules_want_several_stages_of_one_chunk(text: str, refused: bool) -> None:
    assert (ORDERED in broken(problem("zero-bubble"), text, schedule=Schedule.ZB_H1)) is refused


@pytest.mark.parametrize(
    ("schedule", "fitting"),
    [
        (Schedule.ONE_F_ONE_B, {"pp=1", "pp=2", "pp=2,vpp=2", "pp=2,vpp=3"}),
        (Schedule.GPIPE, {"pp=2"}),
        (Schedule.LOOPED_BFS, {"pp=2,vpp=2", "pp=2,vpp=3"}),
        (Schedule.ZB_INTERLEAVED, {"pp=2,vpp=2", "pp=2,vpp=3"}),
        (Schedule.ZB_V, {"pp=2,vpp=2"}),
    ],
)
def test_schedules_of_pytorch_want_their_number_of_chunks(schedule: Schedule, fitting: set[str]) -> None:
    """torchtitan distributed/pipeline_parallel.py, _get_pipeline_metadata: one for GPipe, at least two where
    a schedule is of several; schedules.py, ScheduleZBVZeroBubble: exactly two."""
    asked = problem("fsdp", model=small_model(layers=12))
    texts = ("pp=1", "pp=2", "pp=2,vpp=2", "pp=2,vpp=3")
    assert {text for text in texts if not CHUNKED & broken(asked, text, schedule=schedule)} == fitting


@pytest.mark.parametrize("schedule", [Schedule.ZB_V, Schedule.ZB_INTERLEAVED])
def test_compiled_backwards_are_not_split(schedule: Schedule) -> None:
    def refused(preset: str, schedule: Schedule, more: str = "") -> bool:
        return COMPILED in broken(problem(preset), f"pp=2,vpp=2{more}", schedule=schedule)

    assert refused("torchtitan", schedule)
    assert not refused("fsdp", schedule, ",zero_stage=0")
    assert refused("fsdp", schedule, ",zero_stage=2")
    assert not refused("torchtitan", Schedule.LOOPED_BFS)
    assert refused("fsdp", schedule, ",zero_stage=0,recompute=full")
    assert not refused("fsdp", Schedule.LOOPED_BFS, ",recompute=full")


@pytest.mark.parametrize(
    ("preset", "schedules"),
    [
        ("fsdp", {"1f1b", "gpipe", "looped-bfs", "zb-interleaved", "zb-v"}),
        ("torchtitan", {"1f1b", "gpipe", "looped-bfs"}),
        ("hf-trainer", {"1f1b"}),
    ],
)
def test_schedules_that_are_searched(preset: str, schedules: set[str]) -> None:
    asked = problem(preset)
    assert set(full_space(asked.model, asked.job).schedules) == schedules


OVERLAPS = "data_parallel.overlap_grad_reduce"


@pytest.mark.parametrize(
    ("text", "changes", "refused"),
    [
        ("pp=2", {}, True),
        ("pp=2", {OVERLAPS: False}, False),
        ("strategy=isp,wp=2,pp=2", {OVERLAPS: False}, True),
        ("strategy=isp,wp=2,pp=2", {OVERLAPS: False, "data_parallel.overlap_weights": False}, False),
    ],
)
def test_zero_bubbles_have_nothing_beside_a_backward(text: str, changes: dict[str, bool], refused: bool) -> None:
    asked = problem(framework_preset("internevo").changed(changes), world_size=16)
    reasons = broken(asked, f"{text},schedule=zb-h1")
    assert (
        "zero-bubble schedules need reductions and weight gathers that do not overlap a backward" in reasons
    ) is refused
    assert (Schedule.ZB_H1 in full_space(asked.model, asked.job).schedules) is bool(changes)


@pytest.mark.parametrize(("layers", "refused"), [(1, True), (2, False), (3, False)])
def test_dual_pipe_lays_a_layer_or_an_end_on_each_virtual_stage(layers: int, refused: bool) -> None:
    """Four virtual stages: two layers, embedding and head."""
    asked = problem("hai-llm", model=small_model(layers=layers))
    assert (TURNING in broken(asked, "pp=4", schedule=Schedule.DUALPIPE)) is refused


@pytest.mark.parametrize(
    ("text", "refused"),
    [("pp=1,vpp=2", True), ("pp=2,vpp=2", False), ("pp=1", False), ("pp=4,vpp=2,micro_batch=16", True)],
)
def test_chunks_want_stages_and_rounds_of_micro_batches(text: str, refused: bool) -> None:
    """Two micro-batches on four stages make no round."""
    assert (UNEVEN_CHUNKS in broken(problem(), text)) is refused


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
    asked = question(model=small_model(layers=61), world_size=12, sequences=144, preset=framework_preset(preset))
    space = full_space(asked.model, asked.job)
    plans = [enumerate_block(asked.model, asked.job, asked.cluster, space, block).plans for block in space.blocks]
    tried = {pp: {int(n) for table in plans for n in np.unique(table.vpp[table.layout.pp == pp])} for pp in (2, 3, 4)}
    assert tried == chunks


@pytest.mark.parametrize(
    ("layers", "chunks", "near"),
    [
        (126, [16], [True]),
        (5, [4], [False]),
        (13, [8], [True]),
        (61, [8, 32, 62, 64], [True, True, True, True]),
        (80, [64, 32], [False, True]),
    ],
)
def test_chunks_are_nearly_equal_up_to_a_quarter_beyond_the_mean(
    layers: int, chunks: list[int], near: list[bool]
) -> None:
    """8 layers where 126 / 16 are the mean, two where 5 / 4 and 13 / 8 are; 61 on 32 chunks are twos and a few
    ones, 80 on 64 would be twos and ones, a mean of 1.25."""
    assert nearly_equal(layers, ints(chunks)).tolist() == near


@pytest.mark.parametrize(
    ("layers", "vpp", "refused"), [(16, 2, False), (16, 3, False), (16, 5, True), (13, 7, False), (13, 4, True)]
)
def test_equal_chunks_are_tried_alone_where_there_are_some(layers: int, vpp: int, refused: bool) -> None:
    """Megatron-LM counts layers, with the loss or with both ends: 16 over 4 and 18 over 6 chunks, 14 over 14;
    13 to 15 make no 8, nearly equal as they are."""
    asked = problem(model=small_model(layers=layers))
    plans = PlanTable.of(Plan(strategy="mtp", preset="megatron", pp=2, vpp=vpp, dp=4, num_micro=16))
    columns = plan_columns(asked.model, asked.job, asked.cluster, plans)
    assert rules.chunks_worth_searching(columns).tolist() == [not refused]


@pytest.mark.parametrize(("preset", "runs"), [("megatron", True), ("nemo2", False), ("zero-bubble", False)])
def test_a_typed_plan_may_have_chunks_that_the_search_leaves_out(preset: str, runs: bool) -> None:
    """8 layers on 2 x 3 chunks, where 2 x 2 and 2 x 4 divide."""
    assert (UNEVEN_CHUNKS not in broken(problem(preset), "pp=2,vpp=3,micro_batch=1")) is runs


@pytest.mark.parametrize(
    ("ends", "pp", "refused"), [((2, 0), 4, False), ((3, 0), 4, True), ((0, 3), 4, True), ((4, 4), 2, False)]
)
def test_wide_layers_are_no_more_than_a_stage_s(ends: tuple[int, int], pp: int, refused: bool) -> None:
    """8 layers: two a stage of four, four of two."""
    asked = problem()
    formats = replace(asked.job.precision, high_precision_first_layers=ends[0], high_precision_last_layers=ends[1])
    assert (WIDE in broken(problem(precision=formats), f"pp={pp}")) is refused


# The experts' exchange.

BESIDE, BETWEEN = map(reason_of, (rules.exchange_overlaps, rules.tokens_fit_queues))
SIZES = "DeepEP does not support so many expert-parallel ranks"


@pytest.mark.parametrize(
    ("text", "changes", "refused"),
    [
        ("ep=4,pp=2", {}, True),
        ("ep=4,pp=2,vpp=2", {}, False),
        ("ep=4", {"recompute": Recompute.FULL}, True),
        ("ep=4", {"recompute_modules": ("moe",)}, True),
        ("ep=4", {"recompute_modules": ("moe_act",)}, False),
    ],
)
def test_an_exchange_beside_another_micro_batch_wants_one(text: str, changes: dict[str, object], refused: bool) -> None:
    """transformer_config.py, overlap_moe_expert_parallel_comm: virtual stages where there are stages, nothing
    whole again."""
    asked = problem(model=EXPERTS, world_size=16)
    beside = problem(model=EXPERTS, world_size=16, overlap_expert_a2a=True)
    assert (BESIDE in broken(beside, text, **changes)) is refused
    assert BESIDE not in broken(asked, text, **changes)


@pytest.mark.parametrize(
    ("seq_len", "text", "dispatcher", "refused"),
    [
        (21844, "ep=16", "hybridep", False),
        (21845, "ep=16", "hybridep", True),
        (21848, "ep=8", "hybridep", False),
        (21848, "ep=16", "deepep", False),
        (21848, "ep=16,strategy=fsp,tp=4", "hybridep", False),
    ],
)
def test_hybridep_queues_so_many_tokens_between_domains(
    seq_len: int, text: str, dispatcher: str, refused: bool
) -> None:
    """3 requests a token and one fit below 65,536: 21,844 tokens."""
    asked = problem(
        model=experts_model(DENSE, num_experts=16), world_size=16, seq_len=seq_len, moe_dispatcher=dispatcher
    )
    assert (BETWEEN in broken(asked, text)) is refused


@pytest.mark.parametrize(
    ("text", "dispatcher", "refused"),
    [
        *((f"ep={ranks}", "deepep", False) for ranks in (2, 4, 8, 16, 32, 64, 160)),
        ("ep=40", "deepep", True),
        ("ep=40", "hybridep", False),
        ("ep=160,etp=2,strategy=fsp,tp=2", "deepep", True),
        ("ep=80,etp=2,strategy=fsp,tp=2", "deepep", False),
    ],
)
def test_deepep_has_settings_for_some_groups_of_experts(text: str, dispatcher: str, refused: bool) -> None:
    """deep_ep/buffers/legacy.py: 160 ranks are among them, 40 and 320 are not; the group is that of ep x etp."""
    asked = problem(model=experts_model(DENSE, num_experts=320), world_size=320, moe_dispatcher=dispatcher)
    assert (SIZES in broken(asked, text)) is refused


# CUDA graphs, recomputation, and the host's memory (Megatron-Core, transformer_config.py, __post_init__).

GRAPHS, AGAIN, PARTS = map(reason_of, (rules.graphs_capture, rules.modules_recompute, rules.modules_offload))
ROUTER = {"moe_router", "moe_preprocess"}
WHOLE = {"full_iteration"}
BLOCKS = {"recompute": Recompute.BLOCK, "num_recompute_layers": 1}
FULL = {"recompute": Recompute.FULL}


@pytest.mark.parametrize(("preset", "refused"), [("torchtitan", True), ("accelerate", True), ("fsdp", False)])
def test_some_frameworks_recompute_every_layer_or_none(preset: str, refused: bool) -> None:
    reason = reason_of(rules.framework_recomputes)
    assert (reason in broken(problem(preset), **BLOCKS)) is refused
    assert reason not in broken(problem(preset), **FULL)


@pytest.mark.parametrize(
    ("scopes", "changes", "refused"),
    [
        (ROUTER, {}, False),
        (ROUTER, {"offloaded_layers": 2}, True),
        (WHOLE, {"offloaded_layers": 2}, False),
        (ROUTER, FULL, True),
        (ROUTER, BLOCKS, True),
        (WHOLE, FULL, False),
        ({"attn"}, {"recompute_modules": ("moe",)}, False),
        (ROUTER, {"recompute_modules": ("moe",)}, True),
        (ROUTER, {"recompute_modules": ("moe_act",)}, False),
    ],
)
def test_graphs_of_parts_hold_layers_where_they_are(
    scopes: set[str], changes: dict[str, object], refused: bool
) -> None:
    assert (GRAPHS in broken(problem(cuda_graphs=frozenset(scopes)), **changes)) is refused


@pytest.mark.parametrize(
    ("module", "scaling", "job", "refused"),
    [
        ("moe_act", "delayed", {}, True),
        ("layernorm", "delayed", {}, True),
        ("mla_up_proj", "delayed", {}, False),
        ("moe_act", "current", {}, False),
        ("shared_experts", "", {"overlap_shared_experts": True}, True),
        ("shared_experts", "", {}, False),
    ],
)
def test_parts_that_cannot_be_made_again(module: str, scaling: str, job: dict[str, object], refused: bool) -> None:
    """No norm or activation under delayed scaling, no shared experts beside which the exchange runs."""
    formats = problem().job.precision
    formats = replace(formats, scaling=scaling) if scaling else formats
    asked = problem(precision=formats, **job)
    assert (AGAIN in broken(asked, recompute_modules=(module,))) is refused


CORE = {"offload_modules": ("core_attn",)}
INPUTS = {"offload_modules": ("layer_input",)}


def on_host(*modules: str, again: str = "") -> dict[str, object]:
    return {"offload_modules": modules, "recompute_modules": (again,) if again else ()}


@pytest.mark.parametrize(
    ("preset", "scopes", "changes", "refused"),
    [
        ("megatron", (), CORE, False),
        ("megatron-bridge", (), on_host("core_attn", "attn_proj", "expert_fc1", "moe_act"), False),
        ("megatron", (), on_host("attn_proj"), True),
        ("megatron", (), on_host("fused_group_mlp"), False),
        ("megatron", (), on_host("fused_group_mlp", "moe_act"), True),
        ("megatron", (), on_host("moe_act", again="moe"), True),
        ("megatron", (), on_host("moe_act", again="moe_act"), False),
        ("megatron", (), CORE | {"offloaded_layers": 2}, True),
        ("megatron", (), CORE | FULL, True),
        ("megatron", (), CORE | {"recompute": Recompute.SELECTIVE}, False),
        ("megatron", ("attn",), CORE, False),
        ("megatron", ("attn",), on_host("attn_norm"), True),
        ("megatron", ("moe_router",), on_host("attn_norm"), False),
        ("megatron", ("moe_router",), on_host("mlp_norm"), True),
        ("megatron", ("moe",), CORE, True),
        ("nemo2", (), CORE, True),
        ("fsdp", (), INPUTS | FULL, False),
        ("fsdp", (), INPUTS | BLOCKS, False),
        ("fsdp", (), INPUTS, True),
        ("megatron", (), INPUTS | FULL, True),
    ],
)
def test_parts_on_the_host_beside_the_rest(
    preset: str, scopes: tuple[str, ...], changes: dict[str, object], refused: bool
) -> None:
    """fine_grained_activation_offloading."""
    assert (PARTS in broken(problem(preset, cuda_graphs=frozenset(scopes)), **changes)) is refused


def test_a_host_is_needed() -> None:
    asked = problem()
    written = parse_plan("strategy=mtp,offload_modules=core_attn+attn_proj")
    assert written.offload_modules == ("core_attn", "attn_proj")
    with pytest.raises(ConfigError, match="host"):
        plan_of(written, replace(asked, cluster=replace(asked.cluster, host=None)), "--plan")
    plan = plan_of(written, asked, "--plan")
    assert plan.offload_modules == ("core_attn", "attn_proj")
    assert plan.label().endswith("offload-core_attn+attn_proj")
    with pytest.raises(ConfigError, match="attn_projection"):
        parse_plan("offload_modules=attn_projection")
