"""What the experts' exchange wants of settings is told at once, what it wants of plans keeps them out."""

from dataclasses import replace

import pytest

from ops.recompute import Recompute
from solver.plans.rules import (
    RULES,
    exchange_has_company,
    tokens_fit_queues,
)
from solver.problem.typed_plan import broken_rules, parse_plan, plan_of
from spec.frameworks import framework_preset
from tests.solver.plans.test_rules import EXPERTS
from tests.solver.questions import question

BESIDE, BETWEEN = (
    next(rule.reason for rule in RULES if rule.keep is keep)
    for keep in (exchange_has_company, tokens_fit_queues)
)
SIZES = "DeepEP has no settings for so many ranks of experts"


@pytest.mark.parametrize(
    ("plan", "changes", "refused"),
    [
        ("ep=4", {}, False),
        ("ep=4,pp=2", {}, True),
        ("ep=4,pp=2,vpp=2", {}, False),
        ("pp=2", {}, False),
        ("ep=4", {"recompute": Recompute.FULL}, True),
        ("ep=4", {"recompute_modules": ("moe",)}, True),
        ("ep=4", {"recompute_modules": ("moe_act",)}, False),
    ],
)
def test_an_exchange_beside_another_micro_batch_wants_one(
    plan: str, changes: dict[str, object], refused: bool
) -> None:
    """transformer_config.py, overlap_moe_expert_parallel_comm: virtual stages where there are stages, nothing
    whole again.
    """
    asked = question(model=EXPERTS, world_size=16, preset=framework_preset("megatron"))
    told = plan_of(parse_plan(f"strategy=mtp,{plan}"), asked, "--plan")
    told = replace(told, **changes)
    beside = replace(asked, job=replace(asked.job, overlap_expert_a2a=True))
    assert (BESIDE in broken_rules(beside, told)) is refused
    assert BESIDE not in broken_rules(asked, told)


@pytest.mark.parametrize(
    ("seq_len", "plan", "dispatcher", "refused"),
    [
        (21844, "ep=16", "hybridep", False),
        (21845, "ep=16", "hybridep", True),
        (21848, "ep=16", "hybridep", True),
        (21848, "ep=8", "hybridep", False),
        (21848, "ep=16", "deepep", False),
        (21848, "ep=16,strategy=fsp,tp=4", "hybridep", False),
    ],
)
def test_hybridep_queues_so_many_tokens_between_domains(
    seq_len: int, plan: str, dispatcher: str, refused: bool
) -> None:
    """3 requests a token and one fit below 65,536: 21,844 tokens."""
    experts = replace(EXPERTS.blocks[0].block.moe, num_experts=16)
    model = replace(
        EXPERTS, blocks=(replace(EXPERTS.blocks[0], block=replace(EXPERTS.blocks[0].block, moe=experts)),)
    )
    asked = question(model=model, world_size=16, seq_len=seq_len, preset=framework_preset("megatron"))
    asked = replace(asked, job=replace(asked.job, moe_dispatcher=dispatcher))
    text = plan if "strategy" in plan else f"strategy=mtp,{plan}"
    assert (BETWEEN in broken_rules(asked, plan_of(parse_plan(text), asked, "--plan"))) is refused


@pytest.mark.parametrize(
    ("plan", "dispatcher", "refused"),
    [
        *((f"ep={ranks}", "deepep", False) for ranks in (2, 4, 8, 16, 32, 64, 160)),
        ("ep=40", "deepep", True),
        ("ep=40", "hybridep", False),
        ("ep=160,etp=2,strategy=fsp,tp=2", "deepep", True),
        ("ep=80,etp=2,strategy=fsp,tp=2", "deepep", False),
        ("ep=1", "deepep", False),
    ],
)
def test_deepep_has_settings_for_some_groups_of_experts(plan: str, dispatcher: str, refused: bool) -> None:
    """deep_ep/buffers/legacy.py: 160 ranks are among them, 40 and 320 are not; the group is that of ep x etp."""
    experts = replace(EXPERTS.blocks[0].block.moe, num_experts=320)
    model = replace(
        EXPERTS, blocks=(replace(EXPERTS.blocks[0], block=replace(EXPERTS.blocks[0].block, moe=experts)),)
    )
    asked = question(model=model, world_size=320, sequences=640, preset=framework_preset("megatron"))
    asked = replace(asked, job=replace(asked.job, moe_dispatcher=dispatcher))
    text = plan if "strategy" in plan else f"strategy=mtp,{plan}"
    assert (SIZES in broken_rules(asked, plan_of(parse_plan(text), asked, "--plan"))) is refused
