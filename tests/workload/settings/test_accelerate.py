"""A plan as accelerate's configuration: its keys, its degrees, and what it refuses."""

import json
from dataclasses import replace
from typing import Any

import pytest

from ops.recompute import Recompute
from solver.plans.plan_table import Plan
from spec.errors import ExportError
from tests.workload.settings.accepted.lists import check_keys
from tests.workload.settings.problems import asked
from workload.settings.accelerate import accelerate_config, accelerate_settings

SHARDED = Plan(strategy="mtp", preset="fsdp", dp=8, zero_stage=3, zero_size=8, micro_batch=2, num_micro=3)


def config_of(plan: Plan, **changes: Any) -> dict[str, Any]:
    config: dict[str, Any] = accelerate_config(asked(plan, **changes), plan)  # type: ignore[assignment]
    check_keys("accelerate", config)
    return config


def read(text: str) -> dict[str, Any]:
    """The lines as YAML reads them: a mapping of scalars, two levels deep."""
    found: dict[str, Any] = {}
    inner = found
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        key, _, value = line.strip().partition(":")
        if not line.startswith(" "):
            inner = found
        if value:
            inner[key] = json.loads(value)
        else:
            inner = found[key] = {}
    return found


def test_the_file_is_the_configuration() -> None:
    question = asked(SHARDED)
    written = accelerate_settings(question, SHARDED)
    assert read(written.text) == accelerate_config(question, SHARDED)
    assert written.text.startswith("# mtp dp8 zero3/8 mb2x3\n")
    assert "set per_device_train_batch_size=2 and gradient_accumulation_steps=3 in the script" in written.notes
    assert f"set sequences of {question.job.seq_len} tokens" in written.notes


def test_stage_three_frees_what_it_gathered() -> None:
    assert config_of(SHARDED)["fsdp_config"]["fsdp_reshard_after_forward"] is True
    assert config_of(replace(SHARDED, zero_stage=2))["fsdp_config"]["fsdp_reshard_after_forward"] is False
    plain = config_of(replace(SHARDED, zero_stage=0, zero_size=1))
    assert (plain["distributed_type"], plain["num_processes"]) == ("MULTI_GPU", 8)
    assert "fsdp_config" not in plain


def test_degrees_multiply_to_the_world() -> None:
    """parallelism_config.py, ``total_size``: replicas x shards x cp x tp; shards lie over dp_shard x cp."""
    plan = replace(SHARDED, tp=2, cp=2, dp=4, zero_size=4)
    config = config_of(plan, job={"context_parallel": "all_gather"})
    degrees = config["parallelism_config"]
    assert degrees["parallelism_config_cp_comm_strategy"] == "allgather"
    sizes = [degrees[f"parallelism_config_{name}_size"] for name in ("dp_replicate", "dp_shard", "cp", "tp")]
    assert sizes == [2, 2, 2, 2]
    assert config["num_processes"] == 16
    ring = config_of(plan)["parallelism_config"]["parallelism_config_cp_comm_strategy"]
    assert ring == "alltoall"


def test_the_old_sharding_of_the_trainer() -> None:
    old = replace(SHARDED, preset="hf-trainer", dp=16, zero_size=16, recompute=Recompute.FULL)
    config = config_of(old)
    assert config["fsdp_config"]["fsdp_sharding_strategy"] == "FULL_SHARD"
    assert "parallelism_config" not in config
    assert "set gradient_checkpointing=True in the script" in accelerate_settings(asked(old), old).notes
    within = config_of(replace(old, zero_size=8))
    assert within["fsdp_config"]["fsdp_sharding_strategy"] == "HYBRID_SHARD"
    shallow = config_of(replace(old, zero_stage=2, zero_size=8))
    assert shallow["fsdp_config"]["fsdp_sharding_strategy"] == "HYBRID_SHARD_ZERO2"
    with pytest.raises(ExportError, match="FSDP1 over 4 of 16"):
        config_of(replace(old, zero_size=4))
    with pytest.raises(ExportError, match="beside FSDP1"):
        config_of(replace(old, tp=2))


def test_compiled_and_recomputed_layers() -> None:
    compiled = replace(SHARDED, preset="fsdp-compiled", recompute=Recompute.FULL)
    config = config_of(compiled)
    assert config["dynamo_config"]["dynamo_backend"] == "INDUCTOR"
    assert config["fsdp_config"]["fsdp_activation_checkpointing"] is True
    assert "dynamo_config" not in config_of(SHARDED)
    with pytest.raises(ExportError, match="selective"):
        config_of(replace(SHARDED, recompute=Recompute.SELECTIVE))


def test_pure_sixteen_bits_is_the_models_own_format() -> None:
    pure = {"master": "", "moments": "bf16"}
    assert config_of(SHARDED, job=pure)["mixed_precision"] == "no"
    assert "load the model in bf16" in accelerate_settings(asked(SHARDED, job=pure), SHARDED).notes
    assert config_of(SHARDED)["mixed_precision"] == "bf16"
