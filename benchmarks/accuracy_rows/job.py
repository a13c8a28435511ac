"""From a row's framework, precision and notes to a JobSpec: presets changed where the source says so."""

from dataclasses import replace

from benchmarks.accuracy_rows import recipes
from benchmarks.accuracy_rows.gaps import Gap
from benchmarks.accuracy_rows.notes import Notes
from benchmarks.accuracy_rows.row import Row
from spec.job import JobSpec, Precision, precision_of
from spec.presets.deepspeed import DEEPSPEED
from spec.presets.fsdp import FSDP
from spec.presets.internevo import INTERNEVO
from spec.presets.megatron import MEGATRON
from spec.presets.preset import FrameworkPreset

# 2021-2022 Megatron-LM: local data parallelism without overlap and gradients in fp16 unless asked
# otherwise (megatron/model/distributed.py and arguments.py of v2.5), no sharded optimizer; stages wait for
# their messages (megatron/p2p_communication.py, _communicate: wait on every request, then synchronize).
OLD_MEGATRON = replace(MEGATRON, name="megatron-2021").changed(
    {
        "data_parallel.fp32_gradients": False,
        "data_parallel.overlap_grad_reduce": False,
        "data_parallel.overlap_param_gather": False,
        "pipeline.overlap_hops": False,
        "data_parallel.gradient_sync": "all_reduce",
        "host.checks_numbers": False,
    }
)
# Before the asynchronous all-reduce of the input gradient (no --no-async-tensor-model-parallel-allreduce
# in arguments.py of v2.5 nor in bigscience-workshop/Megatron-DeepSpeed, forked from it).
SYNCHRONOUS_TP = frozenset({"megatron_sc21", "megatron_tp2020", "mtnlg", "bigscience"})
# DeepSpeed's first ZeRO stage 3, of 2021 (ops.data_parallel.sliced_collectives).
DEEPSPEED_2021 = replace(DEEPSPEED, name="deepspeed-2021").changed(
    {
        "data_parallel.fp32_gradients": False,
        "data_parallel.overlap_grad_reduce": True,
        "data_parallel.sliced_collectives": True,
    }
)
# Composer and torchtitan run the loss without a copy beside the logits only when compiled, which torchtitan's
# was not before 2025 (train.py of v0.0.2: "compiling loss function causes CUDA errors").
# FSDP1: Composer with torch 1.13.1 and 2.0.1 (scripts/train/benchmarking: --image), before early_stop; fms-fsdp with
# nightly builds of 2024.
COMPOSER = FSDP.changed(
    {
        "data_parallel.copies_parameters": False,
        "data_parallel.joins_gradients": True,
        "recomputation.stops_early": False,
    }
)
COMPILED_FSDP = FSDP.changed({"loss.fused": True, "host.code": "compiled"})
UNCOMPILED_LOSS = "_202412_"
# Aleph Alpha's own library with ZeRO-1 (arXiv 2311.05610 sec. 3), as published in Aleph-Alpha/scaling:
# input gradients reduced synchronously and gathered inputs kept (core/nn/linear/utils.py), silu(gate) * up in
# plain PyTorch (core/nn/mlp.py), whole activations sent to the next stage (core/nn/parallel_module/communicator.py,
# send_data), gradients all-reduced at the end in fp32 buckets (core/optimizer/allreduce.py).
# The head gathers its logits (transformer/model/layers/lm_head.py), the loss is PyTorch's on an fp32 copy
# (transformer/model/losses/cross_entropy.py), every_layer checkpointing takes in embedding and head and pipeline
# buffers keep outputs (core/nn/parallel_module/parallel_module.py). Embedding, final norm and head are modules of
# the uniform partition, the default (core/topology/topology_config.py, transformer/model/model.py).
ALEPH_ALPHA = replace(DEEPSPEED, name="aleph-alpha").changed(
    {
        "tensor_parallel.strategies": ("mtp", "msp"),
        "tensor_parallel.overlap_backward": False,
        "layers.fused_activation": False,
        "layers.joined_gate": False,
        "pipeline.scattered_hops": False,
        "data_parallel.gradient_sync": "all_reduce",
        "loss.plain": True,
        "loss.gathers_logits": True,
        "recomputation.recomputes_ends": True,
        "pipeline.counts_ends_as_layers": True,
        "host.code": "torch",
    }
)
# InternLM 7B in InternEvo of 2023: gate and up apart (FeedForward of internlm/model/linear.py), norms on an fp32 copy of
# the residual (internlm/model/modeling_internlm.py).
INTERNLM = replace(INTERNEVO, name="internlm").changed({"layers.joined_gate": False})
# Reduced in fp32 from bf16 gradients: Aleph Alpha (above), torchtitan (mixed_precision_reduce = "float32")
# and AutoModel (MixedPrecisionPolicy with reduce_dtype torch.float32).
FP32_REDUCTION = ("AA-Scaling", "torchtitan", "AutoModel")

# NeMo 24: tensor-parallel communication inside the GEMMs (NeMo-Framework-Launcher,
# launcher_scripts/conf/training/gpt3/20b.yaml: ub_tp_comm_overlap True).
NEMO = replace(MEGATRON, name="nemo").changed({"tensor_parallel.overlap": True, "host.checks_numbers": False})
# Megatron-Bridge's performance recipes: gradients kept and reduced in bf16, added up inside the GEMM
# (scripts/performance: mixed_precision.grad_reduce_in_fp32 = False), a fused loss, tp_comm_overlap.
BRIDGE = replace(MEGATRON, name="megatron-bridge").changed(
    {
        "data_parallel.fp32_gradients": False,
        "data_parallel.accumulation": "",
        "loss.fused": True,
        "tensor_parallel.overlap": True,
        "host.checks_numbers": False,
    }
)

# (word in the framework column, preset); the first that occurs wins.
PRESETS: tuple[tuple[str, FrameworkPreset], ...] = (
    ("InternEvo", INTERNLM),
    ("llm-foundry", COMPOSER),
    ("torchtitan FSDP2 eager", FSDP),
    ("torchtitan", COMPILED_FSDP),
    (
        "FMS PyTorch",
        COMPILED_FSDP.changed(
            {"data_parallel.copies_parameters": False, "data_parallel.joins_gradients": True}
        ),
    ),
    ("AutoModel", COMPILED_FSDP.changed({"host.code": "modules"})),
    ("AA-Scaling", ALEPH_ALPHA),
    ("Megatron-LM/Megatron-DeepSpeed", OLD_MEGATRON),
    ("Megatron-DeepSpeed", DEEPSPEED),
    ("zero-bubble", OLD_MEGATRON),
    ("Megatron-Bridge", BRIDGE),
    ("NeMo", NEMO),
    ("Megatron-Core", MEGATRON),
    ("Mega", MEGATRON),
)
# Published before Megatron-Core existed.
OLD_DATASETS = frozenset(
    {"vtrain_multi", "megatron_sc21", "megatron_seqpar", "megatron_tp2020", "mtnlg", "zero_bubble"}
)
# Megatron-LM trains with dropout 0.1 unless told otherwise (arguments.py: --hidden-dropout 0.1,
# --attention-dropout 0.1), and the memory formulas of arXiv 2205.05198 count its masks. BLOOM's script
# (bigscience-workshop/bigscience, train/tr11-176B-ml/tr11-176B-ml.slurm) tells its fork nothing else.
DROPOUT_DATASETS = OLD_DATASETS | {"bigscience"}
# The same script exports CUDA_LAUNCH_BLOCKING=1, without which runs on these nodes hung.
BLOCKING_DATASETS = frozenset({"bigscience"})

FORMATS = {
    "bf16": "bf16",
    "amp_bf16": "bf16",
    "fp16": "fp16",
    "16-bit": "fp16",
    "": "bf16",
}


def preset_of(row: Row, notes: Notes) -> FrameworkPreset:
    """The framework's preset with the overlaps the row states; Megatron-Core's for an unknown one."""
    framework = row.text("framework")
    preset = next((preset for word, preset in PRESETS if word in framework), MEGATRON)
    if row.dataset in OLD_DATASETS:
        preset = OLD_MEGATRON
    if row.dataset in SYNCHRONOUS_TP:
        preset = preset.changed({"tensor_parallel.overlap_backward": False})
    if row.dataset in OLD_DATASETS and row.whole_or("zero_stage", 0) == 3:
        preset = DEEPSPEED_2021
    if notes.overlapped_ddp:
        preset = preset.changed({"data_parallel.overlap_grad_reduce": True})
    if notes.no_overlap or row.dataset.startswith("simumax"):
        preset = preset.changed(
            {"data_parallel.overlap_grad_reduce": False, "data_parallel.overlap_param_gather": False}
        )
    if row.dataset.startswith("simumax"):
        # "No comm overlap": tensor-parallel too, by every --disable-tp-comm-* flag, the bulk ones of the backward
        # included (SimuMax, simu_tools/megatron_scripts/scripts/run_pretrain_llama3.sh).
        preset = preset.changed({"tensor_parallel.overlap_backward": False})
    if UNCOMPILED_LOSS in row.text("source"):
        preset = preset.changed({"loss.fused": False})
    if "cross-entropy fusion" in row.notes or row.dataset.startswith("simumax"):
        preset = preset.changed({"loss.fused": True})
    if notes.async_tp or notes.overlapped_tp:
        preset = preset.changed({"tensor_parallel.overlap": True})
    if notes.pure_precision or row.text("precision") == "amp_bf16":
        # Composer: reduce_dtype fp32 under mp_mode DEFAULT, the low precision under PURE (composer
        # distributed/mosaic_parallelism.py, get_mixed_precision).
        preset = preset.changed({"data_parallel.fp32_gradients": not notes.pure_precision})
    return preset


def precision_of_row(row: Row, preset: FrameworkPreset) -> tuple[Precision, tuple[Gap, ...]]:
    """Number formats; fp8 means the linears alone. Raises RowError for an unknown precision."""
    word = row.text("precision").lower()
    in_fp32 = any(name in row.text("framework") for name in FP32_REDUCTION)
    precision = precision_of(preset, FORMATS.get(word, "bf16"))
    precision = replace(precision, reduce="fp32") if in_fp32 else precision
    if word in FORMATS:
        return precision, ()
    if "fp8" in word:
        return replace(precision, linear="fp8", **_fp8_scaling(row, word)), (Gap.FP8_COMM,)
    if "fp4" in word:
        return replace(precision, linear="fp4", scale_recipe="block"), ()
    raise row.refuse("precision", f"must be fp8, fp4 or one of {', '.join(FORMATS)}")


def _fp8_scaling(row: Row, word: str) -> dict[str, str | bool]:
    """How a framework finds scales and casts: torchtitan through torchao; Composer and NeMo of 2024 by
    Transformer Engine's delayed scaling (composer/utils/misc.py and NeMo's fp8_hybrid: DelayedScaling);
    Megatron-Bridge by the recipe in the row's word, current scaling where it names none."""
    framework = row.text("framework")
    if word in ("mxfp8", "fp8-mx", "fp8-subchannel"):
        return {"scale_recipe": "block"}
    if "torchtitan" in framework:
        return {
            "scale_recipe": "tensor",
            "scaling": "row" if "row" in word else "dynamic",
            "casts_every_forward": True,
        }
    delayed = "llm-foundry" in framework or framework.startswith("NeMo")
    return {
        "scale_recipe": "tensor",
        "scaling": "delayed" if delayed else "current",
        # only Megatron says which micro-batch is a step's first
        "casts_every_forward": "llm-foundry" in framework,
    }


def flash_of(row: Row) -> bool:
    """Whether flash attention runs; unknown means the framework's default, off in Megatron-LM."""
    return row.text("flash_attention") == "1"


def attention_kernel_of(row: Row, notes: Notes) -> str:
    """The generation of the flash kernel: as the row names it, else as the framework's own scripts chose it.

    llm-foundry: the kernel written in Triton until its scripts of 2024 (scripts/train/benchmarking:
    submit_benchmarks.py of 2023, --attn_impl triton; flash-attn 2 became possible in October 2023), and in
    the sweep over 128 H100 and more (sweep.py) still for 13b and 30b. torchtitan and fms-fsdp call PyTorch's,
    which is FlashAttention-2.
    """
    framework, model = row.text("framework"), row.text("model_name")
    if notes.kernel.startswith("flash_attention"):
        return "flash1" if notes.kernel.startswith("flash_attentionv1") else "flash2"
    if "llm-foundry" in framework:
        large = row.text("gpu").startswith("H100") and row.whole("num_gpus") >= 128
        return "flash2" if large and model not in ("mpt-13b", "mpt-30b") else "flash_triton"
    return "flash2" if "torchtitan" in framework or "FMS" in framework else "flash"


def unfused_of(row: Row, notes: Notes) -> frozenset[str]:
    """What Aleph Alpha's runs left to elementwise PyTorch: norm and rotary embedding without the RMSNorm
    kernel, the softmax too without any fused kernel (arXiv 2311.05610 sec. 4.1)."""
    framework = row.text("framework")
    if "AA-Scaling" not in framework:
        return frozenset()
    parts = {"rotary"} if "RMS" in framework else {"rotary", "norm"}
    return frozenset(parts | ({"softmax"} if notes.kernel == "torch" else set()))


def context_parallel_of(row: Row) -> str:
    """How context parallelism exchanges: all-to-all where the source says so (SimuMax's runs, Ulysses),
    else Megatron-Core's default, the ring."""
    says = f"{row.dataset} {row.notes}".lower()
    exchanged = any(word in says for word in ("simumax", "a2a cp", "cp_comm_type=a2a", "ulysses"))
    return "all_to_all" if exchanged or row.dataset == "megascale_moe" else "ring"


def job_of(row: Row, notes: Notes) -> tuple[JobSpec, tuple[Gap, ...]]:
    """The training job of a row and the physics of it that is not priced."""
    preset = preset_of(row, notes)
    precision, gaps = precision_of_row(row, preset)
    seq_len = row.whole("seq_len")
    job = JobSpec(
        world_size=row.whole("num_gpus"),
        seq_len=seq_len,
        global_batch_tokens=row.whole("global_batch_sequences") * seq_len,
        preset=preset,
        precision=precision,
        flash_attention=flash_of(row),
        dropout=row.dataset in DROPOUT_DATASETS,
        context_parallel=context_parallel_of(row),
        attention_kernel=attention_kernel_of(row, notes),
        unfused=unfused_of(row, notes),
        moe_dispatcher=recipes.dispatcher(row, notes.dispatcher),
        overlap_expert_a2a=notes.expert_overlap,
        cuda_graphs=recipes.cuda_graphs(row, notes.cuda_graphs),
        wide_norms="InternEvo" in row.text("framework"),
        blocking_launches=row.dataset in BLOCKING_DATASETS,
    )
    return job, (*gaps, *_gaps(row, notes))


def _gaps(row: Row, notes: Notes) -> tuple[Gap, ...]:
    framework = row.text("framework")
    needed = {
        Gap.UNKNOWN_FRAMEWORK: not any(word in framework for word, _ in PRESETS),
        Gap.ASYNC_TP: notes.async_tp,
    }
    return tuple(gap for gap, wanted in needed.items() if wanted)
