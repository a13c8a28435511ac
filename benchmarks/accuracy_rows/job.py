"""From a row's framework, precision and notes to a JobSpec: presets changed where the source says so."""

from dataclasses import replace

from benchmarks.accuracy_rows.gaps import Gap
from benchmarks.accuracy_rows.notes import Notes
from benchmarks.accuracy_rows.row import Row, RowError
from spec.job import JobSpec, Precision, precision_of
from spec.presets import DEEPSPEED, FSDP, INTERNEVO, MEGATRON, FrameworkPreset

# 2021-2022 Megatron-LM: local data parallelism without overlap and gradients in fp16 unless asked
# otherwise (megatron/model/distributed.py and arguments.py of v2.5), no sharded optimizer.
OLD_MEGATRON = replace(
    MEGATRON,
    name="megatron-2021",
    gradient_dtype="fp16",
    overlap_grad_reduce=False,
    overlap_param_gather=False,
    gradient_sync="all_reduce",
)
# Before the asynchronous all-reduce of the input gradient (no --no-async-tensor-model-parallel-allreduce
# in arguments.py of v2.5 nor in bigscience-workshop/Megatron-DeepSpeed, forked from it).
SYNCHRONOUS_TP = frozenset({"megatron_sc21", "megatron_tp2020", "mtnlg", "bigscience"})
# Composer and torchtitan run the loss without a copy beside the logits only when compiled.
COMPILED_FSDP = replace(FSDP, fused_loss=True)
# Aleph Alpha's own library: bf16 with ZeRO-1 (arXiv 2311.05610 sec. 3), tensor and sequence parallel.
ALEPH_ALPHA = replace(DEEPSPEED, name="aleph-alpha", strategies=("mtp", "fsp"))

# (word in the framework column, preset); the first that occurs wins.
PRESETS: tuple[tuple[str, FrameworkPreset], ...] = (
    ("InternEvo", INTERNEVO),
    ("llm-foundry", FSDP),
    ("torchtitan FSDP2 eager", FSDP),
    ("torchtitan", COMPILED_FSDP),
    ("FMS PyTorch", COMPILED_FSDP),
    ("AutoModel", COMPILED_FSDP),
    ("AA-Scaling", ALEPH_ALPHA),
    ("Megatron-LM/Megatron-DeepSpeed", OLD_MEGATRON),
    ("Megatron-DeepSpeed", DEEPSPEED),
    ("zero-bubble", OLD_MEGATRON),
    ("Megatron-Bridge", replace(MEGATRON, fused_loss=True)),
    ("NeMo", MEGATRON),
    ("Megatron-Core", MEGATRON),
    ("Mega", MEGATRON),
)
# Published before Megatron-Core existed.
OLD_DATASETS = frozenset(
    {"vtrain_multi", "megatron_sc21", "megatron_seqpar", "megatron_tp2020", "mtnlg", "zero_bubble"}
)
# Megatron-LM trains with dropout 0.1 unless told otherwise (arguments.py: --hidden-dropout 0.1,
# --attention-dropout 0.1), and the memory formulas of arXiv 2205.05198 count its masks.
DROPOUT_DATASETS = OLD_DATASETS

FORMATS = {
    "bf16": "bf16",
    "amp_bf16": "bf16",
    "fp16": "fp16",
    "16-bit": "fp16",
}


def preset_of(row: Row, notes: Notes) -> FrameworkPreset:
    """The framework's preset with the overlaps the row states. Raises RowError for an unknown one."""
    framework = row.text("framework")
    preset = next((preset for word, preset in PRESETS if word in framework), None)
    if preset is None:
        raise RowError(f"{row.path}:{row.line}: framework = {framework!r}: no preset for this framework")
    if row.dataset in OLD_DATASETS:
        preset = OLD_MEGATRON
    if row.dataset in SYNCHRONOUS_TP:
        preset = replace(preset, overlap_tp_backward=False)
    if row.dataset in OLD_DATASETS and row.whole_or("zero_stage", 0) == 3:
        preset = replace(DEEPSPEED, gradient_dtype="fp16", overlap_grad_reduce=True)
    if notes.overlapped_ddp:
        preset = replace(preset, overlap_grad_reduce=True)
    if notes.no_overlap or row.dataset.startswith("simumax"):
        preset = replace(preset, overlap_grad_reduce=False, overlap_param_gather=False)
    if "cross-entropy fusion" in row.notes or row.dataset.startswith("simumax"):
        preset = replace(preset, fused_loss=True)
    if notes.async_tp:
        preset = replace(preset, overlap_tp=True)
    if notes.pure_precision or row.text("precision") == "amp_bf16":
        # Composer: reduce_dtype fp32 under mp_mode DEFAULT, the low precision under PURE (composer
        # distributed/mosaic_parallelism.py, get_mixed_precision).
        preset = replace(preset, gradient_dtype="bf16" if notes.pure_precision else "fp32")
    return preset


def precision_of_row(row: Row, preset: FrameworkPreset) -> tuple[Precision, tuple[Gap, ...]]:
    """Number formats; fp8 means the linears alone. Raises RowError for an unknown precision."""
    word = row.text("precision").lower()
    if word in FORMATS:
        return precision_of(preset, FORMATS[word]), ()
    if "fp8" in word:
        recipe = "block" if word in ("mxfp8", "fp8-mx", "fp8-subchannel") else "tensor"
        precision = precision_of(preset, "bf16")
        return replace(precision, linear="fp8", scale_recipe=recipe), (Gap.FP8, Gap.FP8_COMM)
    if "fp4" in word:
        precision = precision_of(preset, "bf16")
        return replace(precision, linear="fp4", scale_recipe="block"), (Gap.FP8,)
    raise row.refuse("precision", f"must be fp8, fp4 or one of {', '.join(FORMATS)}")


def flash_of(row: Row) -> bool:
    """Whether flash attention runs; unknown means the framework's default, off in Megatron-LM."""
    return row.text("flash_attention") == "1"


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
    found = list(gaps)
    if notes.kernel == "torch":
        found.append(Gap.UNFUSED_SOFTMAX)
    if "AA-Scaling" in row.text("framework") and "RMS" not in row.text("framework"):
        found.append(Gap.UNFUSED_NORM)
    if notes.cuda_graph:
        found.append(Gap.CUDA_GRAPH)
    if notes.async_tp:
        found.append(Gap.ASYNC_TP)
    if notes.expert_overlap:
        found.append(Gap.EXPERT_OVERLAP)
    job = JobSpec(
        world_size=row.whole("num_gpus"),
        seq_len=seq_len,
        global_batch_tokens=row.whole("global_batch_sequences") * seq_len,
        preset=preset,
        precision=precision,
        flash_attention=flash_of(row),
        dropout=row.dataset in DROPOUT_DATASETS,
        context_parallel=context_parallel_of(row),
    )
    return job, tuple(found)
