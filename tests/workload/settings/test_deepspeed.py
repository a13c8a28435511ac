"""A plan as DeepSpeed's JSON: its numbers, what the script has to set, and what DeepSpeed refuses."""

import json
from dataclasses import replace

import pytest

from ops.recompute import Recompute
from solver.plans.plan_table import Plan
from spec.errors import ExportError
from spec.mixers.attention import RopeScaling, RopeSpec
from tests.solver.questions import small_model, with_block
from tests.workload.random_plans import EXPERTS
from tests.workload.settings.problems import asked
from workload.settings.deepspeed import SCRIPT, deepspeed_json, deepspeed_settings

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


def test_autotp_shards_parameters_as_well() -> None:
    """DeepSpeed 0.19.6, runtime/engine.py: "AutoTP + ZeRO stage 3 is supported for both inference and training"."""
    plan = replace(ZERO, tp=2, zero_stage=3)
    written = deepspeed_json(asked(plan), plan)
    assert (written["tensor_parallel"], written["zero_optimization"]["stage"]) == ({"autotp_size": 2}, 3)  # type: ignore[index]


def test_stages_shard_layers_by_the_axes_of_their_grid() -> None:
    """AutoTP would put its own groups in the place of the grid's (runtime/engine.py, self.mpu = groups)."""
    plan = replace(ZERO, pp=2, tp=4, num_micro=2)
    written = json.loads(deepspeed_settings(asked(plan), plan).text)
    assert "tensor_parallel" not in written
    assert written["train_batch_size"] == 4
    topology = "PipeModelDataParallelTopology(num_pp=2, num_mp=4, num_dp=2)"
    assert f"deepspeed.pipe.PipelineModule(..., topology={topology})" in written[SCRIPT]
    assert any("shards over the 4 ranks of the topology's model axis" in note for note in written[SCRIPT])


def test_formats_of_gradients() -> None:
    written = deepspeed_json(asked(ZERO, job={"gradient": "fp32", "reduce": "fp32"}), ZERO)
    assert (written["data_types"], written["communication_data_type"]) == ({"grad_accum_dtype": "fp32"}, "fp32")


def test_what_the_script_sets_stands_in_the_file_and_is_returned() -> None:
    model = with_block(small_model(layers=8), mlp=None, moe=replace(EXPERTS, route_groups=4, route_chosen_groups=2))
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


def test_its_pipelines_reduce_after_the_backward() -> None:
    plan = replace(ZERO, pp=2, num_micro=2)
    ahead = {"data_parallel.overlap_grad_reduce": True}
    with pytest.raises(ExportError, match="overlap_comm beside pipeline stages"):
        deepspeed_json(asked(plan, preset=ahead), plan)
    written = deepspeed_json(asked(ZERO, preset=ahead), ZERO)
    assert written["zero_optimization"]["overlap_comm"] is True  # type: ignore[index]


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
