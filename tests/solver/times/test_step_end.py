"""What a step hides of its gradient reduction and parameter gather: each beside its own pass."""

from dataclasses import replace

import numpy as np
import pytest

from ops.context import LayerContext
from ops.data_parallel.sliced_collectives import RETURNED_SLICE
from ops.data_parallel.step import step_ops
from ops.op import Axis, Comm
from ops.roles import Role
from profdb.overlap_losses import Losses, OverlapLosses, SizeCurve
from profdb.queries import CollectiveQuery, TimeEstimate
from solver.estimate import estimate_memory, stage_times, step_operations
from solver.pipeline.stages import PassTimes
from solver.plans.plan_table import Plan, PlanTable
from solver.problem.problem import Problem
from solver.times.step_end import StepTimes, step_times, units_of_stages
from spec.arrays import floats, ints
from spec.collectives import Collective
from spec.frameworks import FrameworkPreset, framework_preset
from spec.model import ModelSpec
from spec.parameters import num_parameters
from tests.solver.flat_cost_model import MEMORY_BANDWIDTH, FlatCostModel
from tests.solver.questions import experts_model, question, small_model

LONG_S, SHORT_S = 10.0, 1e-9
LAUNCH_S = 1e-6
LATE_S = 0.01


class SlowHost(FlatCostModel):
    """The flat cost model with a host that takes time."""

    def cpu_s(self, kind: str) -> TimeEstimate:
        priced = super().cpu_s(kind)
        return replace(priced, seconds=priced.seconds + LAUNCH_S)


def step_of(asked: Problem, plan: Plan, passes: PassTimes) -> StepTimes:
    table = estimate_memory(asked.model, asked.job, PlanTable.of(plan))
    layout = table.plans.layout.take(table.stages.plan)
    context = LayerContext(sharding=table.plans.sharding, model=asked.model, job=asked.job, layout=layout)
    ops = step_ops(context, table.bytes.on_rank, np.zeros(len(layout), dtype=bool))
    return step_times(asked.op_timer, asked.job, layout, ops, table.bytes.on_rank, passes)


def times(
    preset: FrameworkPreset,
    forward_s: float,
    backward_s: float,
    measured: OverlapLosses | None = None,
    units: float | None = None,
) -> StepTimes:
    """A step of four ranks whose passes, all of matrix products, take what is asked."""
    plan = Plan(strategy="mtp", preset="internevo", dp=4, zero_stage=1, zero_size=4, num_micro=4)
    asked = question(world_size=4, sequences=16, preset=preset, model=small_model())
    passes = PassTimes(
        forward_s=floats(forward_s),
        backward_s=floats(backward_s),
        weight_s=floats(0.0),
        products=floats(1.0),
        units=None if units is None else floats(units),
    )
    return step_of(replace(asked, op_timer=replace(asked.op_timer, overlap=measured)), plan, passes)


def overlapping(*, reduce: bool = False, gather: bool = False) -> FrameworkPreset:
    """Many small buckets, so that nearly everything can hide."""
    return framework_preset("internevo").changed(
        {
            "data_parallel.overlap_grad_reduce": reduce,
            "data_parallel.overlap_param_gather": gather,
            "data_parallel.bucket_elements": 100_000,
            "data_parallel.bucket_elements_per_rank": 0,
        }
    )


def test_the_reduction_hides_beside_the_backward_and_not_the_forward() -> None:
    open_s = float(times(overlapping(), LONG_S, LONG_S).reduction.seconds[0])
    beside_backward = times(overlapping(reduce=True), SHORT_S, LONG_S).reduction.seconds[0]
    beside_forward = times(overlapping(reduce=True), LONG_S, SHORT_S).reduction.seconds[0]
    assert open_s > 0.0
    assert beside_backward < 0.1 * open_s
    assert beside_forward == pytest.approx(open_s, rel=1e-3)


def test_the_gather_hides_beside_the_forward_and_not_the_backward() -> None:
    open_s = float(times(overlapping(), LONG_S, LONG_S).gather.seconds[0])
    beside_forward = times(overlapping(gather=True), LONG_S, SHORT_S).gather.seconds[0]
    beside_backward = times(overlapping(gather=True), SHORT_S, LONG_S).gather.seconds[0]
    assert open_s > 0.0
    assert beside_forward < 0.1 * open_s
    assert beside_backward == pytest.approx(open_s, rel=1e-3)


def losing(kind: Collective, compute: float, comm: float) -> OverlapLosses:
    """What products and one collective lose to each other at any size."""
    curve = SizeCurve(
        intra=4,
        inter=1,
        log_size=floats([10.0, 30.0]),
        losses=Losses(compute=floats([compute] * 2), comm=floats([comm] * 2)),
    )
    return OverlapLosses(curves={kind: (curve,)})


def test_what_was_measured_of_a_reduction_beside_products_is_what_it_costs() -> None:
    """Beside a long backward a reduction of R seconds takes R / (1 - 0.5) as it loses half, in which the products
    lose a quarter of their rate; but for the last bucket, which waits alone."""
    hidden = times(overlapping(reduce=True), SHORT_S, LONG_S).reduction.seconds[0]
    kind = next(kind for kind in Collective if lost(kind) > hidden * 1.01)
    total_s = float(times(overlapping(), SHORT_S, LONG_S).reduction.seconds[0])
    # unmeasured, nothing is lost on a GPU without multiprocessors to take: only the last bucket stays
    assert lost(kind) == pytest.approx(hidden + (total_s - hidden) / 0.5 * 0.25, rel=1e-4)


def lost(kind: Collective) -> float:
    measured = losing(kind, 0.25, 0.5)
    return float(times(overlapping(reduce=True), SHORT_S, LONG_S, measured).reduction.seconds[0])


def test_layers_gathered_one_by_one_hide_all_but_the_first() -> None:
    """Of four layers a quarter is waited for, as nothing is lost on a GPU without multiprocessors to take."""
    layered = overlapping(reduce=True, gather=True).changed({"data_parallel.bucket_elements": 0})
    whole, four = times(layered, LONG_S, LONG_S), times(layered, LONG_S, LONG_S, units=4.0)
    assert four.reduction.seconds[0] == pytest.approx(whole.reduction.seconds[0] / 4)
    assert four.gather.seconds[0] == pytest.approx(whole.gather.seconds[0] / 4)


def test_units_are_layers_and_ends_of_stages_that_keep_what_they_gathered() -> None:
    """Two stages of two layers, with the embedding or the head."""
    for preset, pp, expected in (("fsdp", 2, [3, 3]), ("fsdp", 1, [1]), ("deepspeed", 2, [1, 1])):
        asked = question(world_size=4, sequences=16, preset=framework_preset(preset), model=small_model(layers=4))
        plan = Plan(strategy="mtp", preset=preset, pp=pp, dp=4 // pp, zero_stage=3, zero_size=4 // pp, num_micro=4)
        table = estimate_memory(asked.model, asked.job, PlanTable.of(plan))
        rows = table.plans.layout.take(table.stages.plan)
        assert units_of_stages(asked.job, rows, table.stages).tolist() == expected


def test_a_priced_stage_hides_all_gathers_but_the_first() -> None:
    """Two stages of three parts each: a third of the gather is waited for, where passes are long."""
    asked = question(
        world_size=4, sequences=16, preset=framework_preset("fsdp"), model=small_model(layers=4), seq_len=65_536
    )
    plan = Plan(strategy="mtp", preset="fsdp", pp=2, dp=2, zero_stage=3, zero_size=2, num_micro=8)
    table = estimate_memory(asked.model, asked.job, PlanTable.of(plan))
    rows = table.plans.layout.take(table.stages.plan)
    (gather,) = [op for op in step_operations(asked.model, asked.job, table) if op.role is Role.PARAMETER_GATHER]
    whole_s = asked.op_timer.time(gather, rows).seconds
    waited_s = stage_times(asked.model, asked.job, table, asked.op_timer).step.gather.seconds
    assert waited_s == pytest.approx(whole_s / 3)


def test_one_bucket_hides_nothing() -> None:
    whole = overlapping(reduce=True).changed({"data_parallel.bucket_elements": 0})
    assert times(whole, LONG_S, LONG_S).reduction.seconds[0] == pytest.approx(
        times(overlapping(), LONG_S, LONG_S).reduction.seconds[0]
    )


def test_lists_of_slices_cost_the_host_a_copy_for_every_rank_and_parameter() -> None:
    """nanotron under ZeRO-1: six parameters a layer and three of the ends; nothing without shards, or for others."""

    def step(preset: str, zero_size: int) -> dict[str, float]:
        asked = question(world_size=8, sequences=16, preset=framework_preset(preset), model=small_model(layers=8))
        stage = 1 if zero_size > 1 else 0
        plan = Plan(strategy="mtp", preset=preset, dp=8, zero_stage=stage, zero_size=zero_size, num_micro=2)
        table = estimate_memory(asked.model, asked.job, PlanTable.of(plan))
        op_timer = replace(asked.op_timer, cost_model=SlowHost())
        update = stage_times(asked.model, asked.job, table, op_timer).step.update
        return {part: float(seconds[0]) for part, seconds in update.parts.items()}

    assert step("nanotron", 8)["host"] == pytest.approx(RETURNED_SLICE * 8 * (8 * 6 + 3) * LAUNCH_S)
    copied_s = 3 * 4 * num_parameters(small_model(layers=8)).total / MEMORY_BANDWIDTH
    assert step("nanotron", 8)["optimizer"] > copied_s
    assert "host" not in step("megatron", 8)
    assert step("nanotron", 1).get("host", 0.0) == 0.0


class Late(FlatCostModel):
    """Every message is LATE_S late."""

    def collective_s(self, query: CollectiveQuery) -> TimeEstimate:
        priced = super().collective_s(query)
        return replace(priced, seconds=priced.seconds + np.where(query.size_bytes > 0, LATE_S, 0.0))


def reduction_s(model: ModelSpec, bucket_elements: int) -> float:
    """Reducing all gradients of four ranks, with no backward to hide behind."""
    preset = framework_preset("nanotron").changed(
        {
            "data_parallel.overlap_grad_reduce": True,
            "data_parallel.bucket_elements": bucket_elements,
            "data_parallel.bucket_elements_per_rank": 0,
        }
    )
    asked = question(world_size=4, sequences=16, preset=preset, model=model, cost_model=Late())
    plan = Plan(strategy="mtp", preset="nanotron", dp=4, num_micro=4)
    none = PassTimes(forward_s=floats(0.0), backward_s=floats(0.0), weight_s=floats(0.0))
    return float(step_of(asked, plan, none).reduction.seconds[0])


def test_every_bucket_is_as_late_as_a_message_of_its_own() -> None:
    """What the backward does not hide of ten buckets is ten times a tenth, latency and all."""
    elements = num_parameters(small_model()).total
    ten = reduction_s(small_model(), -(-elements // 10))
    assert ten - reduction_s(small_model(), elements) == pytest.approx(9 * LATE_S, rel=1e-3)


def test_experts_fill_buckets_of_their_own() -> None:
    """Two kinds of parameters whose buckets hold a tenth of the experts': ten messages of experts, and as many of the
    rest as the rest needs."""
    routed = experts_model(num_experts=4, expert_ffn_hidden=2048)
    counted = num_parameters(routed)
    experts = 8 * 4 * 3 * 512 * 2048
    bucket = -(-experts // 10)
    messages = 10 + -(-(counted.total - experts) // bucket)
    assert messages < 14
    more_s = reduction_s(routed, bucket) - reduction_s(routed, counted.total)
    assert more_s == pytest.approx((messages - 2) * LATE_S, rel=1e-3)


def test_frozen_tied_embeddings_have_no_gradients_to_add_up() -> None:
    asked = question(world_size=8, sequences=16, preset=framework_preset("megatron"))
    plans = PlanTable.of(Plan(strategy="mtp", preset="megatron", pp=2, dp=4, num_micro=4))
    table = estimate_memory(asked.model, asked.job, plans)
    sent = []
    for rank in (0, 8):
        job = replace(asked.job, adapter_rank=rank)
        context = LayerContext(sharding=plans.sharding, model=asked.model, job=job, layout=plans.layout)
        ops = step_ops(context, table.bytes.on_rank.take(ints([0])), np.ones(1, dtype=bool))
        sent.append(sum(int(op.size_bytes[0]) for op in ops if isinstance(op, Comm) and op.axis is Axis.EMBEDDING))
    assert sent == [4 * asked.model.vocab * asked.model.hidden, 0]
