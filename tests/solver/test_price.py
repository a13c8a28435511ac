"""Invariants of a price: parts add up, rows do not disturb each other, physics has its signs."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops.recompute import Recompute
from ops.strategies import STRATEGIES
from solver.estimate import STEP_PARTS, estimate_memory, step_time
from solver.plans.plan_table import Plan, PlanTable
from solver.problem.price import price_plan
from solver.problem.problem import Problem
from solver.times.stage_times import p2p_bytes
from spec.frameworks import framework_preset
from tests.solver.flat_cost_model import FLOPS, INTRA_BANDWIDTH, FlatCostModel
from tests.solver.questions import question, small_model


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    strategy = draw(st.sampled_from(list(STRATEGIES)))
    tp, pp, dp = (draw(st.sampled_from([1, 2, 4])) for _ in range(3))
    zero_size = draw(st.sampled_from([d for d in (1, 2, 4) if dp % d == 0]))
    return Plan(
        strategy=strategy,
        preset="internevo",
        recompute=draw(st.sampled_from([Recompute.NONE, Recompute.FULL])),
        tp=tp,
        pp=pp,
        dp=dp,
        wp=min(draw(st.sampled_from([1, 2, 4])), tp * dp) if strategy == "isp" else 1,
        zero_stage=int(zero_size > 1),
        zero_size=zero_size,
        micro_batch=draw(st.sampled_from([1, 2])),
        num_micro=draw(st.sampled_from([4, 8])),
    )


def ask(plan: Plan, **changes: object) -> Problem:
    sequences = plan.dp * plan.micro_batch * plan.num_micro
    return question(world_size=plan.world_size, sequences=sequences, **changes)


def answer(plan: Plan, **changes: object):
    return price_plan(ask(plan, **changes), PlanTable.of(plan))[0]


@given(plan=plans())
def test_parts_and_origins_and_bytes_add_up(plan: Plan) -> None:
    one = answer(plan)
    assert set(one.parts_s) == set(STEP_PARTS)
    assert sum(one.parts_s.values()) == pytest.approx(one.step_s, rel=1e-12)
    assert sum(one.origins_s.values()) == pytest.approx(one.step_s, rel=1e-12)
    assert sum(one.memory_bytes.values()) == pytest.approx(one.allocated_bytes, rel=1e-12)
    assert all(seconds >= 0 for seconds in one.parts_s.values())
    assert one.allocated_bytes < one.reserved_bytes < one.device_bytes


@given(rows=st.lists(plans(), min_size=2, max_size=5))
def test_a_row_alone_costs_what_it_costs_in_the_table(rows: list[Plan]) -> None:
    first = rows[0]
    alike = [
        replace(plan, strategy=first.strategy, recompute=first.recompute, wp=1, dp=16 // (plan.tp * plan.pp) or 1)
        for plan in rows
    ]
    alike = [replace(plan, zero_size=1, zero_stage=0) for plan in alike if plan.world_size == 16]
    if not alike:
        return
    asked = question(world_size=16, sequences=256)
    together = estimate_memory(asked.model, asked.job, PlanTable.of(*alike))
    whole = step_time(asked.model, asked.job, together, asked.op_timer)
    for row, plan in enumerate(alike):
        table = estimate_memory(asked.model, asked.job, PlanTable.of(plan))
        alone = step_time(asked.model, asked.job, table, asked.op_timer)
        assert alone.step_s[0] == pytest.approx(whole.step_s[row], rel=1e-12)
        assert table.needed_bytes[0] == pytest.approx(together.needed_bytes[row], rel=1e-12)


def test_each_row_of_a_table_has_its_own_answer() -> None:
    first = Plan(strategy="mtp", preset="internevo", dp=4, num_micro=4)
    rows = [first, replace(first, tp=2, dp=2, num_micro=8), replace(first, tp=4, dp=1, num_micro=16)]
    asked = ask(first)
    for together, plan in zip(price_plan(asked, PlanTable.of(*rows)), rows, strict=True):
        (alone,) = price_plan(asked, PlanTable.of(plan))
        for name in ("step_s", "interval_low_s", "interval_high_s", "tgs", "mfu", "needed_bytes"):
            assert getattr(together, name) == pytest.approx(getattr(alone, name), rel=1e-12), name


@pytest.mark.parametrize("strategy", ["mtp", "msp", "fsp"])
def test_one_tensor_rank_waits_for_no_tensor_communication(strategy: str) -> None:
    one = answer(Plan(strategy=strategy, preset="internevo", tp=1, dp=4, num_micro=4))
    assert one.parts_s["tp_comm"] == 0.0
    two = answer(Plan(strategy=strategy, preset="internevo", tp=2, dp=2, num_micro=8))
    assert two.parts_s["tp_comm"] > 0.0


def test_a_step_by_hand() -> None:
    """One GPU, one micro-batch: GEMMs of 3 x forward FLOPs at 100 TFLOP/s; nothing to wait for."""
    plan = Plan(strategy="mtp", preset="internevo", num_micro=1)
    model = small_model(layers=2)
    one = answer(plan, model=model, seq_len=1024)
    h, f, kv, vocab, tokens = 512, 2048, 4 * 64, 4096, 1024
    per_layer = h * (h + 2 * kv) + h * h + 3 * h * f
    flops = 3 * 2 * tokens * (2 * per_layer + h * vocab)
    assert one.parts_s["gemm"] == pytest.approx(flops / FLOPS, rel=1e-12)
    assert one.parts_s["dp_comm"] == one.parts_s["pp_comm"] == 0.0
    assert one.parts_s["bubble"] == pytest.approx(0.0, abs=1e-15)


def test_tensor_communication_by_hand() -> None:
    """mtp on 2 ranks: all-reduces of 2 t h bytes; 2 forward a layer and 3 backward, where gate and up each
    add up the gradient of what both read, not hidden; one for the embedding and three of 4 t bytes for the
    loss."""
    preset = framework_preset("internevo").changed({"tensor_parallel.overlap_backward": False})
    plan = Plan(strategy="mtp", preset="internevo", tp=2, num_micro=1)
    one = answer(plan, model=small_model(layers=2), preset=preset)
    tokens, h = 1024, 512
    # 2 layers x 5, the head's backward one and the embedding's forward one.
    moved = (2 * 5 + 1 + 1) * 2 * tokens * h + 3 * 4 * tokens
    assert one.parts_s["tp_comm"] == pytest.approx(moved / INTRA_BANDWIDTH, rel=1e-12)


def test_grouped_query_attention_is_cheaper_than_multi_head() -> None:
    plan = Plan(strategy="mtp", preset="internevo", tp=2, dp=2, num_micro=4)
    grouped, full = (answer(plan, model=small_model(kv_heads=kv)) for kv in (2, 8))
    assert grouped.step_s < full.step_s
    assert grouped.memory_bytes["activations"] < full.memory_bytes["activations"]


def test_the_bubble_is_p_minus_1_over_m() -> None:
    """Equal stages with free hops (arXiv 2104.04473 sec. 2.2): all layers, no edges worth naming."""

    class FreeHops(FlatCostModel):
        def p2p_s(self, query):
            predicted = super().p2p_s(query)
            return replace(predicted, seconds=0 * predicted.seconds)

    model = replace(small_model(layers=16), vocab=8)
    plan = Plan(strategy="mtp", preset="internevo", pp=4, num_micro=12)
    one = answer(plan, model=model, cost_model=FreeHops())
    work = one.step_s - one.parts_s["bubble"] - one.parts_s["optimizer"]
    assert one.parts_s["bubble"] / work == pytest.approx(3 / 12, rel=0.01)


def test_a_changed_sample_changes_the_price() -> None:
    plan = Plan(strategy="mtp", preset="internevo", tp=2, dp=8, num_micro=4)
    slow = answer(plan, cost_model=FlatCostModel(flops=FLOPS / 2))
    assert slow.parts_s["gemm"] == pytest.approx(2 * answer(plan).parts_s["gemm"])


def test_zero_cuts_the_optimizer_state_by_its_size() -> None:
    """arXiv 1910.02054 sec. 5.1: K = 12 bytes per parameter over the shard group."""
    plan = Plan(strategy="mtp", preset="internevo", dp=4, num_micro=4)
    whole = answer(plan)
    cut = answer(replace(plan, zero_size=4, zero_stage=1))
    assert whole.memory_bytes["optimizer"] == pytest.approx(4 * cut.memory_bytes["optimizer"], rel=1e-4)
    assert whole.memory_bytes["optimizer"] == pytest.approx(6 * whole.memory_bytes["parameters"])


@pytest.mark.parametrize(
    ("preset", "strategy", "pieces"),
    [
        ("megatron", "mtp", 1),  # core 0.14 get_tensor_shapes: cut with sequence parallelism only
        ("megatron", "fsp", 2),
        ("megatron-bridge", "mtp", 1),
        ("megatron-2021", "mtp", 2),  # --scatter-gather-tensors-in-pipeline, arXiv 2104.04473 sec. 4.1
        ("deepspeed", "mtp", 2),  # runtime/pipe/engine.py, is_pipe_partitioned
    ],
)
def test_a_message_between_stages_is_cut_by_tp_where_the_framework_does(
    preset: str, strategy: str, pieces: int
) -> None:
    one = Plan(strategy=strategy, preset=preset, tp=2, pp=2, num_micro=4)
    asked = ask(one, preset=framework_preset(preset))
    table = estimate_memory(asked.model, asked.job, PlanTable.of(one), asked.cluster)
    whole = asked.job.seq_len * asked.model.hidden * 2
    assert p2p_bytes(asked.model, asked.job, table.plans).tolist() == [whole // pieces]
