"""What Megatron-Core refuses beside CUDA graphs, and to run again (transformer_config.py, __post_init__)."""

from dataclasses import replace

import pytest

from ops.recompute import Recompute
from solver.plans.rules import RULES, graphs_capture, modules_recompute
from solver.problem.typed_plan import broken_rules, parse_plan, plan_of
from spec.cluster.cluster import HostSpec
from spec.frameworks import framework_preset
from tests.solver.questions import question, small_model

REASON = next(rule.reason for rule in RULES if rule.keep is graphs_capture)
PARTS = frozenset({"moe_router", "moe_preprocess"})
WHOLE = frozenset({"full_iteration"})


@pytest.mark.parametrize(
    ("scopes", "changes", "refused"),
    [
        (PARTS, {}, False),
        (PARTS, {"offloaded_layers": 2}, True),
        (WHOLE, {"offloaded_layers": 2}, False),
        (frozenset(), {"offloaded_layers": 2}, False),
        (PARTS, {"recompute": Recompute.FULL}, True),
        (PARTS, {"recompute": Recompute.BLOCK, "num_recompute_layers": 1}, True),
        (WHOLE, {"recompute": Recompute.FULL}, False),
        (frozenset({"attn"}), {"recompute_modules": ("moe",)}, False),
        (PARTS, {"recompute_modules": ("moe",)}, True),
        (PARTS, {"recompute_modules": ("moe_act",)}, False),
    ],
)
def test_graphs_of_parts_hold_layers_where_they_are(
    scopes: frozenset[str], changes: dict[str, object], refused: bool
) -> None:
    asked = question(model=small_model(), world_size=8, preset=framework_preset("megatron"))
    host = HostSpec(link_bandwidth=50e9, memory_bandwidth=400e9)
    asked = replace(
        asked, job=replace(asked.job, cuda_graphs=scopes), cluster=replace(asked.cluster, host=host)
    )
    plan = replace(plan_of(parse_plan("strategy=mtp"), asked, "--plan"), **changes)
    assert (REASON in broken_rules(asked, plan)) is refused


@pytest.mark.parametrize(
    ("module", "changes", "refused"),
    [
        ("moe_act", {"scaling": "delayed"}, True),
        ("layernorm", {"scaling": "delayed"}, True),
        ("mla_up_proj", {"scaling": "delayed"}, False),
        ("moe_act", {"scaling": "current"}, False),
        ("shared_experts", {"overlap_shared_experts": True}, True),
        ("shared_experts", {}, False),
    ],
)
def test_parts_that_cannot_be_made_again(module: str, changes: dict[str, object], refused: bool) -> None:
    """transformer_config.py: no norm or activation under delayed scaling, no shared experts beside which the
    exchange runs.
    """
    asked = question(model=small_model(), world_size=8, preset=framework_preset("megatron"))
    of_precision = {key: value for key, value in changes.items() if key == "scaling"}
    of_job = {key: value for key, value in changes.items() if key != "scaling"}
    told = replace(asked.job, precision=replace(asked.job.precision, **of_precision), **of_job)
    plan = replace(plan_of(parse_plan("strategy=mtp"), asked, "--plan"), recompute_modules=(module,))
    broken = broken_rules(replace(asked, job=told), plan)
    assert (next(rule.reason for rule in RULES if rule.keep is modules_recompute) in broken) is refused
