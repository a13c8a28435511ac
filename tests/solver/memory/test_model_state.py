"""Bytes a parameter of model state and whole gradients, from the code that allocates them."""

import pytest

from solver.plans.plan_table import Plan, PlanTable
from solver.price import sized
from spec.job import precision_of
from spec.parameters import num_parameters
from spec.presets.registry import PRESETS
from tests.solver.questions import question, small_model

DP = 4


def bytes_a_parameter(preset: str, num_micro: int = 8, **degrees: int) -> tuple[float, float, float]:
    """Of gradients, of parameters and what is gathered of them, and of optimizer state, on the first stage."""
    plan = Plan(strategy="mtp", preset=preset, dp=DP, zero_size=DP, num_micro=num_micro, **degrees)
    asked = question(
        world_size=plan.world_size,
        sequences=DP * num_micro,
        preset=PRESETS[preset],
        model=small_model(layers=16),
    )
    table = sized(asked.model, asked.job, PlanTable.of(plan))
    cost, held = table.bytes.cost, float(table.bytes.on_rank.total[0])
    parameters = cost.parameters_bytes + cost.weight_pool_bytes
    shares = (cost.gradients_bytes, parameters, cost.optimizer_bytes)
    return tuple(float(share[0]) / held for share in shares)  # type: ignore[return-value]


def test_the_bf16_optimizer_keeps_16_bit_gradients_and_unsharded_fp32_ones() -> None:
    """DeepSpeed runtime/bf16_optimizer.py: 2 + 4 a parameter of gradients, 2 of parameters, 12 sharded."""
    assert bytes_a_parameter("deepspeed-bf16", zero_stage=1) == pytest.approx((2 + 4, 2, 12 / DP), rel=1e-3)
    assert bytes_a_parameter("deepspeed", zero_stage=1) == pytest.approx((2, 2, 12 / DP), rel=1e-3)
    assert (PRESETS["deepspeed-bf16"].data_parallel.zero_stages) == (0, 1)


def test_fsdp_under_a_pipeline_keeps_parameters_gathered_and_adds_up_whole_gradients() -> None:
    """torchtitan: reshard_after_forward False with stages, so 2 a parameter; unsharded_accumulated_grad another 2 in the
    reduction's format; 12 + 4 of state are sharded."""
    gradients, parameters, optimizer = bytes_a_parameter("fsdp", zero_stage=3, pp=2)
    assert (parameters, optimizer) == pytest.approx((2, 12 / DP), rel=1e-3)
    assert gradients == pytest.approx(2 + 4 / DP, rel=1e-3)
    once, _, _ = bytes_a_parameter("fsdp", num_micro=1, zero_stage=3, pp=2)
    assert once < 4 / DP * 1.001
    _, alone, _ = bytes_a_parameter("fsdp", zero_stage=3)
    assert alone < 1


def test_gradients_of_bf16_travel_in_bf16_where_they_add_up_in_fp32() -> None:
    precision = precision_of(PRESETS["deepspeed-bf16"])
    assert (precision.gradient, precision.reduce) == ("fp32", "bf16")


def test_all_parameters_of_the_small_model_are_counted() -> None:
    """The shares above are of what the model has."""
    plan = Plan(strategy="mtp", preset="deepspeed", dp=DP, num_micro=8)
    asked = question(world_size=DP, sequences=DP * 8, preset=PRESETS["deepspeed"])
    table = sized(asked.model, asked.job, PlanTable.of(plan))
    assert table.bytes.on_rank.total[0] == num_parameters(asked.model).total
