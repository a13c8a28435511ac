"""Stages cut by what blocks cost."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops.recompute import Recompute
from solver.estimate import estimate_memory
from solver.pipeline.simulation import ChunkTimes, task_graph
from solver.pipeline.spans import P2PTimes, stage_spans_s
from solver.pipeline.stages import (
    PassTimes,
    block_cost,
    layers_per_stage,
    modules_per_stage,
    stage_table,
    stages_by_cost,
)
from solver.plans.plan_table import Plan, PlanTable
from solver.plans.schedules import Schedule
from solver.problem.price import price_plan
from solver.problem.requested_plan import broken_rules, parse_plan, plan_of
from spec.arrays import floats
from spec.errors import ConfigError
from spec.frameworks import framework_preset
from spec.mixers.attention import AttentionKind, AttentionSpec
from spec.model import BlockRun, BlockSpec, MlpSpec, ModelSpec
from spec.parameters import block_parameters
from spec.readers.read_config import read_config
from tests.solver.pipeline.plain_replay import run
from tests.solver.questions import ROOT, question, small_model, with_part


def model(layers: int, hidden: int, ffn: int, vocab: int) -> ModelSpec:
    attention = AttentionSpec(
        kind=AttentionKind.MHA, num_heads=32, num_kv_heads=32, qk_dim=hidden // 32, v_dim=hidden // 32
    )
    block = BlockSpec(mixer=attention, mlp=MlpSpec(ffn_hidden=ffn, gated=True))
    return ModelSpec(name="m", hidden=hidden, vocab=vocab, blocks=(BlockRun(block=block, count=layers),), source="")


SMALL = model(16, 2048, 8192, 131072)  # its head costs as much as four layers: 20 units
LARGE = model(32, 4096, 14336, 131072)  # 2.2069 layers


@pytest.mark.parametrize(
    ("one", "pp", "layers", "head"),
    [
        (SMALL, 2, [11, 5], 1),  # past 10 of 20 units
        (SMALL, 4, [6, 5, 5, 0], 3),  # past 5, 10 and 15
        (SMALL, 8, [3, 3, 2, 3, 2, 3, 0, 0], 6),  # past 2.5, 5, ...; the head passes 17.5
        (LARGE, 4, [9, 9, 8, 6], 3),  # past 8.55, 17.1, 25.66
        (LARGE, 16, [3, *[2] * 6, 3, *[2] * 6, 2, 0], 14),
    ],
)
def test_stages_end_behind_the_block_that_passes_their_share(
    one: ModelSpec, pp: int, layers: list[int], head: int
) -> None:
    """nanotron models/base.py, build_model, by hand."""
    dealt = stages_by_cost(one, pp)
    assert (list(dealt.layers), dealt.head_stage) == (layers, head)


def test_a_sum_equal_to_the_share_does_not_end_a_stage() -> None:
    """31 of LARGE's layers cost 29/32 of it, to the element."""
    assert stages_by_cost(LARGE, 32).layers == (2, *[1] * 13, 2, *[1] * 13, 2, 0, 0, 0)


@given(layers=st.integers(1, 60), pp=st.integers(1, 32))
def test_every_layer_and_the_head_are_on_one_stage(layers: int, pp: int) -> None:
    dealt = stages_by_cost(model(layers, 256, 512, 4096), pp)
    assert sum(dealt.layers) == layers
    assert not any(dealt.layers[dealt.head_stage + 1 :])
    table = stage_table(
        model(layers, 256, 512, 4096),
        PlanTable.of(Plan(strategy="mtp", preset="nanotron", pp=pp, num_micro=64)),
        rule="by_cost",
    )
    assert np.repeat(table.head, table.count).tolist().index(True) == dealt.head_stage


def test_a_block_without_a_half_costs_the_other_alone() -> None:
    """4 n d h of attention whatever num_key_value_heads, 3 f h of a gated network (nanotron, get_block_compute_costs)."""
    whole = SMALL.blocks[0].block
    for one in (SMALL, with_part(SMALL, "mixer", kind=AttentionKind.GQA, num_kv_heads=8)):
        assert block_cost(one.blocks[0].block, 2048) == 4 * 2048**2 + 3 * 8192 * 2048
    assert block_cost(replace(whole, mlp=None), 2048) == 4 * 2048**2
    assert block_cost(replace(whole, mixer=None), 2048) == 3 * 8192 * 2048


# Layers on stages, and what a stage holds at its peak.


@pytest.mark.published
def test_llama3_405b_on_16_stages_is_lighter_at_both_ends() -> None:
    """arXiv 2407.21783 sec. 3.3.2: 126 layers, the first and the last stage hold one less."""
    assert layers_per_stage(126, 16).tolist() == [7, *[8] * 14, 7]


@pytest.mark.parametrize(("layers", "dealt"), [(7, [2, 2, 2, 1]), (6, [1, 2, 2, 1]), (5, [1, 1, 2, 1])])
def test_the_stage_of_the_head_gives_up_a_layer_first(layers: int, dealt: list[int]) -> None:
    """One layer short is Megatron-LM's --account-for-loss-in-pipeline-split; then that of the embedding, then
    those behind it.
    """
    assert layers_per_stage(layers, 4).tolist() == dealt


@given(num_layers=st.integers(1, 200), pp=st.integers(1, 64))
def test_every_layer_is_on_one_stage(num_layers: int, pp: int) -> None:
    pp = min(pp, num_layers)
    layers, modules = layers_per_stage(num_layers, pp), modules_per_stage(num_layers, pp)
    assert layers.sum() == modules.sum() == num_layers
    assert layers.max() - layers.min() <= 1
    assert modules.min() >= 0


def test_modules_dealt_evenly_take_layers_from_the_stages_with_edges() -> None:
    """60 layers on 16 stages: 63 modules are 15 fours and a three, which holds one layer, norm and head."""
    assert modules_per_stage(60, 16).tolist() == [3, *[4] * 14, 1]
    assert modules_per_stage(40, 2).tolist() == [21, 19]


def test_ends_count_as_a_layer_each() -> None:
    """torchtitan: 126 layers on 16 stages are 128 modules; of 82 on four two are over, which the first stages take."""
    assert modules_per_stage(126, 16, behind=1).tolist() == [7, *[8] * 14, 7]
    assert modules_per_stage(80, 4, behind=1).tolist() == [20, 21, 20, 19]
    table = stage_table(small_model(layers=8), PlanTable.of(plan(4)), rule="first_last")
    assert np.repeat(table.layers[0], table.count).tolist() == [2, 3, 2, 1]


def test_a_preset_that_deals_edges_is_obeyed() -> None:
    table = stage_table(small_model(layers=9), PlanTable.of(plan(4)), rule="with_embedding")
    assert np.repeat(table.layers[0], table.count).tolist() == [2, 3, 3, 1]


def plan(pp: int, num_micro: int = 8) -> Plan:
    return Plan(strategy="mtp", preset="megatron", pp=pp, num_micro=num_micro)


@given(layers=st.integers(1, 40), depths=st.lists(st.integers(1, 8), min_size=1, max_size=5))
def test_stage_rows_hold_every_stage_layer_embedding_and_head_once(layers: int, depths: list[int]) -> None:
    depths = [min(depth, layers) for depth in depths]
    for depth in depths:
        table = stage_table(small_model(layers=layers), PlanTable.of(plan(depth)))
        assert table.count.sum() == depth
        assert (table.count * table.layers[0]).sum() == layers
        assert table.embedding.tolist().count(True) == 1
        assert table.head.tolist().count(True) == 1
        assert table.position[0] == 0


def test_dense_first_layers_stand_on_the_first_stages() -> None:
    """DeepSeek-V3: 3 dense layers, then experts, then the prediction block with the head."""
    model = read_config(ROOT / "configs" / "671B_deepseek_v3.toml").model
    table = stage_table(model, PlanTable.of(plan(16, 32)))
    dense, experts, extra = (np.repeat(column, table.count) for column in table.layers)
    assert dense.tolist() == [3, *[0] * 15]
    assert experts.sum() == 58
    assert extra.tolist() == [*[0] * 15, 1]
    assert (dense + experts).tolist() == [*[4] * 15, 1]


@pytest.mark.parametrize(("stages", "last"), [(4, 13), (8, 5), (16, 1), (32, 0)])
def test_a_predicting_last_stage_is_spared_layers(stages: int, last: int) -> None:
    """Megatron-Bridge, deepseek_v3.py, layout_map, and its Et|(tt|)*30mL for 32."""
    layers = layers_per_stage(61, stages, predicts=True)
    assert layers.sum() == 61
    assert layers[-1] == last
    assert layers[0] == (1 if stages == 32 else layers[1])


def test_the_first_layers_of_each_chunk_are_recomputed() -> None:
    """Recompute.BLOCK: as many layers of every chunk as asked, by block kind in model order."""
    model = read_config(ROOT / "configs" / "671B_deepseek_v3.toml").model
    asked = replace(plan(16, 32), recompute=Recompute.BLOCK, num_recompute_layers=2)
    table = stage_table(model, PlanTable.of(asked))
    dense, experts, extra, dense_rest, experts_rest, extra_rest = (
        np.repeat(column, table.count) for column in table.layers
    )
    assert dense.tolist() == [2, *[0] * 15]
    assert dense_rest.tolist() == [1, *[0] * 15]
    assert (experts + extra)[1:].tolist() == [2] * 15
    assert (dense + experts + extra + dense_rest + experts_rest + extra_rest).sum() == 62
    chunked = replace(asked, pp=2, vpp=4, num_recompute_layers=1)
    assert stage_table(small_model(), PlanTable.of(chunked)).layers[0].tolist() == [4, 4]


def test_layers_to_recompute_are_the_first_of_a_chunk_whatever_their_kind() -> None:
    """Three of one layer of the first kind and seven of the second: 1 and 2, then 0 and 5."""
    model = small_model(layers=8)
    first = model.blocks[0]
    model = replace(model, blocks=(replace(first, count=1), replace(first, count=7)))
    plan = Plan(strategy="mtp", preset="megatron", recompute=Recompute.BLOCK, num_recompute_layers=3)
    assert [int(kind[0]) for kind in stage_table(model, PlanTable.of(plan)).layers] == [1, 2, 0, 5]


# What each chunk of an interleaved stage holds and what its messages cost.


def chunked_plan(**changes: object) -> Plan:
    return replace(Plan(strategy="mtp", preset="megatron", pp=4, vpp=2, num_micro=8), **changes)


def test_the_embedding_is_in_the_first_chunk_and_the_head_in_the_last() -> None:
    """8 layers on 4 x 2: stage s holds layers s and s + 4 (arXiv 2104.04473 sec. 2.2.2)."""
    table = stage_table(small_model(layers=8), PlanTable.of(chunked_plan()))
    chunks = table.chunks
    assert table.position.tolist() == [0, 1, 3]
    assert chunks.stage.tolist() == [0, 0, 1, 1, 2, 2]
    assert chunks.embedding.tolist() == [True, False, False, False, False, False]
    assert chunks.head.tolist() == [False, False, False, False, False, True]
    assert chunks.layers[0].tolist() == [1] * 6


def test_layers_that_are_counted_with_embedding_and_loss_leave_chunks_without_layers() -> None:
    """6 layers, embedding and loss on 4 x 2 (--account-for-embedding-in-pipeline-split and -loss-)."""
    table = stage_table(small_model(layers=6), PlanTable.of(chunked_plan()))
    assert table.chunks.layers[0].tolist() == [0, 1, 1, 1, 1, 0]
    assert table.layers[0].tolist() == [1, 2, 1]


def test_first_layers_of_another_kind_lie_in_first_chunks() -> None:
    """Layers 0 and 1 of 8 on 2 x 2 are the first chunk of stage 0; the stage's second chunk has others."""
    model = small_model(layers=2)
    other = small_model(layers=6, hidden=1024)
    mixed = replace(model, blocks=(*model.blocks, *other.blocks))
    table = stage_table(mixed, PlanTable.of(chunked_plan(pp=2)))
    assert [kind.tolist() for kind in table.chunks.layers] == [[2, 0, 0, 0], [0, 2, 2, 2]]
    assert [kind.tolist() for kind in table.layers] == [[2, 0], [2, 4]]


def test_where_in_a_stage_its_work_lies_decides_the_step() -> None:
    """Stages of two units each in two chunks of one, or all in the first chunk: then every round takes the
    long chunk of all four stages before any short one."""
    plans = PlanTable.of(chunked_plan(num_micro=8))
    stages = stage_table(small_model(layers=8), plans)
    even, first = np.ones(6), np.tile([2.0, 0.0], 3)

    def span(seconds: np.ndarray) -> float:
        passes = PassTimes(forward_s=seconds, backward_s=2.0 * seconds, weight_s=0.0 * seconds)
        return float(stage_spans_s(plans, stages, passes, P2PTimes(seconds=floats(0.0))).max())

    assert span(even) == pytest.approx((8 + 3 / 2) * 6.0)
    assert span(first) == pytest.approx(84.0)


@pytest.mark.parametrize(("pp", "vpp"), [(4, 2), (8, 4)])
def test_waiting_for_messages_costs_a_hop_a_chunk(pp: int, vpp: int) -> None:
    """One exchange after every backward: m v hops or more (Megatron-LM without overlap_p2p_comm); beside
    the computation only the chains of the first and last micro-batches show."""
    num_micro, hop = 8 * pp, 0.01
    equal = np.full((pp, vpp, 1), 1.0)
    times = ChunkTimes(forward_s=equal, backward_s=2.0 * equal, weight_s=0.0 * equal, p2p_s=floats(hop))

    def span(*, blocking: bool, seconds: float) -> float:
        both = replace(times, blocking=blocking, p2p_s=floats(seconds))
        return float(run(task_graph(Schedule.ONE_F_ONE_B, (pp, vpp, num_micro), blocking=blocking), both)[1].max())

    free = span(blocking=False, seconds=0.0)
    assert span(blocking=True, seconds=0.0) == pytest.approx(free, rel=1e-9)
    cost = span(blocking=True, seconds=hop) - free
    assert num_micro * vpp * hop <= cost <= 2.0 * num_micro * vpp * hop
    assert span(blocking=False, seconds=hop) - free < 0.75 * cost


def test_a_put_off_weight_gradient_hides_no_collective() -> None:
    """tp 2 under zero bubble: the all-reduce of the input gradient is blocking for."""
    asked = question(world_size=8, sequences=16, model=small_model(layers=8))
    shared = chunked_plan(tp=2, vpp=1, num_micro=16)
    plain = price_plan(asked, PlanTable.of(shared))[0].parts_s["tp_comm"]
    split = price_plan(asked, PlanTable.of(replace(shared, schedule=Schedule.ZB_H1)))[0].parts_s["tp_comm"]
    assert split > 1.2 * plain


def test_a_heavy_head_shows_as_products_of_the_slowest_stage() -> None:
    """The head's forward and its two gradients, 32 times as many words, of 32 micro-batches: by the flat cost model."""
    asked = question(world_size=4, sequences=32, model=small_model(layers=8))
    heavy = replace(asked, model=replace(asked.model, vocab=32 * asked.model.vocab))
    one = chunked_plan(vpp=1, num_micro=32)
    light_s, heavy_s = (price_plan(each, PlanTable.of(one))[0] for each in (asked, heavy))
    assert light_s.slowest.head
    assert heavy_s.slowest.head
    model, tokens = asked.model, 32 * asked.job.seq_len
    more = 31 * 6 * tokens * model.hidden * model.vocab / 100e12
    assert heavy_s.parts_s["gemm"] - light_s.parts_s["gemm"] == pytest.approx(more, rel=1e-6)
    assert heavy_s.step_s - light_s.step_s > more


def test_a_written_layout_is_taken_as_written() -> None:
    """Six layers on 2 x 2 as Et|ttt|tt|L: the second stage holds three and the head alone."""
    one = chunked_plan(pp=2, num_micro=4, stage_layout="Et|ttt|tt|L")
    table = stage_table(small_model(layers=6), PlanTable.of(one))
    assert table.chunks.layers[0].tolist() == [1, 2, 3, 0]
    assert table.layers[0].tolist() == [3, 3]
    assert table.chunks.head.tolist() == [False, False, False, True]
    assert PlanTable.of(one).plan(0) == one


def test_unequal_chunks_are_replayed_chunk_by_chunk_and_weighed_stage_by_stage() -> None:
    """126 layers on 16 x 4 (arXiv 2407.21783): the stages at the ends hold 7 layers, of which one chunk has 1."""
    even = chunked_plan(pp=16, vpp=4, num_micro=32)
    model = small_model(layers=126)
    table = stage_table(model, PlanTable.of(even))
    assert np.repeat(table.layers[0], table.count).tolist() == [7, *[8] * 14, 7]
    assert table.chunks.layers[0].reshape(-1, 4)[[0, -1]].tolist() == [[1, 2, 2, 2], [2, 2, 2, 1]]
    asked = question(world_size=16, sequences=32, model=model, preset=framework_preset("megatron"))
    by_rule, written = (
        estimate_memory(asked.model, asked.job, PlanTable.of(one), asked.cluster)
        for one in (even, plan_of(parse_plan("pp=16,vpp=4,micro_batch=1,layout=embedding+loss"), asked, "--plan"))
    )
    assert np.array_equal(by_rule.bytes.cost.parameters_bytes, written.bytes.cost.parameters_bytes)
    layer = small_model(layers=1).blocks[0].block
    first, middle = by_rule.bytes.on_rank.dense[:2]
    edge = model.vocab * model.hidden  # a multiple of 128
    assert middle - (first - edge) == block_parameters(layer, model.hidden)


def test_a_typed_layout_reaches_the_plan() -> None:
    asked = question(world_size=4, sequences=16, model=small_model(layers=6), preset=framework_preset("megatron"))
    written = parse_plan("pp=4,micro_batch=1,layout=Et|tt|tt|tL")
    typed = plan_of(written, asked, "--plan")
    assert typed.stage_layout == "Et|tt|tt|tL"
    assert broken_rules(asked, typed) == ()
    for text in ("Et|tt|tt|L", "Et|tt|ttt", "E|tttttt|L"):
        with pytest.raises(ConfigError, match="--why_not: layout"):
            plan_of(parse_plan(f"pp=4,layout={text}", "--why_not"), asked, "--why_not")
        with pytest.raises(ConfigError, match="layout"):
            price_plan(asked, PlanTable.of(replace(typed, stage_layout=text)))
    share = plan_of(parse_plan("pp=4,micro_batch=1,layout=first=2+last=2"), asked, "--plan")
    assert share.stage_layout == "Et*2|t|t|t*2L"
    assert price_plan(asked, PlanTable.of(share))[0].step_s > price_plan(asked, PlanTable.of(typed))[0].step_s
    deepspeed = replace(asked, job=replace(asked.job, preset=framework_preset("deepspeed")))
    assert any("layout" in reason for reason in broken_rules(deepspeed, typed))
