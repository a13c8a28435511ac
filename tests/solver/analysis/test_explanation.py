"""A plan taken apart: the terms are the step, the operations are the layer, the stages are the memory."""

import pytest

from ops.recompute import Recompute
from solver.analysis.explanation import explain_plan
from solver.estimate import estimate_memory, stage_times
from solver.plans.plan_table import Plan, PlanTable
from solver.plans.schedules import Schedule
from solver.problem.price import price_plan
from spec.frameworks import framework_preset
from tests.solver.flat_cost_model import FLOPS, INTRA_BANDWIDTH
from tests.solver.questions import question

ASKED = question(preset=framework_preset("megatron"))
PLANS = [
    Plan(strategy="fsp", preset="megatron", tp=4, pp=2, dp=2, zero_stage=1, zero_size=2, num_micro=32),
    Plan(strategy="mtp", preset="megatron", tp=2, pp=4, vpp=2, dp=2, num_micro=32),
    Plan(strategy="mtp", preset="megatron", tp=8, dp=2, num_micro=32, recompute=Recompute.FULL),
    Plan(strategy="mtp", preset="megatron", tp=4, pp=4, num_micro=64, schedule=Schedule.ZB_H1),
    Plan(
        strategy="fsp",
        preset="megatron",
        tp=4,
        pp=2,
        dp=2,
        num_micro=32,
        recompute=Recompute.BLOCK,
        num_recompute_layers=1,
    ),
]


@pytest.mark.parametrize("plan", PLANS, ids=Plan.label)
def test_the_terms_sum_to_the_step_and_each_is_a_term_of_it(plan: Plan) -> None:
    found = explain_plan(ASKED, plan)
    answer = price_plan(ASKED, PlanTable.of(plan))[0]
    assert found.step_s == answer.step_s
    assert sum(row.seconds for row in found.assembly) == pytest.approx(found.step_s, rel=1e-12)
    terms = {row.what: row for row in found.assembly}
    # Nothing is left over: no book of flat times makes the host late.
    assert not [what for what in terms if what.startswith("the host")]
    layers = [row for row in found.assembly if row.what.startswith("layer")]
    assert sum(row.count for row in layers) == plan.num_micro * answer.slowest.layers
    if plan.pp > 1:
        assert terms["bubble"].seconds == pytest.approx(answer.parts_s["bubble"])
    # The reduction is what the step's own lines say of some stage, not what is left.
    table = estimate_memory(ASKED.model, ASKED.job, PlanTable.of(plan), ASKED.cluster)
    step = stage_times(ASKED.model, ASKED.job, table, ASKED.op_timer).step
    reduced = terms.get("gradient reduction after the last backward")
    seconds = 0.0 if reduced is None else reduced.seconds
    assert any(seconds == pytest.approx(float(one), abs=1e-9 * found.step_s) for one in step.reduction.seconds)


def test_recomputed_layers_are_told_from_those_that_are_not() -> None:
    found = {row.what: row for row in explain_plan(ASKED, PLANS[4]).assembly}
    # The first of the four layers of each stage.
    again, once = found["layer, recomputed, first of its stage"], found["layer"]
    assert (again.count, once.count) == (32, 3 * 32)
    assert again.backward_s == pytest.approx(once.backward_s + once.forward_s, rel=0.01)
    assert again.forward_s == pytest.approx(once.forward_s)


def test_operations_of_a_layer_are_its_passes() -> None:
    found = explain_plan(ASKED, PLANS[0])
    layer = next(row for row in found.assembly if row.what == "layer")
    waited = sum(row.waited_s or 0.0 for row in found.operations if row.piece == "layer")
    assert waited == pytest.approx(layer.forward_s + layer.backward_s, rel=1e-12)


def test_an_operation_says_shape_group_bytes_origin_and_error() -> None:
    rows = {(row.name, row.phase): row for row in explain_plan(ASKED, PLANS[0]).operations}
    up = rows["mlp.up", "forward"]
    # tp 4 of a gated MLP of 2,048: each rank makes both halves of a quarter, of all 1,024 tokens.
    assert up.shape == "m 1024 k 512 n 1024 NT bf16"
    assert up.own_s == pytest.approx(2 * 1024 * 512 * 1024 / FLOPS)
    assert (up.group, up.size_bytes, up.origin, up.relative_std) == ("", 0.0, "measured", 0.05)
    gather = rows["mlp.up.enter", "forward"]
    assert gather.group == "tp: 4 ranks on 1 node, stride 1"
    assert gather.size_bytes == 2 * 1024 * 512
    assert gather.own_s == pytest.approx(0.75 * gather.size_bytes / INTRA_BANDWIDTH)
    assert (gather.shape, gather.origin) == ("all-gather", "modelled")
    reduced = next(row for row in rows.values() if row.piece == "step" and "reduce-scatter" in row.shape)
    assert (reduced.waited_s, reduced.group) == (None, "zero_shard: 2 ranks on 1 node, stride 4")


def test_both_ends_are_there_whichever_stage_is_slowest() -> None:
    pieces = {row.piece for row in explain_plan(ASKED, PLANS[0]).operations}
    assert {"layer", "embedding", "head", "step"} <= pieces


def test_memory_by_stage_is_the_answer_s_memory() -> None:
    found = explain_plan(ASKED, PLANS[1])
    answer = price_plan(ASKED, PlanTable.of(PLANS[1]))[0]
    assert (found.stages[0].first, found.stages[0].last) == (1, 1)
    assert found.stages[-1].last == 4
    worst = max(found.stages, key=lambda one: one.needed_bytes)
    assert worst.needed_bytes == answer.needed_bytes
    assert {key: worst.terms_bytes[key] for key in answer.memory_bytes} == answer.memory_bytes
