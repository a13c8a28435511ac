"""Borders of what schedules and chunks demand of a plan."""

from dataclasses import replace

import pytest

from solver.plans.plan_columns import plan_columns
from solver.plans.plan_table import Plan, PlanTable
from solver.plans.rules import (
    RULES,
    autograd_splits,
    chunks_are_tried,
    chunks_fit_order,
    chunks_interleave,
    nearly_equal,
    two_chunks_fit,
    wide_layers_fit_stage,
)
from solver.plans.schedules import Schedule
from solver.plans.space import full_space, tensor_degrees
from solver.problem.typed_plan import broken_rules, parse_plan, plan_of
from spec.arrays import ints
from spec.frameworks import framework_preset
from tests.solver.questions import question, small_model

ORDERED, TURNING, COMPILED, CHUNKS, WIDE = (
    next(rule.reason for rule in RULES if rule.keep is keep)
    for keep in (
        chunks_fit_order,
        two_chunks_fit,
        autograd_splits,
        chunks_interleave,
        wide_layers_fit_stage,
    )
)


def broken(preset: str, text: str, schedule: Schedule, layers: int = 8) -> set[str]:
    asked = question(
        model=small_model(layers=layers), world_size=8, sequences=64, preset=framework_preset(preset)
    )
    plan = replace(plan_of(parse_plan(f"strategy=mtp,{text}"), asked, "--plan"), schedule=schedule)
    return set(broken_rules(asked, plan))


@pytest.mark.parametrize(("text", "refused"), [("pp=1", True), ("pp=2", False), ("pp=2,vpp=2", True)])
def test_zero_bubble_schedules_want_several_stages_of_one_chunk(text: str, refused: bool) -> None:
    assert (ORDERED in broken("zero-bubble", text, Schedule.ZB_H1)) is refused


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
    texts = ("pp=1", "pp=2", "pp=2,vpp=2", "pp=2,vpp=3")
    told = {
        text for text in texts if not {ORDERED, TURNING, CHUNKS} & broken("fsdp", text, schedule, layers=12)
    }
    assert told == fitting


@pytest.mark.parametrize("schedule", [Schedule.ZB_V, Schedule.ZB_INTERLEAVED])
def test_compiled_backwards_are_not_split(schedule: Schedule) -> None:
    assert COMPILED in broken("torchtitan", "pp=2,vpp=2", schedule)
    assert COMPILED not in broken("fsdp", "pp=2,vpp=2", schedule)
    assert COMPILED in broken("fsdp", "pp=2,vpp=2,zero_stage=2", schedule)
    assert COMPILED not in broken("torchtitan", "pp=2,vpp=2", Schedule.LOOPED_BFS)
    assert COMPILED in broken("fsdp", "pp=2,vpp=2,recompute=full", schedule)
    assert COMPILED not in broken("fsdp", "pp=2,vpp=2,recompute=full", Schedule.LOOPED_BFS)


@pytest.mark.parametrize(
    ("preset", "schedules"),
    [
        ("fsdp", {"1f1b", "gpipe", "looped-bfs", "zb-interleaved", "zb-v"}),
        ("torchtitan", {"1f1b", "gpipe", "looped-bfs"}),
        ("hf-trainer", {"1f1b"}),
        ("maxtext", {"1f1b"}),
    ],
)
def test_schedules_that_are_searched(preset: str, schedules: set[str]) -> None:
    asked = question(model=small_model(), world_size=8, preset=framework_preset(preset))
    assert set(full_space(asked.model, asked.job).schedules) == schedules


@pytest.mark.parametrize(("layers", "refused"), [(1, True), (2, False), (3, False)])
def test_dual_pipe_lays_a_layer_or_an_end_on_each_virtual_stage(layers: int, refused: bool) -> None:
    """Four virtual stages: two layers, embedding and head."""
    told = broken("hai-llm", "pp=4", Schedule.DUALPIPE, layers)
    assert (TURNING in told) is refused


@pytest.mark.parametrize(
    ("text", "refused"),
    [("pp=1,vpp=2", True), ("pp=2,vpp=2", False), ("pp=1", False), ("pp=4,vpp=2,micro_batch=16", True)],
)
def test_chunks_want_stages_and_rounds_of_micro_batches(text: str, refused: bool) -> None:
    """Two micro-batches on four stages make no round."""
    assert (CHUNKS in broken("megatron", text, Schedule.ONE_F_ONE_B)) is refused


@pytest.mark.parametrize(
    ("layers", "chunks_asked", "near"),
    [(126, 16, True), (8, 4, True), (5, 4, False), (12, 8, False), (13, 8, True)],
)
def test_chunks_are_nearly_equal_up_to_a_quarter_beyond_the_mean(
    layers: int, chunks_asked: int, near: bool
) -> None:
    """8 layers where 126 / 16 are the mean, two where 5 / 4, 12 / 8 and 13 / 8 are."""
    assert nearly_equal(layers, ints(chunks_asked)).tolist() == [near]


@pytest.mark.parametrize(
    ("layers", "vpp", "refused"),
    [(16, 2, False), (16, 3, False), (16, 5, True), (13, 7, False), (13, 4, True)],
)
def test_equal_chunks_are_tried_alone_where_there_are_some(layers: int, vpp: int, refused: bool) -> None:
    """Megatron-LM counts layers, with the loss or with both ends: 16 over 4 and 18 over 6 chunks, 14 over 14;
    13 to 15 make no 8, nearly equal as they are."""
    asked = question(
        model=small_model(layers=layers), world_size=8, sequences=64, preset=framework_preset("megatron")
    )
    plans = PlanTable.of(Plan(strategy="mtp", preset="megatron", pp=2, vpp=vpp, dp=4, num_micro=16))
    draft = plan_columns(asked.model, asked.job, asked.cluster, plans)
    assert chunks_are_tried(draft).tolist() == [not refused]


def test_tensor_parallel_degrees_are_small_even_ones_and_multiples_of_8() -> None:
    assert tensor_degrees(32) == (1, 2, 4, 6, 8, 16, 24, 32)
    assert tensor_degrees(5) == (1, 2, 4)


@pytest.mark.parametrize(
    ("ends", "pp", "refused"), [((2, 0), 4, False), ((3, 0), 4, True), ((0, 3), 4, True), ((4, 4), 2, False)]
)
def test_wide_layers_are_no_more_than_a_stage_s(ends: tuple[int, int], pp: int, refused: bool) -> None:
    """8 layers: two a stage of four, four of two."""
    asked = question(model=small_model(), world_size=8, sequences=64)
    formats = replace(
        asked.job.precision, high_precision_first_layers=ends[0], high_precision_last_layers=ends[1]
    )
    asked = replace(asked, job=replace(asked.job, precision=formats))
    plan = plan_of(parse_plan(f"strategy=mtp,pp={pp}"), asked, "--plan")
    assert (WIDE in broken_rules(asked, plan)) is refused
