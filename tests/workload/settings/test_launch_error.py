"""Every key of a plan is said by a framework's settings, or refused."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from ops.recompute.layers import Recompute
from solver.pipeline.schedules import Schedule
from solver.plans.plan_table import Plan
from spec.errors import ExportError
from spec.presets.registry import PRESETS
from spec.settings.plan import plan_settings
from tests.solver.questions import question, small_model
from workload.settings import deepspeed, internevo, megatron

# A plan in which the key is said.
CHANGES: dict[str, dict[str, object]] = {
    "tp": {"tp": 2},
    "pp": {"pp": 2},
    "wp": {"wp": 2},
    "ep": {"ep": 2},
    "etp": {"etp": 2},
    "cp": {"cp": 2},
    "vpp": {"vpp": 2},
    "zero_stage": {"zero_stage": 1},
    "zero_size": {"zero_size": 2},
    "micro_batch": {"micro_batch": 2},
    "num_micro": {"num_micro": 2},
    "recompute": {"recompute": Recompute.FULL},
    "recompute_layers": {"recompute": Recompute.BLOCK, "num_recompute_layers": 2},
    "recompute_modules": {"recompute_modules": ("mlp",)},
    "schedule": {"schedule": Schedule.ZB_H1},
    "layout": {"stage_layout": "Et*4|t*4L"},
    "optimizer_offload": {"optimizer_offload": 0.5},
    "offloaded_layers": {"offloaded_layers": 2},
    "offload_modules": {"offload_modules": ("core_attn",)},
}
WRITERS: tuple[tuple[str, Callable[..., object], frozenset[str]], ...] = (
    ("deepspeed", deepspeed.deepspeed_settings, deepspeed.SAYS),
    ("internevo", internevo.internevo_settings, internevo.SAYS),
    ("megatron", megatron.megatron_settings, megatron.SAYS),
)
UNSAID = [
    pytest.param(name, write, key, id=f"{name} {key}")
    for name, write, says in WRITERS
    for key in CHANGES
    if key not in says
]


def test_every_key_of_the_table_is_tried() -> None:
    assert CHANGES.keys() == plan_settings().keys() - {"strategy", "preset"}


@pytest.mark.parametrize(("name", "write", "key"), UNSAID)
def test_a_key_without_a_setting_is_refused_by_name(
    name: str, write: Callable[..., object], key: str
) -> None:
    plan = replace(Plan(strategy="mtp", preset=name), **CHANGES[key])
    asked = question(
        world_size=plan.world_size, sequences=8, preset=PRESETS[name], model=small_model(layers=8)
    )
    with pytest.raises(ExportError, match=f"no setting for .*{key} = "):
        write(asked, plan)


def test_a_plan_that_sets_nothing_is_written_by_all() -> None:
    for name, write, _ in WRITERS:
        asked = question(world_size=1, sequences=1, preset=PRESETS[name], model=small_model(layers=8))
        write(asked, Plan(strategy="mtp", preset=name))
