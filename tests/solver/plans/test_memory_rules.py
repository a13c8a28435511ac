"""Parts of layers on the host, as Megatron-Core takes them (transformer_config.py, fine_grained_activation_offloading)."""

from dataclasses import replace

import pytest

from ops.recompute import Recompute
from solver.plans.rules import RULES, modules_offload
from solver.problem.typed_plan import broken_rules, parse_plan, plan_of
from spec.cluster.cluster import HostSpec
from spec.errors import ConfigError
from spec.frameworks import framework_preset
from tests.solver.questions import question, small_model

REASON = next(rule.reason for rule in RULES if rule.keep is modules_offload)
CORE = {"offload_modules": ("core_attn",)}
INPUTS = {"offload_modules": ("layer_input",)}


@pytest.mark.parametrize(
    ("preset", "scopes", "changes", "refused"),
    [
        ("megatron", (), {}, False),
        ("megatron", (), CORE, False),
        (
            "megatron-bridge",
            (),
            {"offload_modules": ("core_attn", "attn_proj", "expert_fc1", "moe_act")},
            False,
        ),
        ("megatron", (), {"offload_modules": ("attn_proj",)}, True),
        ("megatron", (), {"offload_modules": ("fused_group_mlp",)}, False),
        ("megatron", (), {"offload_modules": ("fused_group_mlp", "moe_act")}, True),
        ("megatron", (), {"offload_modules": ("moe_act",), "recompute_modules": ("moe",)}, True),
        ("megatron", (), {"offload_modules": ("moe_act",), "recompute_modules": ("moe_act",)}, False),
        ("megatron", (), CORE | {"recompute_modules": ("moe",)}, False),
        ("megatron", (), CORE | {"offloaded_layers": 2}, True),
        ("megatron", (), CORE | {"recompute": Recompute.FULL}, True),
        ("megatron", (), CORE | {"recompute": Recompute.BLOCK, "num_recompute_layers": 1}, True),
        ("megatron", (), CORE | {"recompute": Recompute.SELECTIVE}, False),
        ("megatron", (), CORE | {"pp": 2, "dp": 4}, False),
        ("megatron", ("attn",), CORE, False),
        ("megatron", ("attn",), {"offload_modules": ("attn_norm",)}, True),
        ("megatron", ("moe_router",), {"offload_modules": ("attn_norm",)}, False),
        ("megatron", ("moe_router",), {"offload_modules": ("mlp_norm",)}, True),
        ("megatron", ("full_iteration",), {"offload_modules": ("mlp_norm",)}, False),
        ("megatron", ("moe",), CORE, True),
        ("nemo2", (), CORE, True),
        ("nanotron", (), CORE, True),
        ("deepspeed", (), CORE, True),
        ("fsdp", (), INPUTS | {"recompute": Recompute.FULL}, False),
        ("hf-trainer", (), INPUTS | {"recompute": Recompute.FULL}, False),
        ("fsdp", (), INPUTS | {"recompute": Recompute.BLOCK, "num_recompute_layers": 1}, False),
        ("fsdp", (), INPUTS, True),
        ("fsdp", (), CORE, True),
        ("megatron", (), INPUTS | {"recompute": Recompute.FULL}, True),
        ("torchtitan", (), INPUTS | {"recompute": Recompute.FULL}, True),
    ],
)
def test_parts_on_the_host_beside_the_rest(
    preset: str, scopes: tuple[str, ...], changes: dict[str, object], refused: bool
) -> None:
    asked = question(model=small_model(), world_size=8, preset=framework_preset(preset))
    asked = replace(asked, job=replace(asked.job, cuda_graphs=frozenset(scopes)))
    plan = replace(plan_of(parse_plan("strategy=mtp"), asked, "--plan"), **changes)
    assert (REASON in broken_rules(asked, plan)) is refused


def test_a_host_is_needed() -> None:
    asked = question(model=small_model(), world_size=8, preset=framework_preset("megatron"))
    written = parse_plan("strategy=mtp,offload_modules=core_attn+attn_proj")
    assert written.offload_modules == ("core_attn", "attn_proj")
    with pytest.raises(ConfigError, match="host"):
        plan_of(written, asked, "--plan")
    host = HostSpec(link_bandwidth=50e9, memory_bandwidth=400e9)
    told = plan_of(written, replace(asked, cluster=replace(asked.cluster, host=host)), "--plan")
    assert told.offload_modules == ("core_attn", "attn_proj")
    assert told.label().endswith("offload-core_attn+attn_proj")
    with pytest.raises(ConfigError, match="attn_projection"):
        parse_plan("offload_modules=attn_projection")
