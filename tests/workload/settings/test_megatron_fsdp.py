"""Plans as Megatron-LM's command line with Megatron-FSDP."""

from dataclasses import replace
from typing import Any

import pytest

from solver.plans.plan_table import Plan
from spec.errors import ExportError
from tests.workload.settings.accepted.lists import parse_flags
from tests.workload.settings.problems import asked
from workload.settings.megatron_fsdp import check_megatron_fsdp, megatron_fsdp_flags, megatron_fsdp_settings

PLAN = Plan(strategy="fsp", preset="megatron-fsdp", tp=2, dp=4, zero_stage=3, zero_size=4, num_micro=2)


@pytest.mark.parametrize(
    ("stage", "strategy", "fused"),
    [(0, "no_shard", True), (1, "optim", True), (2, "optim_grads", False), (3, "optim_grads_params", False)],
)
def test_a_zero_stage_is_a_sharding_strategy(stage: int, strategy: str, fused: bool) -> None:
    """docs/user-guide/features/megatron_fsdp.md; gradient accumulation is not fused where gradients are sharded
    (examples/megatron_fsdp/train_llama3_8b_fsdp_h100_fp8.sh)."""
    plan = replace(PLAN, zero_stage=stage, zero_size=4 if stage else 1)
    flags = megatron_fsdp_flags(asked(plan), plan)
    assert flags["--data-parallel-sharding-strategy"] == strategy
    assert ("--no-gradient-accumulation-fusion" not in flags) is fused
    assert ("--use-distributed-optimizer" in flags) is (stage > 0)
    assert {"--use-megatron-fsdp", "--ckpt-format"} <= set(flags)


def test_units_are_layers_and_replicas_of_shards_are_instances() -> None:
    plan = replace(PLAN, zero_size=2)
    parse_flags("megatron-core-0.19", megatron_fsdp_settings(asked(plan), plan).text)
    flags = megatron_fsdp_flags(asked(plan), plan)
    assert flags["--num-distributed-optimizer-instances"] == 2
    assert "--ddp-bucket-size" not in flags


def test_its_streams_want_several_connections() -> None:
    """validate_args: "FSDP requires CUDA_DEVICE_MAX_CONNECTIONS > 1 or unset", where tensor parallelism alone wants 1."""
    notes = [note for note in megatron_fsdp_settings(asked(PLAN), PLAN).notes if "CONNECTIONS" in note]
    assert notes == ["leave CUDA_DEVICE_MAX_CONNECTIONS unset"]


@pytest.mark.parametrize(
    ("job", "words"),
    [
        ({"optimizer": "muon"}, "another optimizer than Adam"),
        ({"overlap_expert_a2a": True, "cuda_graphs": frozenset({"attn"})}, "beside overlapped experts"),
    ],
)
def test_jobs_that_it_does_not_run(job: dict[str, Any], words: str) -> None:
    problem = asked(PLAN, job=job)
    with pytest.raises(ExportError, match=words):
        check_megatron_fsdp(problem.model, problem.job)
