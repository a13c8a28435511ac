"""What the files that launch a published run set, taken for exactly the models they launch."""

import pytest

from ops.recompute import Recompute
from tests.benchmarks.made_up_rows import job_of_row, plans, row

NEMO = {"framework": "NeMo/Megatron-Core", "notes": "NeMo 24.07 container, FP8"}


@pytest.mark.parametrize("name", ["gpt3-5b", "gpt3-175b", "llama2-7b", "llama3-70b"])
def test_nemo_of_2407_reduces_and_adds_up_gradients_in_16_bits(name: str) -> None:
    """NeMo-Framework-Launcher 24.07, examples/training: +training.model.optim.grad_sync_dtype=bf16."""
    preset = job_of_row(row(model_name=name, **NEMO)).preset
    assert not preset.data_parallel.fp32_gradients
    assert preset.data_parallel.accumulation == "accumulate_16bit"


def test_models_that_the_launcher_has_no_script_for_keep_fp32_gradients() -> None:
    for other in ({"model_name": "nemotron-8b"}, {"notes": "NeMo 24.03 container"}):
        cells = NEMO | {"model_name": "gpt3-5b"} | other
        assert job_of_row(row(**cells)).preset.data_parallel.fp32_gradients
    assert job_of_row(row(**NEMO | {"model_name": "gpt3-5b", "framework": "Megatron-Core"})).dropout is False


@pytest.mark.parametrize(
    ("name", "fused"),
    [("gpt3-20b", False), ("llama2-70b", False), ("llama3-8b", True), ("nemotron-8b", True)],
)
def test_nemo_of_2407_fuses_the_loss_of_models_whose_files_say_so(name: str, fused: bool) -> None:
    """NeMo-Framework-Launcher 24.07, launcher_scripts/conf/training: cross_entropy_loss_fusion."""
    assert job_of_row(row(model_name=name, **NEMO)).preset.loss.fused is fused


def test_only_gpt3_has_dropout_and_its_largest_no_overlap_in_products() -> None:
    """launcher_scripts/conf/training/gpt3 and llama of 24.07: hidden_dropout, ub_tp_comm_overlap."""
    told = {}
    for name in ("gpt3-20b", "gpt3-175b", "llama2-70b"):
        job = job_of_row(row(model_name=name, **NEMO))
        told[name] = (job.dropout, job.preset.tensor_parallel.overlap)
    assert told == {"gpt3-20b": (True, True), "gpt3-175b": (True, False), "llama2-70b": (False, True)}
    of_dgxc = {"framework": "NeMo (DGX Cloud recipe v25.02)"}
    assert [job_of_row(row(model_name=name, **of_dgxc)).dropout for name in told] == [False, True, False]


def test_shared_experts_run_beside_the_exchange_where_the_model_s_file_says_so() -> None:
    """Megatron-MoE-ModelZoo, model_configs/benchmarking: Qwen2-57B-A14B.yaml has the switch, Mixtral's have
    no shared experts.
    """
    told = {
        (framework, name): job_of_row(row(model_name=name, framework=framework)).overlap_shared_experts
        for framework in ("Megatron-Core", "Megatron-Bridge 26.02")
        for name in ("qwen2-57b-a14b", "mixtral-8x22b")
    }
    assert [which for which, overlaps in told.items() if overlaps] == [("Megatron-Core", "qwen2-57b-a14b")]


def test_dgx_cloud_runs_no_layer_again_but_the_attention_of_nemotron_340b() -> None:
    """NVIDIA/dgxc-benchmarking v25.01 to v25.04: activations_checkpoint_granularity."""

    def told(name: str, release: str, stated: str = "unknown") -> set[Recompute]:
        framework = f"NeMo (DGX Cloud recipe v{release})"
        return {one.recompute for one in plans(model_name=name, framework=framework, recompute=stated)}

    for name in ("llama3.1-8b", "llama3.1-405b", "grok1-314b", "nemotron4-15b", "gpt3-175b"):
        assert told(name, "25.02.02") == {Recompute.NONE}
    assert told("nemotron4-340b", "25.01.1") == {Recompute.SELECTIVE}
    assert (
        told("nemotron4-340b", "25.04.02")
        == told("llama3.1-8b", "25.05")
        == set(Recompute) - {Recompute.BLOCK}
    )
    assert told("llama3.1-8b", "25.02.02", "full") == {Recompute.FULL}


@pytest.mark.parametrize(("precision", "early"), [("amp_bf16", True), ("amp_fp8", True), ("bf16", False)])
def test_composer_ends_recomputation_early_since_torch_2_1(precision: str, early: bool) -> None:
    """llm-foundry scripts/train/benchmarking/sweep.sh: torch 1.13.1 (300cc5c58), 2.1.0 with 'amp_' +
    precision (b2a43a147).
    """
    job = job_of_row(row(framework="llm-foundry/Composer FSDP1", precision=precision))
    assert job.preset.recomputation.stops_early is early


@pytest.mark.parametrize(
    ("cells", "gathers"),
    [
        ({"num_gpus": "128", "dp": "128", "model_name": "mpt-3b"}, True),
        ({"num_gpus": "128", "dp": "128", "model_name": "mpt-13b"}, False),
        ({"num_gpus": "8", "dp": "8", "model_name": "mpt-3b"}, False),
    ],
)
def test_llm_foundry_gathers_tokens_by_index_before_flash_attention_alone(
    cells: dict[str, str], gathers: bool
) -> None:
    """llm-foundry 5e85bd62d: sweep.py (attn_impl of each model) and models/layers/attention.py."""
    alone = {"framework": "llm-foundry/Composer FSDP1", "gpu": "H100-80GB", "tp": "1", "pp": "1"}
    assert job_of_row(row(**alone | cells)).preset.layers.unpads_tokens is gathers
