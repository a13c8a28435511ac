"""Jobs of runs that tune a trained model, as their scripts set them."""

import pytest

from tests.benchmarks.made_up_rows import job_of_row, row

HF = {"framework": "HF Trainer + FSDP1 none", "tp": "1", "pp": "1", "dp": "8", "zero_stage": "3"}
SIXTEEN_BITS = {"source": "scripts/benchmarks/refs/a100_80gb.csv"}
LORA = "LoRA fine-tuning r=16 on q_proj k_proj v_proj o_proj"


def test_nemo_adapts_the_joint_projection_alone_and_attends_within_documents() -> None:
    """nemo v2.3.0, llama3_8b.py: dim 8, target_modules linear_qkv, no fused loss; grad_reduce_in_fp32 False."""
    job = job_of_row(
        row(framework="NeMo LoRA", layers="32", notes="LoRA; inputs packed to 4096", seq_len="4096")
    )
    assert (job.adapter_rank, job.adapted, job.document_tokens) == (8, {"qkv"}, 180)
    assert not job.preset.loss.fused
    assert not job.preset.tensor_parallel.overlap
    assert (job.precision.gradient, job.precision.reduce) == ("bf16", "bf16")
    assert job_of_row(row(framework="NeMo LoRA", layers="80")).adapter_rank == 16
    whole = job_of_row(row(framework="NeMo SFT", notes="SFT"))
    assert (whole.adapter_rank, whole.document_tokens, whole.preset.loss.fused) == (0, 0, True)


def test_mlperfs_lora_adapts_both_projections_of_attention_beside_fp8_weights() -> None:
    """NVIDIA's megatron_gpt_peft_tuning_config.yaml: adapter_dim 16, target_modules attention, fp8_params,
    cp_comm_type a2a.
    """
    lora = {"framework": "MLPerf v5.0 NeMo NVIDIA", "gpu": "H100-80GB", "precision": "fp8"}
    for cells in ({"dataset": "mlperf_lora"}, {"model_name": "llama2-70b-LoRA"}):
        job = job_of_row(row(**lora | cells))
        assert (job.adapter_rank, job.adapted, job.adapter_dropout) == (16, {"qkv", "out"}, True)
        assert (job.precision.narrow_parameters, job.context_parallel) == (True, "all_to_all")
        assert job.document_tokens == 0
    assert not job_of_row(
        row(**lora | {"dataset": "mlperf_lora", "precision": "bf16"})
    ).precision.narrow_parameters
    assert job_of_row(row(**lora)).adapter_rank == 0


def test_mlperfs_lora_attends_in_8_bits_on_blackwell_by_scales_of_earlier_steps() -> None:
    """training_results_v5.0 and v5.1, llama2_70b_lora, config_common.sh: FP8_DPA=1, NVTE_FP8_DPA_BWD=1;
    custom_llama.py: DelayedScaling. v5.1 pre-trains by config_common.sh, FP8_RECIPE="tensorwise", v5.0 by the
    default "delayed"."""

    def said(release: str, gpu: str, precision: str, model: str) -> tuple[str, str]:
        found = job_of_row(
            row(framework=f"MLPerf {release} NeMo Dell", gpu=gpu, precision=precision, model_name=model)
        ).precision
        return found.attention, found.scaling

    for gpu in ("B200-180GB", "B300-288GB", "GB200", "GB300"):
        assert said("v5.1", gpu, "fp8", "llama2-70b-lora") == ("fp8", "delayed")
        assert said("v5.1", gpu, "fp4", "llama2-70b-lora")[0] == "fp8"
    assert said("v5.0", "H200-141GB", "fp8", "llama2-70b-lora") == ("bf16", "delayed")
    assert said("v5.1", "B200-180GB", "fp8", "llama3.1-8b")[0] == "bf16"
    assert said("v5.1", "B200-180GB", "fp8", "llama3.1-405b")[1] != "delayed"
    assert said("v5.0", "H100-80GB", "fp8", "llama3.1-405b") == ("bf16", "delayed")


@pytest.mark.parametrize(
    "cells",
    [{"notes": "26.04 NeMo container; LoRA"}, {"model_name": "llama3-70b-LoRA"}, {"notes": "PEFT"}],
)
def test_megatron_bridge_adapts_the_joint_projection_alone(cells: dict[str, str]) -> None:
    """recipes/llama/llama3.py of v0.4.1, llama3_70b_peft_config: dim 16, cross_entropy_loss_fusion False; peft/lora.py:
    dropout 0; configs/llama/llama3_llm_finetune.py: target_modules linear_qkv, grad_reduce_in_fp32 False."""
    said = {"framework": "Megatron-Bridge 26.04", "layers": "80"} | cells
    job = job_of_row(row(**said))
    assert (job.adapter_rank, job.adapted, job.adapter_dropout) == (16, {"qkv"}, False)
    assert (job.preset.loss.fused, job.document_tokens) == (False, 0)
    assert (job.precision.gradient, job.precision.reduce) == ("bf16", "bf16")
    assert job_of_row(row(**said | {"layers": "32"})).adapter_rank == 8
    packed = f"{cells.get('notes', '')}; inputs packed to 4096"
    assert job_of_row(row(**said | {"notes": packed})).document_tokens == 180
    for notes in ("PRETRAIN", "SFT", "MLA dims: q lora rank 64"):
        assert job_of_row(row(framework="Megatron-Bridge 26.04", notes=notes)).adapter_rank == 0


@pytest.mark.parametrize(
    ("notes", "rank", "adapted", "frozen"),
    [
        ("LoRA r=8 on q_proj k_proj v_proj", 8, {"q_k_v"}, ""),
        ("LoRA fine-tuning r=64 on all-linear", 64, {"q_k_v", "out", "up", "down"}, ""),
        ("QLoRA rank 16 on gate_proj up_proj down_proj", 16, {"up", "down"}, "nf4"),
        ("QLoRA-gptq r=16 on o_proj", 16, {"out"}, "int4"),
    ],
)
def test_peft_adapts_the_modules_that_a_row_names(
    notes: str, rank: int, adapted: set[str], frozen: str
) -> None:
    """peft tuners/lora: lora_dropout 0 (0.05 in trl/trainer/model_config.py) and, beside unquantized weights,
    adapters in fp32 (autocast_adapter_dtype)."""
    for framework in ("TRL SFT", "Axolotl", "LLaMA-Factory"):
        job = job_of_row(row(**HF | {"framework": framework, "notes": notes}))
        assert (job.adapter_rank, job.adapted, job.precision.frozen) == (rank, adapted, frozen)
        assert (job.adapter_dropout, job.adapter_dtype) == (framework == "TRL SFT", "" if frozen else "fp32")
        assert job.adapter_code == "autocast"


def test_torchtunes_adapters_run_in_the_models_own_format() -> None:
    """torchtune modules/peft/lora.py, LoRALinear.forward: no cast and no autocast."""
    notes = "QLoRA r=8 on all-linear"
    job = job_of_row(row(**HF | {"framework": "torchtune", "notes": notes}))
    assert (job.adapter_rank, job.adapted) == (8, {"q_k_v", "out", "up", "down"})
    assert (job.adapter_dtype, job.adapter_code, job.precision.frozen) == ("", "", "nf4")
    part = job_of_row(row(**HF | {"framework": "torchtune", "notes": "LoRA r=8 on q_proj v_proj"}))
    assert part.adapter_rank == 0


def test_trl_runs_hugging_faces_modules() -> None:
    """trl/trainer/sft_trainer.py: SFTTrainer extends transformers' Trainer."""
    job = job_of_row(row(framework="TRL SFT", zero_stage="3", tp="1", pp="1", dp="8"))
    assert (job.preset.name, job.unfused, job.attention_kernel) == (
        "hf-trainer",
        {"norm", "rotary"},
        "flash2",
    )
    assert job.context_parallel == "all_gather"


@pytest.mark.parametrize(
    ("framework", "source", "state"),
    [
        ("HF Trainer + FSDP1 none", "refs/a100_80gb.csv", ("", "bf16")),
        ("HF Trainer + FSDP1 QLoRA-bnb baseline-peft-bnb", "refs/a100_80gb.csv", ("fp32", "fp32")),
        ("HF Trainer + FSDP1 foak-fast-kernels-liger", "refs/a100_80gb_liger.csv", ("fp32", "fp32")),
    ],
)
def test_adam_is_in_16_bits_where_no_mixed_precision_is_asked_for(
    framework: str, source: str, state: tuple[str, str]
) -> None:
    job = job_of_row(row(**HF | {"framework": framework, "source": source}))
    assert (job.precision.master, job.precision.moments) == state


def test_hf_trainer_runs_hugging_faces_modules_unless_fast_kernels_replace_them() -> None:
    plain, fast = (
        job_of_row(row(**HF | SIXTEEN_BITS)),
        job_of_row(row(**HF | {"framework": "HF Trainer foak liger"})),
    )
    assert (plain.preset.name, plain.attention_kernel) == ("hf-trainer", "flash2")
    assert plain.unfused == {"norm", "rotary"}
    assert fast.unfused == frozenset()
    assert (fast.preset.loss.fused, fast.preset.loss.chunked) == (True, True)
    assert not plain.preset.loss.fused


@pytest.mark.parametrize(
    ("framework", "frozen", "dtype", "code"),
    [
        ("LoRA none", "", "fp32", "autocast"),
        ("LoRA foak-fast-kernels", "", "fp32", "autocast"),
        ("QLoRA-bnb baseline", "nf4", "", "autocast"),
        ("QLoRA-bnb accelerated-foak", "nf4", "", "fused"),
        ("QLoRA-gptq accelerated-foak", "int4", "", "fused"),
    ],
)
def test_adapters_their_code_and_the_format_of_what_is_frozen(
    framework: str, frozen: str, dtype: str, code: str
) -> None:
    job = job_of_row(row(**HF | {"framework": f"HF Trainer + FSDP1 {framework}", "notes": LORA}))
    assert (job.adapter_rank, job.adapted, job.precision.frozen) == (16, {"q_k_v", "out"}, frozen)
    assert (job.adapter_dropout, job.adapter_dtype, job.adapter_code) == (True, dtype, code)


def test_adapters_run_in_fp32_where_no_mixed_precision_casts_their_inputs() -> None:
    job = job_of_row(row(**HF | SIXTEEN_BITS | {"framework": "HF Trainer + FSDP1 LoRA none", "notes": LORA}))
    assert (job.adapter_dtype, job.adapter_code) == ("fp32", "")
