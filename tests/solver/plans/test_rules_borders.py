"""Borders of rules on heads and stages."""

import pytest

from solver.problem.typed_plan import broken_rules, parse_plan, plan_of
from spec.frameworks import framework_preset
from tests.solver.questions import question, small_model


@pytest.mark.parametrize(
    ("preset", "strategy", "tp", "kv_heads", "refused"),
    [
        ("megatron", "fsp", 4, 4, False),
        ("megatron", "fsp", 8, 4, True),  # Megatron-LM replicates no key and value heads here
        ("internevo", "isp", 8, 4, False),  # two ranks share each of them
        ("internevo", "isp", 8, 3, True),  # eight ranks cannot share three evenly
        ("internevo", "isp", 2, 3, True),
    ],
)
def test_key_and_value_heads_divide_or_are_shared_evenly(
    preset: str, strategy: str, tp: int, kv_heads: int, refused: bool
) -> None:
    asked = question(
        model=small_model(kv_heads=kv_heads, heads=24, hidden=1536),
        world_size=8,
        preset=framework_preset(preset),
    )
    plan = plan_of(parse_plan(f"strategy={strategy},tp={tp}"), asked, "--plan")
    assert ("kv heads do not divide by tp" in broken_rules(asked, plan)) is refused


@pytest.mark.parametrize(("layers", "refused"), [(7, True), (8, False)])
def test_every_stage_has_a_layer(layers: int, refused: bool) -> None:
    asked = question(
        model=small_model(layers=layers), world_size=8, sequences=64, preset=framework_preset("megatron")
    )
    plan = plan_of(parse_plan("strategy=mtp,pp=8"), asked, "--plan")
    assert ("more pipeline stages than layers" in broken_rules(asked, plan)) is refused
