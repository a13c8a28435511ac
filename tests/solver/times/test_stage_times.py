"""A micro-batch takes of a stage what it takes of the stage's chunks."""

from dataclasses import replace

import numpy as np
import pytest

from ops.memory_bound import bytes_moved
from ops.op import Comm, MemoryBound
from solver.estimate import estimate_memory, stage_times
from solver.plans.plan_table import Plan, PlanTable
from solver.plans.schedules import Schedule
from solver.plans.space import enumerate_block, full_space
from solver.problem.price import price_plan
from solver.times.stage_times import gather_slices, p2p_seconds
from spec.arrays import ints
from spec.frameworks import framework_preset
from spec.parameters import block_parameters
from tests.solver.flat_cost_model import FLOPS, INTRA_BANDWIDTH, MEMORY_BANDWIDTH
from tests.solver.questions import question, small_model


@pytest.mark.parametrize("preset", ["internevo", "megatron-fsdp", "zero-bubble"])
def test_chunks_add_up_to_their_stage(preset: str) -> None:
    """Each chunk's first layer waits for its weights, under isp in several chunks too."""
    asked = question(preset=framework_preset(preset), world_size=8, sequences=64)
    space = full_space(asked.model, asked.job)
    cut = 0
    for block in space.blocks:
        plans = enumerate_block(asked.model, asked.job, asked.cluster, space, block).plans
        if not len(plans):
            continue
        table = estimate_memory(asked.model, asked.job, plans, asked.cluster)
        timed = stage_times(asked.model, asked.job, table, asked.op_timer)
        one_s = timed.chunk_passes.forward_s + timed.chunk_passes.backward_s
        of_stage = np.add.reduceat(one_s, table.stages.chunk_starts)
        assert timed.per_micro.seconds == pytest.approx(of_stage, rel=1e-9)
        cut += int((plans.vpp > 1).sum())
    assert cut > 0


def test_weight_gradients_of_a_chunk_are_a_third_of_its_products() -> None:
    """Two layers a stage: a product for each matrix and token, by the flat cost model; forward and input gradient as much."""
    asked = question(world_size=4, sequences=16, model=small_model(layers=8), preset=framework_preset("zero-bubble"))
    plan = Plan(strategy="mtp", preset="zero-bubble", pp=4, num_micro=16, schedule=Schedule.ZB_H1)
    table = estimate_memory(asked.model, asked.job, PlanTable.of(plan), asked.cluster)
    passes = stage_times(asked.model, asked.job, table, asked.op_timer).chunk_passes
    matrices = block_parameters(asked.model.blocks[0].block, asked.model.hidden) - 2 * asked.model.hidden
    weight_s = 2 * 2 * asked.job.seq_len * matrices / FLOPS
    middle = 1
    # norms and sums of gradients are put off as well
    assert weight_s < passes.weight_s[middle] < passes.backward_s[middle] - weight_s
    assert passes.products is not None
    products_s = passes.products * (passes.forward_s + passes.backward_s)
    assert products_s[middle] == pytest.approx(3 * weight_s, rel=1e-9)


@pytest.mark.parametrize(
    ("schedule", "beside"),
    [
        (Schedule.ONE_F_ONE_B, True),
        (Schedule.LOOPED_BFS, True),
        (Schedule.ZB_INTERLEAVED, False),
        (Schedule.ZB_V, False),
    ],
)
def test_reductions_wait_for_the_last_weight_gradient(schedule: Schedule, *, beside: bool) -> None:
    """PyTorch reduces a chunk's gradients behind its last weight gradient: all of it is waited for, where
    layers of whole backwards are reduced beside those before them."""
    asked = question(world_size=8, sequences=32, model=small_model(layers=8), preset=framework_preset("fsdp"))
    plan = Plan(strategy="mtp", preset="fsdp", pp=4, vpp=2, dp=2, zero_stage=2, zero_size=2, num_micro=16)
    told = {}
    for overlaps in (False, True):
        preset = asked.job.preset.changed({"data_parallel.overlap_grad_reduce": overlaps})
        again = replace(asked, job=replace(asked.job, preset=preset))
        table = PlanTable.of(replace(plan, schedule=schedule))
        told[overlaps] = price_plan(again, table)[0].parts_s["dp_comm"]
    assert (told[True] < 0.9 * told[False]) is beside
    assert (told[True] == pytest.approx(told[False])) is not beside


SEQ, HIDDEN = 1024, 512
WHOLE = 2 * SEQ * HIDDEN


def seconds(name: str, tp: int, choices: dict[str, bool]) -> float:
    """One message of a micro-batch of one sequence between two stages."""
    preset = framework_preset(name).changed(choices)
    asked = question(model=small_model(hidden=HIDDEN), seq_len=SEQ, preset=preset)
    plan = Plan(strategy="mtp", preset=name, tp=tp, pp=2, dp=8 // tp, num_micro=64 * tp // 8)
    return float(p2p_seconds(asked.model, asked.job, PlanTable.of(plan), asked.op_timer)[0])


@pytest.mark.parametrize(("name", "written", "copied"), [("megatron-2021", 0, 2), ("deepspeed", 1, 4)])
def test_a_list_of_slices_is_copied_out_of_a_buffer(name: str, written: int, copied: int) -> None:
    """Read and written once; by DeepSpeed into zeros, and once more into a tensor of its own."""
    ops = gather_slices(ints(WHOLE), question(preset=framework_preset(name)).job)
    assert [op.size_bytes.tolist() for op in ops if isinstance(op, Comm)] == [[WHOLE]]
    moved = sum(float(bytes_moved(op)[0]) for op in ops if isinstance(op, MemoryBound))
    assert moved == (written + copied) * WHOLE


@pytest.mark.parametrize("tp", [2, 4])
def test_deepspeed_gathers_its_own_outputs_again_for_each_gradient_that_comes(tp: int) -> None:
    """One gather for an activation and two for a gradient, each with five passes over what is whole."""
    gather = (tp - 1) / tp * WHOLE / INTRA_BANDWIDTH
    plain = seconds("deepspeed", tp, {"pipeline.partitioned_tensors": False})
    partitioned = seconds("deepspeed", tp, {})
    told = 1.5 * (gather + 5 * WHOLE / MEMORY_BANDWIDTH) - (gather + 2 * WHOLE / MEMORY_BANDWIDTH)
    assert partitioned - plain == pytest.approx(told)


def test_without_tensor_parallelism_nothing_is_gathered() -> None:
    cut = seconds("deepspeed", 1, {})
    assert cut == pytest.approx(seconds("deepspeed", 1, {"pipeline.scattered_p2p": False}))


def test_one_stage_sends_and_gathers_nothing() -> None:
    asked = question(model=small_model(hidden=HIDDEN), seq_len=SEQ, preset=framework_preset("deepspeed"))
    plan = Plan(strategy="mtp", preset="deepspeed", tp=4, dp=2, num_micro=4)
    assert p2p_seconds(asked.model, asked.job, PlanTable.of(plan), asked.op_timer).tolist() == [0.0]
