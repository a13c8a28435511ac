"""A plan as DeepSpeed's JSON: its numbers, what the script has to set, and what DeepSpeed refuses."""

import json
from dataclasses import replace
from typing import Any

import pytest

from ops.recompute import Recompute
from solver.plans.plan_table import Plan
from spec.errors import ExportError
from spec.mixers.attention import RopeScaling, RopeSpec
from tests.solver.questions import small_model
from tests.workload.random_plans import EXPERTS
from tests.workload.settings.problems import asked, known, with_block
from workload.settings.deepspeed import SCRIPT, check_deepspeed, deepspeed_json, deepspeed_settings

PLAN = Plan(strategy="mtp", preset="deepspeed")
ZERO = replace(PLAN, dp=2, zero_stage=1, zero_size=2)


def test_batches_and_shards() -> None:
    plan = replace(ZERO, pp=2, micro_batch=2, num_micro=4)
    written = deepspeed_json(asked(plan), plan)
    assert written["train_batch_size"] == 16
    assert (written["train_micro_batch_size_per_gpu"], written["gradient_accumulation_steps"]) == (2, 4)
    assert written["zero_optimization"]["stage"] == 1  # type: ignore[index]
    assert written["data_types"] == {"grad_accum_dtype": "bf16"}
    assert written["communication_data_type"] == "bf16"


def test_the_batch_of_autotp_is_left_to_deepspeed() -> None:
    """It would check it against micro x accumulation x all ranks, those that share a layer too (runtime/config.py)."""
    written = deepspeed_json(asked(replace(ZERO, tp=2)), replace(ZERO, tp=2))
    assert "train_batch_size" not in written
    assert written["tensor_parallel"] == {"autotp_size": 2}


def test_formats_of_gradients() -> None:
    written = deepspeed_json(asked(ZERO, job={"gradient": "fp32", "reduce": "fp32"}), ZERO)
    assert (written["data_types"], written["communication_data_type"]) == (
        {"grad_accum_dtype": "fp32"},
        "fp32",
    )
    # "unsupported mix of model_dtype and grad_accum_dtype" (runtime/engine.py, _do_optimizer_sanity_check)
    with pytest.raises(ExportError, match="gradients in fp32 without ZeRO"):
        deepspeed_json(asked(PLAN, job={"gradient": "fp32"}), PLAN)


def test_what_the_script_sets_stands_in_the_file_and_is_returned() -> None:
    model = with_block(
        small_model(layers=8), mlp=None, moe=replace(EXPERTS, route_groups=4, route_chosen_groups=2)
    )
    rope = RopeSpec(base=5e5, scaling=RopeScaling(kind="llama3", factor=8.0))
    model = replace(model, rope=rope, norm_epsilon=1e-6)
    plan = replace(ZERO, pp=2, ep=2, num_micro=2, recompute=Recompute.FULL)
    written = deepspeed_settings(asked(plan, model=model), plan)
    said = json.loads(written.text)[SCRIPT]
    assert written.notes == tuple(f"set in the training script: {note}" for note in said)
    words = "\n".join(said)
    for part in (
        "sequences of 1024 tokens, 4 a step",
        "num_stages=2",
        "ep_size=2",
        "checkpointing of every layer",
        "rotary base 500000, scaled as llama3 by 8",
        "norm epsilon 1e-06",
        "activation silu",
        "router weights by softmax, divided by their sum, times 1, from 2 of 4 groups",
    ):
        assert part in words


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        # runtime/pipe/engine.py: "ZeRO-2 and ZeRO-3 are incompatible with pipeline parallelism"
        ({"pp": 2, "dp": 2, "zero_stage": 2, "zero_size": 2}, "pipeline stages beside ZeRO-2"),
        ({"pp": 2, "dp": 2, "zero_stage": 3, "zero_size": 2}, "pipeline stages beside ZeRO-3"),
        ({"pp": 2, "tp": 2}, "AutoTP beside pipeline stages: .* model-parallel unit"),
        ({"tp": 2, "dp": 2, "zero_stage": 3, "zero_size": 2}, "AutoTP beside ZeRO-3"),
        ({"strategy": "fsp"}, "fsp sharding"),
        ({"dp": 4, "zero_stage": 1, "zero_size": 2}, "2 of 4"),
        ({"strategy": "ulysses", "tp": 2, "dp": 2, "zero_stage": 1, "zero_size": 2}, "2 of 4"),
        ({"tp": 4, "etp": 2}, "experts over tp 2 beside tp 4"),
        ({"preset": "megatron"}, "--framework deepspeed"),
    ],
)
def test_plans_that_deepspeed_does_not_run(changes: dict[str, Any], match: str) -> None:
    plan = replace(PLAN, num_micro=2, **changes)
    with pytest.raises(ExportError, match=match):
        deepspeed_settings(asked(plan), plan)


def test_its_pipelines_reduce_after_the_backward() -> None:
    plan = replace(ZERO, pp=2, num_micro=2)
    ahead = {"data_parallel.overlap_grad_reduce": True}
    with pytest.raises(ExportError, match="overlap_comm beside pipeline stages"):
        deepspeed_json(asked(plan, preset=ahead), plan)
    written = deepspeed_json(asked(ZERO, preset=ahead), ZERO)
    assert written["zero_optimization"]["overlap_comm"] is True  # type: ignore[index]


@pytest.mark.parametrize(
    ("job", "match"),
    [
        ({"compute": "fp32"}, "bf16 and fp16"),
        ({"linear": "fp8"}, "fp8 products"),
        ({"moments": "bf16"}, "optimizer states in bf16"),
        ({"gradient": "fp8"}, "gradients in fp8"),
        ({"reduce": "fp8"}, "reduced in fp8"),
    ],
)
def test_jobs_that_deepspeed_does_not_run(job: dict[str, Any], match: str) -> None:
    with pytest.raises(ExportError, match=match):
        check_deepspeed(*known(PLAN, job=job))


def test_ulysses_is_said_by_its_sequence_groups() -> None:
    """Batches are counted over dp alone, ZeRO-3 shards over dp x tp: a config as in DeepSpeed's tutorial,
    ulysses-alst-sequence-parallelism.md."""
    plan = replace(PLAN, strategy="ulysses", tp=4, dp=2, zero_stage=3, zero_size=8, num_micro=4)
    written = deepspeed_settings(asked(plan), plan)
    settings = json.loads(written.text)
    assert settings["sequence_parallel_size"] == 4
    assert "tensor_parallel" not in settings
    assert (settings["train_batch_size"], settings["zero_optimization"]["stage"]) == (8, 3)
    notes = "\n".join(settings[SCRIPT])
    assert "register_with_transformers(..., sequence_parallel_size=4)" in notes
    assert "UlyssesSPDataLoaderAdapter" in notes
