"""From a row's framework, precision and notes to the job that a user would ask for: a preset by name, and settings
where the source says otherwise."""

import re
from collections.abc import Mapping

from benchmarks.accuracy_rows import recipes
from benchmarks.accuracy_rows.fine_tuning import adapts_for_mlperf, fine_tuning
from benchmarks.accuracy_rows.frameworks import (
    asks_for_cudnn,
    forces_turns,
    framework_of,
    fuses_norms,
    known,
    runs_composer,
    runs_modules_of_hugging_face,
    unfused_over_deepspeed,
)
from benchmarks.accuracy_rows.gaps import Gap, gathers_stated
from benchmarks.accuracy_rows.notes import Notes, clips, switches
from benchmarks.accuracy_rows.releases import OLD_DATASETS, of_2023, unfused_in_release
from benchmarks.accuracy_rows.row import Row
from benchmarks.accuracy_rows.sequences_cut import context_parallel_of
from benchmarks.accuracy_rows.stated_sharding import zero_stage_of
from benchmarks.accuracy_rows.whole_iterations import narrowed
from spec.settings.job import AskedJob

# Before the asynchronous all-reduce of the input gradient (no --no-async-tensor-model-parallel-allreduce
# in arguments.py of v2.5).
SYNCHRONOUS_TP = frozenset({"megatron_sc21", "megatron_tp2020", "mtnlg"})
# Presets whose attention is flash-attn's own or PyTorch's copy of it.
DAO_FLASH = ("fsdp", "fsdp-compiled", "deepspeed", "deepspeed-bf16")
# nanotron models/llama.py, flash_attn_varlen_func; Picotron picotron/model.py, flash_attn_func.
OVER_FLASH2 = ("nanotron", "picotron")
UNCOMPILED_LOSS = "_202412_"  # torchtitan compiles its loss since 2025
# Reduced in fp32 from bf16 gradients: Aleph Alpha, torchtitan (mixed_precision_reduce = "float32")
# and AutoModel (MixedPrecisionPolicy with reduce_dtype torch.float32).
FP32_REDUCTION = ("AA-Scaling", "torchtitan", "AutoModel")
# Megatron-LM trains with dropout 0.1 unless told otherwise (arguments.py: --hidden-dropout 0.1,
# --attention-dropout 0.1), and the memory formulas of arXiv 2205.05198 count its masks. BLOOM's script
# (bigscience-workshop/bigscience, train/tr11-176B-ml/tr11-176B-ml.slurm) tells its fork nothing else.
DROPOUT_DATASETS = OLD_DATASETS | {"bigscience"}
# NeMo's fp8_hybrid, and fp8_recipe "delayed" in conf/custom.yaml of NVIDIA's submissions up to v5.0, where no
# configuration sets FP8_RECIPE (mlcommons/training_results_v5.0); config_common.sh of v5.1 sets "tensorwise".
DELAYED = ("NeMo", "MLPerf v4", "MLPerf v5.0")
# Megatron-Core (transformer_block.py: DelayedScaling alone up to core 0.11; since, --fp8-recipe is "delayed" by default).
DELAYED_WORDS = ("fp8", "fp8-hybrid", "fp8-e4m3")

WIDE = {"bf16": "bf16", "amp-bf16": "bf16", "fp16": "fp16", "16-bit": "fp16", "": "bf16"}
# Scales of blocks, by the word of a row; Megatron-Bridge writes "fp8_sc" for sub-channels
# (scripts/performance/utils/precision.py).
SCALED_BY_BLOCKS = {"mxfp8": "mxfp8", "fp8-mx": "mxfp8"} | dict.fromkeys(
    ("fp8-subchannel", "fp8-sc", "fp8-ss"), "fp8-blockwise"
)


def overlaps_of(row: Row, notes: Notes) -> dict[str, object]:
    """What runs beside what, where the source says so; later words beat earlier ones."""
    said: dict[str, object] = {}
    if row.dataset in SYNCHRONOUS_TP and not (row.dataset in OLD_DATASETS and zero_stage_of(row) == 3):
        said["tensor_parallel.overlap_backward"] = False
    if notes.overlapped_ddp:
        said["data_parallel.overlap_grad_reduce"] = True
    said |= switches(row.notes) | clips(row.notes)
    if notes.no_overlap or row.dataset.startswith("simumax"):
        said["data_parallel.overlap_grad_reduce"] = False
        said["data_parallel.overlap_param_gather"] = False
    if row.dataset.startswith("simumax"):
        # "No comm overlap": tensor-parallel too, by every --disable-tp-comm-* flag, the bulk ones of the backward
        # included (SimuMax, simu_tools/megatron_scripts/scripts/run_pretrain_llama3.sh).
        said["tensor_parallel.overlap_backward"] = False
    if framework_of(row)[0] == "nanotron" and zero_stage_of(row) == 0:
        # trainer.py: DistributedDataParallel, whose hook reduces bucket by bucket, without ZeRO-1 alone
        said["data_parallel.overlap_grad_reduce"] = True
    if "no async TP communication" in row.notes:
        # functional.py, column_linear: the gathered input is an activation that the backward reads
        said["tensor_parallel.overlap_backward"] = False
        said["tensor_parallel.strategies"] = ("mtp", "msp")
    if notes.overlapped_tp is not None or notes.async_tp:
        said["tensor_parallel.overlap"] = notes.async_tp or bool(notes.overlapped_tp)
    return said


def loss_of(row: Row) -> dict[str, object]:
    """Whether the loss is fused, where the source says so."""
    if "cross-entropy fusion" in row.notes or row.dataset.startswith("simumax"):
        return {"loss.fused": True}
    return {"loss.fused": False} if UNCOMPILED_LOSS in row.text("source") else {}


def precision_of_row(row: Row, notes: Notes) -> tuple[dict[str, object], tuple[Gap, ...]]:
    """Number formats; fp8 means the linears alone. Raises RowError for an unknown precision."""
    word = row.text("precision").lower().replace("_", "-")
    if not word and "MLPerf" in row.text("framework"):
        word = "fp8"  # every configuration of NVIDIA's submissions sources config_fp8.sh
    said: dict[str, object] = {}
    if notes.pure_precision or word == "amp-bf16":
        # Composer: reduce_dtype fp32 under mp_mode DEFAULT, the low precision under PURE (composer
        # distributed/mosaic_parallelism.py, get_mixed_precision).
        said["data_parallel.fp32_gradients"] = not notes.pure_precision
    if any(name in row.text("framework") for name in FP32_REDUCTION):
        said["precision.reduce"] = "fp32"
    if notes.fp8_parameters or (adapts_for_mlperf(row) and word not in WIDE):
        # of LoRA: fp8_params ${FP8} (megatron_gpt_peft_tuning_config.yaml, see fine_tuning)
        said |= {"precision.parameter_gather": "fp8", "precision.narrow_parameters": True}
    if word in WIDE:
        return said | {"precision.recipe": WIDE[word]}, ()
    if "fp8" in word:
        return said | _fp8(row, word), () if gathers_stated(row) else (Gap.FP8_COMM,)
    if "fp4" in word:
        return said | {"precision.recipe": "nvfp4"} | recipes.narrow_fp4(row), ()
    raise row.refuse("precision", f"must be fp8, fp4 or one of {', '.join(WIDE)}")


def _fp8(row: Row, word: str) -> dict[str, object]:
    """How a framework finds scales and casts: torchtitan through torchao; Composer and NeMo of 2024 by
    Transformer Engine's delayed scaling (composer/utils/misc.py: DelayedScaling; MLPerf's LoRA in every release,
    custom_llama.py);
    Megatron-Bridge by the recipe in the row's word ("ds" is delayed scaling), current scaling where it names none."""
    framework = row.text("framework")
    if word in SCALED_BY_BLOCKS:
        # MXFP8 parameters travel in 16 bits, through the gradients' buffer (reuse_grad_buf_for_mxfp8_param_ag)
        held = SCALED_BY_BLOCKS[word] == "mxfp8" and framework.startswith("Megatron-Bridge")
        # set_kimi_k2_common_configs: fp8_param_gather False of MXFP8 under Muon
        held = held and not recipes.trains_with_muon(row)
        return {"precision.recipe": SCALED_BY_BLOCKS[word], "precision.narrow_parameters": held}
    if "torchtitan" in framework:
        # docs/float8.md of the commits that the sources name: --float8.enable_fsdp_float8_all_gather in the
        # command for scales of whole tensors, refused beside rowwise ones
        # (components/quantization/float8.py); so too train_configs/llama3_405b.toml
        tensorwise = {"precision.recipe": "fp8-tensor", "precision.parameter_gather": "fp8"}
        return {"precision.recipe": "fp8-rowwise"} if "row" in word else tensorwise
    said: dict[str, object] = {"precision.recipe": "fp8-current"}
    if runs_composer(row):
        # only Megatron says which micro-batch is a step's first
        said["precision.casts_every_forward"] = True
    of_core = framework_of(row)[0] == "megatron" and known(framework) and word in DELAYED_WORDS
    stated = of_core or framework.startswith(DELAYED) or word == "fp8-ds" or "delayed" in word
    if runs_composer(row) or stated or adapts_for_mlperf(row):
        said["precision.scaling"] = "delayed"
    if "MaxText" in framework:
        # layers/quantizations.py, Fp8Quantization: flax' Fp8DirectDotGeneralOp, scales of earlier steps; JAX
        # keeps no casts
        said |= {"precision.scaling": "delayed", "precision.casts_every_forward": True}
    return said


def flash_of(row: Row) -> bool:
    """Whether flash attention runs; unknown means the framework's default, off in Megatron-LM."""
    return row.text("flash_attention") == "1"


def attention_kernel_of(row: Row, notes: Notes) -> str:
    """The generation of the flash kernel: as the row names it, else as the framework's own scripts chose it.

    llm-foundry: the kernel written in Triton until its scripts of 2024 (scripts/train/benchmarking:
    submit_benchmarks.py of 2023, --attn_impl triton; flash-attn 2 became possible in October 2023), and in
    the sweep over 128 H100 and more (sweep.py) still for 13b and 30b. Models of plain PyTorch call PyTorch's,
    which is FlashAttention-2, XTuner flash-attn 2 itself, Hugging Face's modules under TRL one of the two.
    XTuner V1 calls FlashAttention-3 where it is there (ops/flash_attn/gpu.py), as its Dockerfile has it.
    """
    framework, model = row.text("framework"), row.text("model_name")
    if notes.kernel.startswith("flash_attention"):
        return "flash1" if notes.kernel.startswith("flash_attentionv1") else "flash2"
    if recipes.runs_xtuner_v1(row):
        return "flash"
    if of_2023(row):
        return "flash1"
    if runs_composer(row):
        large = row.text("gpu").startswith("H100") and row.whole("num_gpus") >= 128
        return "flash2" if large and model not in ("mpt-13b", "mpt-30b") else "flash_triton"
    second = "XTuner" in framework or framework_of(row)[0] in OVER_FLASH2 or runs_modules_of_hugging_face(row)
    # Megatron-DeepSpeed megatron/arguments.py, --use-flash-attn-v2; GPT-NeoX megatron/model/transformer.py,
    # flash_attn.flash_attn_interface
    plain = framework_of(row)[0] in DAO_FLASH and "AutoModel" not in framework
    return "flash2" if (second or plain) and not asks_for_cudnn(row) else "flash"


def unfused_of(row: Row, notes: Notes) -> frozenset[str]:
    """What Aleph Alpha's runs left to elementwise PyTorch: norm and rotary embedding without the RMSNorm
    kernel, the softmax too without any fused kernel (arXiv 2311.05610 sec. 4.1)."""
    framework = row.text("framework")
    if runs_modules_of_hugging_face(row) and not framework.startswith("HF Trainer"):
        # trl/trainer/sft_trainer.py: SFTTrainer is transformers' Trainer over Hugging Face's modules
        return frozenset({"norm", "rotary"})
    if recipes.runs_xtuner_v1(row):
        return frozenset()
    if "XTuner" in framework:
        # Hugging Face's modules; xtuner/model/modules/dispatch: a Triton norm with USE_TRITON_KERNEL alone
        return frozenset({"norm", "rotary"})
    if framework_of(row)[0] in ("deepspeed", "deepspeed-bf16"):
        return unfused_over_deepspeed(row)
    if framework_of(row)[0] == "fsdp":
        # torchtitan models/llama/model.py: nn.RMSNorm, and complex products of fp32 copies; torchtune
        # modules/rms_norm.py
        return frozenset({"rotary"} if fuses_norms(row) else {"norm", "rotary"})
    if framework_of(row)[0] in ("megatron", "megatron-2021") and row.dataset not in OLD_DATASETS:
        return unfused_in_release(row) if known(framework) else frozenset()
    if "AA-Scaling" not in framework:
        return frozenset()
    parts = {"rotary"} if "RMS" in framework else {"rotary", "norm"}
    return frozenset(parts | ({"softmax"} if notes.kernel == "torch" else set()))


# Megatron-Bridge (v0.2.0 to v0.6.0) src/megatron/bridge/models: moe_router_dtype "fp32"; of no other model here.
FP32_ROUTERS = ("deepseek", "kimi", "glm", "nemotron", "qwen3-next")


def scores_in_fp32(model: str) -> bool:
    """Whether Megatron-Bridge's model of that name routes in fp32."""
    name = model.lower().replace("_", "-")
    return any(word in name for word in FP32_ROUTERS)


def router_of(row: Row) -> dict[str, object]:
    """The format of the router's scores, where a framework's own models say it."""
    bridge = bool(row.whole_or("num_experts", 0)) and "Megatron-Bridge" in row.text("framework")
    return {"precision.router": "fp32"} if bridge and scores_in_fp32(row.text("model_name")) else {}


def whole_iteration_of(row: Row, graphs: frozenset[str]) -> Mapping[str, object]:
    """What recipes of Megatron-Bridge from 26.06 on narrow in MXFP8 where one graph holds the iteration."""
    release = re.match(r"Megatron-Bridge (\d\d\.\d\d)", row.text("framework"))
    word = row.text("precision").lower().replace("_", "-")
    if (
        not release
        or release[1] < "26.06"
        or "full_iteration" not in graphs
        or SCALED_BY_BLOCKS.get(word) != "mxfp8"
    ):
        return {}
    return narrowed(row.text("model_name"), row.text("gpu"))


def asked_job(row: Row, notes: Notes) -> tuple[AskedJob, tuple[Gap, ...]]:
    """The training job of a row as a user would ask for it, and the physics of it that is not priced."""
    framework, beside = framework_of(row)
    formats, gaps = precision_of_row(row, notes)
    seq_len = row.whole("seq_len")
    graphs = recipes.cuda_graphs(row, notes.cuda_graphs)
    settings = {
        **beside,
        **recipes.optimizer(row) | router_of(row) | recipes.kept_by_recomputation(row),
        **overlaps_of(row, notes),
        **loss_of(row),
        **formats,
        **whole_iteration_of(row, graphs),
        "flash_attention": flash_of(row),
        "dropout": row.dataset in DROPOUT_DATASETS,
        "context_parallel": context_parallel_of(row),
        "attention_kernel": attention_kernel_of(row, notes),
        "unfused": unfused_of(row, notes),
        **recipes.exchange(row, notes),
        "moe_routing": "in_turn" if forces_turns(row) else "uniform",
        "moe_router_fusion": recipes.fuses_router(row),
        "cuda_graphs": graphs,
        "wide_norms": "InternEvo" in row.text("framework"),
        **fine_tuning(row) | recipes.launch_settings(row),
    }
    asked = AskedJob(
        world_size=row.whole("num_gpus"),
        seq_len=seq_len,
        global_batch_tokens=row.whole("global_batch_sequences") * seq_len,
        framework=framework,
        settings=settings,
        where=f"{row.path}:{row.line}",
    )
    return asked, (*gaps, *_gaps(row))


def _gaps(row: Row) -> tuple[Gap, ...]:
    return () if known(row.text("framework")) else (Gap.UNKNOWN_FRAMEWORK,)
