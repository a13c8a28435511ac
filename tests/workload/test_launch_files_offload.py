"""Offloading as launch settings: each framework's own words, and a refusal where it has none."""

import pytest

from solver.plans.plan_table import Plan
from solver.question import Question
from spec.errors import ExportError
from spec.presets.registry import PRESETS
from tests.solver.questions import question, small_model
from workload.settings.deepspeed import deepspeed_json
from workload.settings.internevo import internevo_settings
from workload.settings.megatron import megatron_flags


def asked(preset: str, *, optimizer: float = 0.0, layers: int = 0, stage: int = 1) -> tuple[Question, Plan]:
    size = 8 if stage else 1
    plan = Plan(
        strategy="mtp",
        preset=preset,
        dp=8,
        zero_stage=stage,
        zero_size=size,
        num_micro=2,
        optimizer_offload=optimizer,
        offloaded_layers=layers,
    )
    return question(world_size=8, sequences=16, preset=PRESETS[preset], model=small_model()), plan


def test_megatrons_flags() -> None:
    flags = megatron_flags(*asked("megatron", optimizer=0.25, layers=3))
    assert flags["--optimizer-offload-fraction"] == "0.25"
    assert {"--optimizer-cpu-offload", "--use-precision-aware-optimizer"} <= flags.keys()
    assert flags["--cpu-offloading-num-layers"] == 3
    assert not [flag for flag in megatron_flags(*asked("megatron")) if "offload" in flag]


def test_deepspeeds_section() -> None:
    whole = deepspeed_json(*asked("deepspeed", optimizer=1.0, stage=2))
    part = deepspeed_json(*asked("deepspeed", optimizer=0.5, stage=3))
    none = deepspeed_json(*asked("deepspeed", stage=2))
    cpu = {"device": "cpu", "pin_memory": True}
    assert whole["zero_optimization"]["offload_optimizer"] == cpu  # type: ignore[index]
    assert part["zero_optimization"]["offload_optimizer"] == {**cpu, "ratio": 0.5}  # type: ignore[index]
    assert "offload_optimizer" not in none["zero_optimization"]  # type: ignore[operator]


def test_what_has_no_setting_is_refused() -> None:
    with pytest.raises(ExportError):
        megatron_flags(*asked("megatron", optimizer=1.0, stage=0))
    with pytest.raises(ExportError):
        deepspeed_json(*asked("deepspeed", optimizer=0.5, stage=2))
    with pytest.raises(ExportError):
        deepspeed_json(*asked("deepspeed", layers=2, stage=2))
    with pytest.raises(ExportError):
        internevo_settings(*asked("internevo", optimizer=1.0))
    with pytest.raises(ExportError):
        internevo_settings(*asked("internevo", layers=2))
