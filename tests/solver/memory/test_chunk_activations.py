"""Activations of stages whose chunks are not alike: against the schedule's own order of work, piece by piece."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from solver.estimate import Estimate, estimate_memory
from solver.plans.plan_table import Plan, PlanTable
from solver.plans.schedules import Schedule, TaskKind, one_f_one_b
from spec.frameworks import framework_preset
from spec.pipeline_layout import layout_text
from tests.solver.questions import question, small_model


def held_at_most(shape: tuple[int, int, int], layers: Sequence[float]) -> list[float]:
    """Layers whose activations each stage holds at its peak, ``layers`` by virtual stage: a forward brings a
    chunk's, its backward takes them away."""
    found = []
    for stage, order in enumerate(one_f_one_b(shape)):
        sizes = [layers[work.chunk * shape[0] + stage] for work in order]
        steps = [size if work.kind is TaskKind.FORWARD else -size for size, work in zip(sizes, order, strict=True)]
        found.append(max(accumulate(steps)))
    return found


def laid_out(shape: tuple[int, int, int], layers: list[int]) -> Estimate:
    """The memory of that pipeline's stages."""
    pp, vpp, num_micro = shape
    asked = question(
        model=small_model(layers=sum(layers)), world_size=pp, sequences=num_micro, preset=framework_preset("megatron")
    )
    plan = Plan(strategy="mtp", preset="megatron", pp=pp, vpp=vpp, num_micro=num_micro)
    plan = replace(plan, stage_layout=layout_text(layers))
    return estimate_memory(asked.model, asked.job, PlanTable.of(plan), asked.cluster)


def of_stages(table: Estimate, num_stages: int) -> list[float]:
    """Activations of every stage, of equal ones of the first, in bytes."""
    activations = table.bytes.cost.activations_bytes
    row = np.searchsorted(table.stages.position, np.arange(num_stages), side="right") - 1
    return [float(activations[at]) for at in row]


def one_layer_and_embedding() -> tuple[float, float]:
    """Bytes that one of them saves of a micro-batch: two stages of a layer each hold two micro-batches and one."""
    first, last = of_stages(laid_out((2, 1, 2), [1, 1]), 2)
    return last, first / 2.0 - last


@given(st.data())
def test_a_stage_holds_what_its_order_of_work_leaves_in_flight(data: st.DataObject) -> None:
    pp, vpp = data.draw(st.integers(2, 8)), data.draw(st.integers(1, 7))
    num_micro = pp * data.draw(st.integers(1, 5))
    layers = data.draw(st.lists(st.integers(1, 4), min_size=pp * vpp, max_size=pp * vpp))
    table = laid_out((pp, vpp, num_micro), layers)
    layer, embedding = one_layer_and_embedding()
    held = held_at_most((pp, vpp, num_micro), [layer * one + embedding * (at == 0) for at, one in enumerate(layers)])
    for stage, bytes_held in enumerate(of_stages(table, pp)):
        if stage in table.stages.position:
            assert bytes_held == pytest.approx(held[stage], rel=1e-12)


def test_a_heavy_first_chunk_is_held_twice_as_often_as_the_others() -> None:
    """16 stages of two chunks, E ttt | (tt |) ... L (Megatron-LM's layouts of DeepSeek-V3): stage 1 holds ``2
    p`` of its three layers and ``p - 1`` of two, the last one ``p + 1`` of its two and none of the head's
    chunk: 126 and 34 layers, where all chunks taken alike would be 117.5 and 17."""
    layers = [3, *[2] * 30, 0]
    assert [held_at_most((16, 2, 64), layers)[stage] for stage in (0, 15)] == [126, 34]
    layer, embedding = one_layer_and_embedding()
    held = of_stages(laid_out((16, 2, 64), layers), 16)
    assert [held[0], held[15]] == pytest.approx([126 * layer + 32 * embedding, 34 * layer])


@pytest.mark.parametrize("num_micro", [2, 4, 7, 8, 20])
@pytest.mark.parametrize("layers", [[1] * 8, [1, 2, 1, 1, 3, 1, 1, 1]])
def test_a_v_holds_what_its_order_of_work_leaves_in_flight(layers: list[int], num_micro: int) -> None:
    """Stage s holds virtual stages s and 7 - s until their weight gradients are there."""
    asked = question(
        model=small_model(layers=sum(layers)), world_size=4, sequences=num_micro, preset=framework_preset("fsdp")
    )
    plan = Plan(strategy="mtp", preset="fsdp", pp=4, vpp=2, num_micro=num_micro, schedule=Schedule.ZB_V)
    plan = replace(plan, stage_layout=layout_text(layers))
    found = of_stages(estimate_memory(asked.model, asked.job, PlanTable.of(plan), asked.cluster), 4)
    in_order = []
    for stage, order in enumerate(Schedule.ZB_V.orders((4, 2, num_micro))):
        sizes = (layers[stage], layers[7 - stage])
        signs = {TaskKind.FORWARD: 1, TaskKind.BACKWARD: 0, TaskKind.WEIGHT: -1}
        in_order.append(max(accumulate(signs[work.kind] * sizes[work.chunk] for work in order)))
    # Beside the embedding of the first stage, all else is in proportion.
    assert np.array(found[1:]) / found[1] == pytest.approx(np.array(in_order[1:]) / in_order[1], rel=1e-9)
