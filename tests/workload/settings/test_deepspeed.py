"""What DeepSpeed is told of a plan, in its JSON and in its training script."""

from ops.recompute.layers import Recompute
from solver.plans.plan_table import Plan
from solver.question import Question
from spec.presets.registry import PRESETS
from tests.solver.questions import question, small_model
from workload.settings.deepspeed import deepspeed_settings


def asked(plan: Plan) -> Question:
    return question(
        model=small_model(layers=8),
        world_size=plan.world_size,
        sequences=plan.dp * plan.micro_batch * plan.num_micro,
        preset=PRESETS[plan.preset],
    )


def test_deepspeed_settings_and_what_its_script_sets() -> None:
    plan = Plan(
        strategy="mtp",
        preset="deepspeed",
        recompute=Recompute.FULL,
        tp=2,
        pp=2,
        dp=2,
        zero_stage=1,
        zero_size=2,
        micro_batch=2,
        num_micro=4,
    )
    written, notes = deepspeed_settings(asked(plan), plan)
    assert written["train_batch_size"] == 16
    assert written["train_micro_batch_size_per_gpu"] * written["gradient_accumulation_steps"] == 8
    assert written["tensor_parallel"] == {"autotp_size": 2}
    assert written["zero_optimization"]["stage"] == 1
    assert [("num_stages=2" in note, "every layer" in note) for note in notes] == [
        (True, False),
        (False, True),
    ]


def test_deepspeed_is_told_of_ulysses_by_its_sequence_groups() -> None:
    """Batches are counted over dp alone, ZeRO-3 shards over dp x tp: a config as in DeepSpeed's tutorial,
    ulysses-alst-sequence-parallelism.md."""
    plan = Plan(
        strategy="ulysses",
        preset="deepspeed",
        tp=4,
        dp=2,
        zero_stage=3,
        zero_size=8,
        micro_batch=1,
        num_micro=4,
    )
    written, notes = deepspeed_settings(asked(plan), plan)
    assert written["sequence_parallel_size"] == 4
    assert "tensor_parallel" not in written
    assert (written["train_batch_size"], written["zero_optimization"]["stage"]) == (8, 3)
    assert "register_with_transformers(..., sequence_parallel_size=4)" in notes[0]
    assert "UlyssesSPDataLoaderAdapter" in notes[1]
