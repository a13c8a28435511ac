"""What a framework's published recipes fill in, and only where a row leaves it open."""

import pytest

from ops.recompute import Recompute
from tests.benchmarks.made_up_rows import EXPERTS, plans

AUTOMODEL = EXPERTS | {
    "framework": "NeMo-AutoModel FSDP2",
    "tp": "1",
    "dp": "8",
    "ep": "1",
    "zero_stage": "3",
    "notes": "kernels: TE + DeepEP",
}


def test_experts_of_megatron_core_run_micro_batch_1_unless_a_row_says() -> None:
    """yanring/Megatron-MoE-ModelZoo, runtime.conf: MBS 1."""
    open_row = EXPERTS | {"framework": "Megatron-Core", "micro_batch": "", "dp": "4"}
    assert {plan.micro_batch for plan in plans(**open_row)} == {1}
    assert {plan.micro_batch for plan in plans(**open_row | {"micro_batch": "2"})} == {2}
    dense = open_row | {"num_experts": ""}
    assert {plan.micro_batch for plan in plans(**dense)} == {1, 2}


def test_deepep_over_one_rank_means_all_fsdp_ranks() -> None:
    """AutoModel's gptoss_20b_te_deepep.yaml: ep_size 8 on 8 GPUs."""
    assert {plan.ep for plan in plans(**AUTOMODEL)} == {8}
    assert {plan.ep for plan in plans(**AUTOMODEL | {"ep": "4"})} == {4}
    assert {plan.ep for plan in plans(**AUTOMODEL | {"notes": "kernels: TE"})} == {1}
    assert {plan.ep for plan in plans(**AUTOMODEL | {"num_experts": "12"})} == {1}


@pytest.mark.parametrize(
    ("model", "kinds"),
    [("gpt-oss-20b", {Recompute.NONE}), ("qwen3-30b-a3b", {Recompute.FULL}), ("other", set(Recompute))],
)
def test_automodel_recomputes_as_its_recipes_do(model: str, kinds: set[Recompute]) -> None:
    """activation_checkpointing of examples/benchmark/configs; an unknown model leaves every mode open."""
    found = plans(**AUTOMODEL | {"recompute": "unknown", "model_name": model})
    assert {plan.recompute for plan in found} == kinds
    stated = plans(**AUTOMODEL | {"recompute": "selective", "model_name": model})
    assert {plan.recompute for plan in stated} == {Recompute.SELECTIVE}
