"""Borders of what schedules and chunks demand of a plan."""

from dataclasses import replace

import pytest

from solver.plans.pipeline_rules import chunks, dual_pipe, zero_bubble
from solver.plans.rules import RULES
from solver.plans.space import tensor_degrees
from solver.schedules.registry import Schedule
from solver.typed_plan import broken_rules, parse_plan, plan_of
from spec.presets.registry import PRESETS
from tests.solver.questions import question, small_model

ZERO_BUBBLE, DUAL_PIPE, CHUNKS = (
    next(rule.reason for rule in RULES if rule.keep is keep) for keep in (zero_bubble, dual_pipe, chunks)
)


def broken(preset: str, text: str, schedule: Schedule, layers: int = 8) -> set[str]:
    asked = question(model=small_model(layers=layers), world_size=8, sequences=64, preset=PRESETS[preset])
    plan = replace(plan_of(parse_plan(f"strategy=mtp,{text}"), asked, "--plan"), schedule=schedule)
    return set(broken_rules(asked, plan))


@pytest.mark.parametrize(("text", "refused"), [("pp=1", True), ("pp=2", False), ("pp=2,vpp=2", True)])
def test_zero_bubble_schedules_want_several_stages_of_one_chunk(text: str, refused: bool) -> None:
    assert (ZERO_BUBBLE in broken("zero-bubble", text, Schedule.ZB_H1)) is refused


@pytest.mark.parametrize(("layers", "refused"), [(1, True), (2, False), (3, False)])
def test_dual_pipe_lays_a_layer_or_an_end_on_each_virtual_stage(layers: int, refused: bool) -> None:
    """Four virtual stages: two layers, embedding and head."""
    told = broken("hai-llm", "pp=4", Schedule.DUALPIPE, layers)
    assert (DUAL_PIPE in told) is refused


@pytest.mark.parametrize(
    ("text", "refused"),
    [("pp=1,vpp=2", True), ("pp=2,vpp=2", False), ("pp=1", False), ("pp=4,vpp=2,micro_batch=16", True)],
)
def test_chunks_want_stages_and_rounds_of_micro_batches(text: str, refused: bool) -> None:
    """Two micro-batches on four stages make no round."""
    assert (CHUNKS in broken("megatron", text, Schedule.ONE_F_ONE_B)) is refused


def test_tensor_parallel_degrees_are_small_even_ones_and_multiples_of_8() -> None:
    assert tensor_degrees(32) == (1, 2, 4, 6, 8, 16, 24, 32)
    assert tensor_degrees(5) == (1, 2, 4)
