"""A micro-batch takes of a stage what it takes of the stage's chunks."""

from dataclasses import replace

import numpy as np
import pytest

from solver.estimate import estimate_memory, stage_times
from solver.plans.plan_table import Plan, PlanTable
from solver.plans.schedules import Schedule
from solver.plans.space import enumerate_block, full_space
from solver.search import price_plan
from spec.frameworks import framework_preset
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
        timed = stage_times(asked.model, asked.job, table, asked.pricer)
        one_s = timed.chunk_passes.forward_s + timed.chunk_passes.backward_s
        of_stage = np.add.reduceat(one_s, table.stages.chunk_starts)
        assert timed.per_micro.seconds == pytest.approx(of_stage, rel=1e-9)
        cut += int((plans.vpp > 1).sum())
    assert cut > 0


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
