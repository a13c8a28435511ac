"""Settings of runs that tune a trained model, by the scripts that ran them."""

import re
from collections.abc import Iterable

from benchmarks.accuracy_rows.frameworks import runs_modules_of_hugging_face
from benchmarks.accuracy_rows.row import Row

# SQuAD's paragraph and question with their prompt (NeMo, collections/llm/gpt/data/squad.py). Assumption: some 127 words
# (arXiv 1606.05250 sec. 3-4: paragraphs of about 117, questions of about 10), 1.3 tokens a word, and the prompt.
SQUAD_TOKENS = 180

# Modules of Hugging Face's Llama that one word of a job's ``adapted`` stands for.
ADAPTED_MODULES = {
    "q_k_v": frozenset({"q_proj", "k_proj", "v_proj"}),
    "out": frozenset({"o_proj"}),
    "up": frozenset({"gate_proj", "up_proj"}),
    "down": frozenset({"down_proj"}),
}
# How a row says that adapters are trained; kv_lora_rank and its like are dimensions of attention.
ADAPTS = re.compile(r"(?<![a-z])Q?LoRA(?![a-z])|\bLORA\b|\bPEFT\b|[-_]lora\b")
ATTEND_IN_FP8 = ("B200", "B300", "GB200", "GB300")
ALL_LINEAR = re.compile(r"\ball[- ]linear\b")


def fine_tuning(row: Row) -> dict[str, object]:
    """What a row's script sets beside its framework's preset; nothing for a training from scratch."""
    framework = row.text("framework")
    if adapts_for_mlperf(row):
        return _mlperf(row)
    if framework.startswith(("NeMo SFT", "NeMo LoRA")):
        return _nemo(row, lora="LoRA" in framework)
    if framework.startswith("HF Trainer"):
        return _hf_trainer(row, framework)
    if "Megatron-Bridge" in framework and adapts(row):
        return _megatron_bridge(row)
    if adapts(row) and runs_modules_of_hugging_face(row):
        return _adapters(row, autocast=True)
    if adapts(row) and "torchtune" in framework.lower():
        return _adapters(row, autocast=False)
    return {}


def adapts(row: Row) -> bool:
    """Whether a row says that it trains adapters, in the names of its framework and model or in its notes."""
    said = f"{row.text('framework')}; {row.text('model_name')}; {row.notes}"
    return ADAPTS.search(said) is not None


def adapts_for_mlperf(row: Row) -> bool:
    """Whether a row is of MLPerf's benchmark of LoRA, by its dataset or, of a submission, by its model."""
    said = f"{row.text('framework')} {row.text('model_name')}".lower()
    return row.dataset == "mlperf_lora" or ("mlperf" in said and "lora" in said)


def _mlperf(row: Row) -> dict[str, object]:
    """mlcommons/training_results_v4.1, NVIDIA/benchmarks/llama2_70b_lora/implementations/b200_preview_nemo,
    conf/megatron_gpt_peft_tuning_config.yaml: rank 16 on both projections of attention, adapter_dropout 0.1,
    cp_comm_type a2a, samples packed without their bounds (packed_sequence_return_cu_seqlen False). Its
    configurations for Blackwell, and every submitter's of v5.0 and v5.1 (config_common.sh): FP8_DPA=1 and
    NVTE_FP8_DPA_BWD=1; those of Hopper differ."""
    said: dict[str, object] = {
        "adapted": "qkv+out",
        "adapter_rank": 16,
        "adapter_dropout": True,
        "context_parallel": "all_to_all",
    }
    if row.text("precision") != "bf16" and row.text("gpu").startswith(ATTEND_IN_FP8):
        said["precision.attention"] = "fp8"
    return said


def _nemo(row: Row, *, lora: bool) -> dict[str, object]:
    """nemo/collections/llm/recipes/llama3_8b.py and llama3_70b.py of v2.3.0, finetune_recipe and
    finetune_performance_optimizations: LoRA of rank 8 (8B) or 16 on linear_qkv alone, with neither tp overlap nor
    a fused loss."""
    said: dict[str, object] = {}
    if "packed" in row.notes:
        said["document_tokens"] = SQUAD_TOKENS
    if lora:
        said |= {"adapted": "qkv", "adapter_rank": 8 if row.whole("layers") == 32 else 16}
        said |= {"tensor_parallel.overlap": False, "loss.fused": False}
    return said


def modules_named(notes: str) -> frozenset[str]:
    """The modules that notes name, all of a layer where they say so."""
    if ALL_LINEAR.search(notes):
        return modules_of(ADAPTED_MODULES)
    return frozenset(re.findall(r"\b(?:q|k|v|o|gate|up|down)_proj\b", notes))


def modules_of(words: Iterable[str]) -> frozenset[str]:
    """The modules of Hugging Face's that words of ``adapted`` stand for; none for the joint "qkv"."""
    return frozenset[str]().union(*(ADAPTED_MODULES.get(word, frozenset()) for word in words))


def _megatron_bridge(row: Row) -> dict[str, object]:
    """Megatron-Bridge v0.2.0 to v0.5, recipes/llama/llama3.py: dim 8 (8B) or 16 (70B), cross_entropy_loss_fusion
    False, and linear_qkv alone as scripts/performance sets it (configs/llama/llama3_llm_finetune.py,
    cfg.peft.target_modules); peft/lora.py: dropout 0. Its data are whole sequences unless the notes say packed
    (scripts/performance/argument_parser.py: --data mock)."""
    said: dict[str, object] = {
        "adapted": "qkv",
        "adapter_rank": 8 if row.whole("layers") == 32 else 16,
        "loss.fused": False,
    }
    if "packed" in row.notes:
        said["document_tokens"] = SQUAD_TOKENS
    return said


def _adapters(row: Row, *, autocast: bool) -> dict[str, object]:
    """Adapters where a row states rank and modules; nothing where it leaves one open or names modules that no word of
    a job stands for.

    ``autocast``: peft's beside Hugging Face's Trainer (tuners/lora/config.py: lora_dropout 0, but 0.05 in trl's
    scripts; formats as in ``_hf_trainer``), whose 4 bits are nf4 (trl/trainer/model_config.py: lora_dropout,
    bnb_4bit_quant_type). Else torchtune's (modules/peft/lora.py, LoRALinear, of the model's own format; its configs
    have lora_dropout 0.0; qlora_* quantizes frozen weights to NF4).
    """
    rank = re.search(r"\b(?:r|rank|lora_r|lora_rank)[= ](\d+)", row.notes)
    named = modules_named(row.notes)
    whole = [word for word, modules in ADAPTED_MODULES.items() if modules <= named]
    if rank is None or not whole or named != modules_of(whole):
        return {}
    quantized = "QLoRA" in f"{row.text('framework')}; {row.text('model_name')}; {row.notes}"
    said: dict[str, object] = {
        "adapted": "+".join(whole),
        "adapter_rank": int(rank[1]),
        "adapter_dtype": "fp32" if autocast and not quantized else "none",
        "adapter_code": "autocast" if autocast else "none",
        "adapter_dropout": "trl" in row.text("framework").lower(),
    }
    return said | (
        {"precision.frozen": "int4" if "gptq" in row.notes.lower() else "nf4"} if quantized else {}
    )


def _hf_trainer(row: Row, framework: str) -> dict[str, object]:
    """foundation-model-stack/fms-acceleration, scripts/benchmarks: adapters on q, k, v and o, with
    lora_dropout 0.1; fast kernels for norm, rotary embedding and loss ("foak",
    plugins/fused-ops-and-kernels). Trained parameters and AdamW are in 16 bits (accelerate.yaml:
    mixed_precision "no") where the scenario does not say bf16: scenarios.yaml says so of bnb alone,
    scenarios-liger.yaml of all, and accelerate then holds them in fp32 (accelerator.py, prepare_model)."""
    said: dict[str, object] = {"attention_kernel": "flash2"}
    if row.text("source").endswith("a100_80gb.csv") and "bnb" not in framework:
        dtype = "fp16" if row.text("precision") == "fp16" else "bf16"
        said |= {"precision.master": "none", "precision.moments": dtype}
    if "foak" in framework:
        said |= {"loss.fused": True, "loss.chunked": "liger" in framework}
    else:
        said["unfused"] = "norm+rotary"
    rank = re.search(r"r=(\d+)", row.notes)
    if rank:
        said |= {"adapted": "q_k_v+out", "adapter_rank": int(rank[1]), "adapter_dropout": True}
        # peft makes adapters fp32 (autocast_adapter_dtype) and brings inputs to that, but beside frozen
        # weights of few bits, under autocast, nothing (tuners/lora/bnb.py, gptq.py: requires_conversion);
        # fused adapters are Unsloth's, of those weights alone (framework_plugin_fast_kernels.py: fused_lora
        # is left out where has_quant is None)
        quantized = "QLoRA" in framework
        said["adapter_dtype"] = "none" if quantized else "fp32"
        if quantized and "foak" in framework:
            said["adapter_code"] = "fused"
        elif "precision.master" not in said:
            said["adapter_code"] = "autocast"
    if "QLoRA" in framework:
        said["precision.frozen"] = "int4" if "gptq" in framework else "nf4"
    return said
