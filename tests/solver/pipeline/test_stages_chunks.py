"""What each chunk of an interleaved stage holds and what its messages cost."""

from dataclasses import replace

import numpy as np
import pytest

from solver.estimate import estimate_memory
from solver.pipeline.pass_times import PassTimes
from solver.pipeline.program import program
from solver.pipeline.side_by_side import ChunkTimes, run
from solver.pipeline.spans import Hops, stage_spans_s
from solver.pipeline.stages import stage_table
from solver.plans.plan_table import Plan, PlanTable
from solver.schedules.registry import Schedule
from solver.search import price_plan
from solver.typed_plan import broken_rules, parse_plan, plan_of
from spec.arrays import floats
from spec.errors import ConfigError
from spec.parameters import block_parameters
from spec.presets.registry import PRESETS
from tests.solver.questions import question, small_model


def plan(**changes: object) -> Plan:
    return replace(Plan(strategy="mtp", preset="megatron", pp=4, vpp=2, num_micro=8), **changes)


def test_the_embedding_is_in_the_first_chunk_and_the_head_in_the_last() -> None:
    """8 layers on 4 x 2: stage s holds layers s and s + 4 (arXiv 2104.04473 sec. 2.2.2)."""
    table = stage_table(small_model(layers=8), PlanTable.of(plan()))
    chunks = table.chunks
    assert table.position.tolist() == [0, 1, 3]
    assert chunks.stage.tolist() == [0, 0, 1, 1, 2, 2]
    assert chunks.embedding.tolist() == [True, False, False, False, False, False]
    assert chunks.head.tolist() == [False, False, False, False, False, True]
    assert chunks.layers[0].tolist() == [1] * 6


def test_layers_that_are_counted_with_embedding_and_loss_leave_chunks_without_layers() -> None:
    """6 layers, embedding and loss on 4 x 2 (--account-for-embedding-in-pipeline-split and -loss-)."""
    table = stage_table(small_model(layers=6), PlanTable.of(plan()))
    assert table.chunks.layers[0].tolist() == [0, 1, 1, 1, 1, 0]
    assert table.layers[0].tolist() == [1, 2, 1]


def test_first_layers_of_another_kind_lie_in_first_chunks() -> None:
    """Layers 0 and 1 of 8 on 2 x 2 are the first chunk of stage 0; the stage's second chunk has others."""
    model = small_model(layers=2)
    other = small_model(layers=6, hidden=1024)
    mixed = replace(model, blocks=(*model.blocks, *other.blocks))
    table = stage_table(mixed, PlanTable.of(plan(pp=2)))
    assert [kind.tolist() for kind in table.chunks.layers] == [[2, 0, 0, 0], [0, 2, 2, 2]]
    assert [kind.tolist() for kind in table.layers] == [[2, 0], [2, 4]]


def test_where_in_a_stage_its_work_lies_decides_the_step() -> None:
    """Stages of two units each in two chunks of one, or all in the first chunk: then every round takes the
    long chunk of all four stages before any short one."""
    plans = PlanTable.of(plan(num_micro=8))
    stages = stage_table(small_model(layers=8), plans)
    even, first = np.ones(6), np.tile([2.0, 0.0], 3)

    def span(seconds: np.ndarray) -> float:
        passes = PassTimes(forward_s=seconds, backward_s=2.0 * seconds, weight_s=0.0 * seconds)
        return float(stage_spans_s(plans, stages, passes, Hops(seconds=floats(0.0))).max())

    assert span(even) == pytest.approx((8 + 3 / 2) * 6.0)
    assert span(first) == pytest.approx(84.0)


@pytest.mark.parametrize(("pp", "vpp"), [(4, 2), (8, 4)])
def test_waiting_for_messages_costs_a_hop_a_chunk(pp: int, vpp: int) -> None:
    """One exchange after every backward: m v hops or more (Megatron-LM without overlap_p2p_comm); beside
    the computation only the chains of the first and last micro-batches show."""
    num_micro, hop = 8 * pp, 0.01
    equal = np.full((pp, vpp, 1), 1.0)
    times = ChunkTimes(forward_s=equal, backward_s=2.0 * equal, weight_s=0.0 * equal, hop_s=floats(hop))

    def span(*, waited: bool, seconds: float) -> float:
        both = replace(times, waited=waited, hop_s=floats(seconds))
        return float(run(program(Schedule.ONE_F_ONE_B, (pp, vpp, num_micro), waited=waited), both)[1].max())

    free = span(waited=False, seconds=0.0)
    assert span(waited=True, seconds=0.0) == pytest.approx(free, rel=1e-9)
    cost = span(waited=True, seconds=hop) - free
    assert num_micro * vpp * hop <= cost <= 2.0 * num_micro * vpp * hop
    assert span(waited=False, seconds=hop) - free < 0.75 * cost


@pytest.mark.parametrize(("pp", "vpp"), [(2, 2), (4, 2), (8, 4)])
def test_as_many_micro_batches_as_stages_run_all_forwards_first(pp: int, vpp: int) -> None:
    """Stages that wait for messages would wait for each other otherwise (Megatron-LM v2.5,
    all_warmup_microbatches); the bubble stays pp - 1 chunks of forward and of backward."""
    equal = np.full((pp, vpp, 1), 1.0)
    work = program(Schedule.ONE_F_ONE_B, (pp, vpp, pp), waited=True)

    def span(seconds: float) -> float:
        times = ChunkTimes(
            forward_s=equal, backward_s=2.0 * equal, weight_s=0.0 * equal, hop_s=floats(seconds), waited=True
        )
        return float(run(work, times)[1].max())

    assert span(0.0) == pytest.approx(3.0 * (pp * vpp + pp - 1))
    assert span(0.01) - span(0.0) >= 0.01 * 2 * (pp * vpp - 1)


def test_a_put_off_weight_gradient_hides_no_collective() -> None:
    """tp 2 under zero bubble: the all-reduce of the input gradient is waited for."""
    asked = question(world_size=8, sequences=16, model=small_model(layers=8))
    shared = plan(tp=2, vpp=1, num_micro=16)
    plain = price_plan(asked, PlanTable.of(shared))[0].parts_s["tp_comm"]
    split = price_plan(asked, PlanTable.of(replace(shared, schedule=Schedule.ZB_H1)))[0].parts_s["tp_comm"]
    assert split > 1.2 * plain


def test_a_heavy_head_shows_as_products_of_the_slowest_stage() -> None:
    """The head's forward and its two gradients, 32 times as many words, of 32 micro-batches: by the flat cost model."""
    asked = question(world_size=4, sequences=32, model=small_model(layers=8))
    heavy = replace(asked, model=replace(asked.model, vocab=32 * asked.model.vocab))
    one = plan(vpp=1, num_micro=32)
    light_s, heavy_s = (price_plan(each, PlanTable.of(one))[0] for each in (asked, heavy))
    assert light_s.slowest.head
    assert heavy_s.slowest.head
    model, tokens = asked.model, 32 * asked.job.seq_len
    more = 31 * 6 * tokens * model.hidden * model.vocab / 100e12
    assert heavy_s.parts_s["gemm"] - light_s.parts_s["gemm"] == pytest.approx(more, rel=1e-6)
    assert heavy_s.step_s - light_s.step_s > more


def test_a_written_layout_is_taken_as_written() -> None:
    """Six layers on 2 x 2 as Et|ttt|tt|L: the second stage holds three and the head alone."""
    one = plan(pp=2, num_micro=4, stage_layout="Et|ttt|tt|L")
    table = stage_table(small_model(layers=6), PlanTable.of(one))
    assert table.chunks.layers[0].tolist() == [1, 2, 3, 0]
    assert table.layers[0].tolist() == [3, 3]
    assert table.chunks.head.tolist() == [False, False, False, True]
    assert PlanTable.of(one).plan(0) == one


def test_a_typed_share_reaches_the_plan_written_out() -> None:
    asked = question(world_size=4, sequences=16, model=small_model(layers=10), preset=PRESETS["megatron"])
    typed = plan_of(parse_plan("pp=4,micro_batch=1,layout=first=2+last=2"), asked, "--plan")
    assert typed.stage_layout == "Et*2|t*3|t*3|t*2L"
    again = plan_of(parse_plan(f"pp=4,micro_batch=1,layout={typed.written.layout}"), asked, "--plan")
    assert again == typed


def test_unequal_chunks_are_replayed_chunk_by_chunk_and_weighed_stage_by_stage() -> None:
    """126 layers on 16 x 4 (arXiv 2407.21783): the stages at the ends hold 7 layers, of which one chunk has 1."""
    even = plan(pp=16, vpp=4, num_micro=32)
    model = small_model(layers=126)
    table = stage_table(model, PlanTable.of(even))
    assert np.repeat(table.layers[0], table.count).tolist() == [7, *[8] * 14, 7]
    assert table.chunks.layers[0].reshape(-1, 4)[[0, -1]].tolist() == [[1, 2, 2, 2], [2, 2, 2, 1]]
    asked = question(world_size=16, sequences=32, model=model, preset=PRESETS["megatron"])
    by_rule, written = (
        estimate_memory(asked.model, asked.job, PlanTable.of(one), asked.cluster)
        for one in (
            even,
            plan_of(parse_plan("pp=16,vpp=4,micro_batch=1,layout=embedding+loss"), asked, "--plan"),
        )
    )
    assert np.array_equal(by_rule.bytes.cost.parameters_bytes, written.bytes.cost.parameters_bytes)
    layer = small_model(layers=1).blocks[0].block
    first, middle = by_rule.bytes.on_rank.dense[:2]
    edge = model.vocab * model.hidden  # a multiple of 128
    assert middle - (first - edge) == block_parameters(layer, model.hidden)


def test_a_layout_changes_the_price_and_is_refused_where_it_does_not_fit() -> None:
    asked = question(world_size=2, sequences=8, model=small_model(layers=8), preset=PRESETS["megatron"])
    even = plan(pp=2, vpp=1, num_micro=8)
    uneven = replace(even, stage_layout="Et*2|t*6L")
    slow, fast = (price_plan(asked, PlanTable.of(one))[0].step_s for one in (uneven, even))
    assert slow > 1.2 * fast
    for text in ("Et*2|t*5L", "Et*2|t*3|t*3L"):
        with pytest.raises(ConfigError, match="layout"):
            price_plan(asked, PlanTable.of(replace(even, stage_layout=text)))


def test_a_typed_layout_reaches_the_plan() -> None:
    asked = question(world_size=4, sequences=16, model=small_model(layers=6), preset=PRESETS["megatron"])
    written = parse_plan("pp=4,micro_batch=1,layout=Et|tt|tt|tL")
    typed = plan_of(written, asked, "--plan")
    assert typed.stage_layout == "Et|tt|tt|tL"
    assert broken_rules(asked, typed) == ()
    for text in ("Et|tt|tt|L", "Et|tt|ttt", "E|tttttt|L"):
        with pytest.raises(ConfigError, match="--why_not: layout"):
            plan_of(parse_plan(f"pp=4,layout={text}", "--why_not"), asked, "--why_not")
    deepspeed = replace(asked, job=asked.job.with_preset(PRESETS["deepspeed"]))
    assert any("layout" in reason for reason in broken_rules(deepspeed, typed))
