"""A plan as the zero-bubble fork's flags, and what the fork refuses (megatron/core/zbpp_utils.py)."""

from dataclasses import replace
from typing import Any

import pytest

from ops.recompute import Recompute
from solver.plans.plan_table import Plan
from solver.plans.schedules import Schedule
from spec.errors import ExportError
from spec.readers.read_config import read_config
from tests.solver.questions import ROOT, small_model, with_block
from tests.workload.random_plans import EXPERTS
from tests.workload.settings.accepted.lists import parse_flags
from tests.workload.settings.problems import asked, known
from workload.settings.zero_bubble import check_zero_bubble, zero_bubble_flags, zero_bubble_settings

PLAN = Plan(strategy="fsp", preset="zero-bubble", pp=4, num_micro=8, schedule=Schedule.ZB_H1)
ROUTED = with_block(small_model(layers=8), mlp=None, moe=replace(EXPERTS, shared_ffn_hidden=0))
HALF = dict.fromkeys(
    ("compute", "parameter", "parameter_gather", "activation", "attention", "linear", "moe_dispatch"), "fp16"
)


def flags_of(plan: Plan, **changes: Any) -> dict[str, object]:
    return dict(zero_bubble_flags(asked(plan, **changes), plan))


@pytest.mark.parametrize(
    ("schedule", "pending"), [(Schedule.ZB_H1, 4), (Schedule.ZB_1P, 4), (Schedule.ZB_H2, 8), (Schedule.ZB_2P, 8)]
)
def test_schedules_are_a_bound_on_what_is_pending(schedule: Schedule, pending: int) -> None:
    """README: one micro-batch a stage gives ZB1P, two give ZB2P."""
    flags = flags_of(replace(PLAN, schedule=schedule))
    assert flags["--zero-bubble-max-pending-backward"] == pending
    assert flags["--transformer-impl"] == "local"
    assert "--enable-zero-bubble" in flags
    parse_flags("zero-bubble", zero_bubble_settings(asked(PLAN), PLAN).text)


def test_the_words_of_core_0_9() -> None:
    plain = replace(PLAN, schedule=Schedule.ONE_F_ONE_B)
    flags = flags_of(plain)
    assert "--use-flash-attn" in flags
    assert "--enable-zero-bubble" not in flags
    assert "--no-pre-communication-optimization" in flags
    chunked = flags_of(replace(plain, pp=2, vpp=2))
    assert chunked["--num-layers-per-virtual-pipeline-stage"] == 2
    assert flags_of(replace(plain, pp=1), model=ROUTED)["--ffn-hidden-size"] == EXPERTS.expert_ffn_hidden
    routed = asked(replace(plain, pp=1), model=ROUTED)
    assert "--moe-permute-fusion" not in zero_bubble_flags(routed, replace(plain, pp=1))
    assert "by a fused kernel" in zero_bubble_settings(routed, replace(plain, pp=1)).text
    selective = flags_of(replace(plain, recompute=Recompute.SELECTIVE))
    assert selective["--recompute-granularity"] == "selective"
    assert "--recompute-modules" not in selective


def test_its_own_optimizer_step_is_for_fp16() -> None:
    job = {**HALF, "gradient": "fp32", "reduce": "fp32"}
    assert "--enable-optimizer-post-validation" in flags_of(PLAN, job=job)
    notes = zero_bubble_settings(asked(PLAN), PLAN).notes
    assert any("stages that update before the last is ready" in note for note in notes)
    assert any("the order of its passes" in note for note in notes)
    half = zero_bubble_settings(asked(PLAN, job=job), PLAN).notes
    assert not any("update before" in note for note in half)


def test_models_that_the_fork_does_not_have() -> None:
    with pytest.raises(ExportError, match="tied"):
        check_zero_bubble(*known(PLAN, model=replace(small_model(), tied_embeddings=True)))
    shared = with_block(small_model(layers=8), mlp=None, moe=EXPERTS)
    with pytest.raises(ExportError, match="moe-shared-expert-intermediate-size"):
        flags_of(PLAN, model=shared)
    split = replace(PLAN, tp=2, dp=2, etp=1)
    with pytest.raises(ExportError, match="another tp"):
        flags_of(split, model=ROUTED)


def test_the_preset_reduces_as_the_fork_does() -> None:
    """zbpp_utils.validate_arguments: neither overlap beside the distributed optimizer."""
    plan = replace(PLAN, dp=2, zero_stage=1, zero_size=2)
    assert not flags_of(plan).keys() & {"--overlap-grad-reduce", "--overlap-param-gather"}


def test_what_core_0_9_lacks_is_refused_before_a_plan() -> None:
    for name, flag in (("8B_nemotron_h", "--hybrid-layer-pattern"), ("16B_deepseek_v2_lite", "--")):
        config = next((ROOT / "configs").glob(f"{name}.*"))
        with pytest.raises(ExportError, match=f"what {flag}.* says, which its core 0.9 lacks"):
            check_zero_bubble(*known(PLAN, model=read_config(config).model))
