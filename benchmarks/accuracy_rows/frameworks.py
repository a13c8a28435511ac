"""From the name of a row's framework to a preset, and to what its code sets otherwise."""

import re
from collections.abc import Mapping

from benchmarks.accuracy_rows import recipes, releases
from benchmarks.accuracy_rows.row import Row
from benchmarks.accuracy_rows.stated_sharding import zero_stage_of

Settings = Mapping[str, object]

# torch/distributed/fsdp/_flat_param.py beside _fully_shard/_fsdp_param.py: one flat parameter a unit, or each its own.
FSDP1: Settings = {"data_parallel.joins_gradients": True, "data_parallel.copies_parameters": False}
FSDP2: Settings = {
    **dict.fromkeys(("data_parallel.joins_gradients", "recomputation.keeps_frozen_inputs"), False),
    "data_parallel.copies_parameters": True,
    "data_parallel.gathered_layers": 2,
}
# fms-fsdp with nightly builds of 2024: compiled, but with FSDP1, and joined matrices (fms/models/llama.py:
# fused_weights).
FMS: Settings = {**FSDP1, **dict.fromkeys(("layers.joined_gate", "layers.joined_qkv"), True)}
# torchtitan models/llama/model.py, Attention and FeedForward: wq, wk, wv; repeat_kv; w2(silu(w1(x)) * w3(x)).
APART: Settings = {
    **dict.fromkeys(("layers.joined_gate", "layers.joined_qkv", "layers.fused_activation"), False),
    "layers.repeats_keys": True,
}
# torchtitan v0.1.0, distributed/pipeline_parallel.py, generate_split_points: input_weight and output_weight 1.
ENDS: Settings = {"pipeline.deals": "ends"}
# torchtune recipes/full_finetune_distributed.py with dtype bf16 (parameters, gradients and optimizer in it; no mixed
# precision), modules/loss/cross_entropy_loss.py, LinearCrossEntropyLoss, in every recipe of 2025, clip_grad_norm null.
TORCHTUNE: Settings = {
    "precision.master": "none",
    "precision.moments": "bf16",
    "loss.chunked": True,
    "data_parallel.clips_gradients": False,
}
# OLMo olmo/model.py, OLMoSequentialBlock: att_proj and ff_proj joined, SwiGLU as silu(gate) * x; config.py,
# FSDPPrecision.mixed.
OLMO: Settings = {**FSDP1, "precision.reduce": "fp32"}
# OLMo-core nn/transformer/model.py, apply_fsdp; scripts/train/OLMo2: reduce_dtype float32.
OLMO_CORE: Settings = {"precision.reduce": "fp32", "data_parallel.separate_ends": True}
# litgpt litgpt/model.py: qkv joined, fc_1 and fc_2 apart; pretrain.py: FSDPStrategy (FSDP1), torch.compile,
# no_backward_sync.
LITGPT: Settings = {
    **FSDP1,
    **dict.fromkeys(("layers.joined_qkv", "data_parallel.reduces_once"), True),
    "layers.repeats_keys": False,
}
# Transformer Engine's modules, its attention too.
AUTOMODEL: Settings = {
    **dict.fromkeys(("layers.fused_sums", "layers.repeats_keys", "layers.grouped_kernel"), False),
    "host.code": "modules",
    "tensor_parallel.partial_attention": "fused",
    # components/moe/parallelizer.py, apply_fsdp: embed_tokens and lm_head, of models with experts
    "data_parallel.separate_ends": True,
}
# (word in the framework column, settings beside "fsdp", settings beside "fsdp-compiled", whether it compiles where
# nobody says); the first that occurs wins. torchtitan config_manager.py and torchtune's recipes: compile False;
# OLMo-core scripts/train: True.
PLAIN_TORCH: tuple[tuple[str, Settings, Settings, bool], ...] = (
    ("torchtitan", APART | ENDS, ENDS, False),
    ("torchtune", APART | TORCHTUNE, TORCHTUNE, False),
    ("OLMo-core", APART | OLMO_CORE, OLMO_CORE, True),
    (
        "OLMo",
        {**OLMO, "layers.fused_activation": False},
        {**OLMO, "layers.joined_gate": True, "layers.joined_qkv": True},
        False,
    ),
    ("litgpt", APART | LITGPT, LITGPT, True),
    ("lit-gpt", APART | LITGPT, LITGPT, True),
    ("FMS PyTorch", FMS, FMS, True),
)
# Trainers over Hugging Face's modules and accelerate.
HUGGING_FACE = (
    *("HF Trainer", "TRL", "Axolotl", "LLaMA-Factory", "LLaMA Factory", "LlamaFactory", "transformers"),
    *("Hugging Face", "HuggingFace", "HF ", "accelerate", "DeepSpeed-Chat"),
)
OWN_LOOPS = ("llama-recipes", "llama-cookbook")
# The same modules in a loop of its own: llama-recipes (meta-llama/llama-cookbook, finetuning.py and policies/
# activation_checkpointing_functions.py: FSDP1, checkpoints NO_REENTRANT; utils/train_utils.py has no no_sync;
# configs/training.py: gradient_clipping False).
LLAMA_RECIPES: Settings = {
    "data_parallel.clips_gradients": False,
    "data_parallel.reduces_once": False,
    "recomputation.stops_early": True,
    "recomputation.keeps_frozen_inputs": False,
}
# DeepSpeed-Chat's own limits at stage 3 (DeepSpeedExamples, applications/DeepSpeed-Chat/dschat/utils/ds_utils.py:
# overlap_comm, stage3_max_live_parameters).
DEEPSPEED_CHAT: Settings = {"data_parallel.live_elements": 30_000_000}
# ColossalAI colossalai/booster/plugin: low_level_zero_plugin.py (reduce_bucket_size_in_m 12,
# overlap_communication) and, at stage 3, gemini_plugin.py (max_prefetch 0: chunks are gathered when a module
# asks for them). Chunks themselves, their reuse for gradients and HybridParallelPlugin have no preset.
LOW_LEVEL_ZERO: Settings = {"data_parallel.bucket_elements": 12 * 2**20}
GEMINI: Settings = {"data_parallel.overlap_weights": False, "data_parallel.live_elements": 0}
# Picotron train.py: model.to(bfloat16) and torch.optim.AdamW of it.
PICOTRON: Settings = {"precision.master": "none", "precision.moments": "bf16"}
# Where dp is 1 no DataParallelBucket holds fp32 gradients: autograd adds them up in the parameters' format.
WITHOUT_BUCKETS: Settings = {
    "data_parallel.fp32_gradients": False,
    "data_parallel.accumulation": "accumulate",
}
# Compilers' programs over JAX, of which one has a preset.
OVER_JAX = ("Pax", "T5X", "Levanter", "EasyLM")
# BLOOM's fork ran DeepSpeed 0.5 and 0.6, whose ZeRO reduces every slice of a gradient to its owner
# (runtime/zero/stage_1_and_2.py, average_tensor).
REDUCES_TO_OWNERS = frozenset({"bigscience"})
# (word in the framework column, in any case, preset, settings beside it); the first that occurs wins.
FRAMEWORKS: tuple[tuple[str, str, Settings], ...] = (
    ("InternEvo", "internlm", {}),
    ("XTuner", "xtuner", {}),
    *(
        (word, "composer", {})
        for word in ("llm-foundry", "LLM Foundry", "llmfoundry", "MosaicML", "Composer")
    ),
    *((word, "hf-trainer", {}) for word in HUGGING_FACE),
    *((word, "hf-trainer", LLAMA_RECIPES) for word in OWN_LOOPS),
    ("nanotron", "nanotron", {}),
    ("picotron", "picotron", PICOTRON),
    ("HAI-LLM", "hai-llm", {}),
    ("AutoModel", "fsdp-compiled", AUTOMODEL),
    ("AA-Scaling", "aleph-alpha", {}),
    ("Megatron-LM/Megatron-DeepSpeed", "megatron-2021", {}),
    ("zero-bubble", "megatron-2021", releases.POST_VALIDATION),
    ("Megatron-Bridge", "megatron-bridge", {}),
    ("MLPerf", "nemo2", {}),
    ("MaxText", "maxtext", {}),
    ("NeMo (DGX Cloud", "nemo2", {}),
    ("NeMo SFT", "nemo2", {}),
    ("NeMo LoRA", "nemo2", {}),
    ("NeMo", "nemo", {}),
    ("Mega", "megatron", {}),
    ("MCore", "megatron", {}),
    ("DeepSpeed", "deepspeed", {}),
    ("FSDP2", "fsdp", {}),
    ("fully_shard", "fsdp", {}),
    ("FSDP", "fsdp", FSDP1),
)
# Compute capability 10, on which torchtitan asks for cuDNN first.
CUDNN_FIRST = ("B200", "B300", "GB200", "GB300")
FLEX_ATTENTION = ("deepseek", "llama4", "llama-4", "kimi", "moonlight")
UNKNOWN_FRAMEWORK: tuple[str, Settings] = ("megatron", {})


def framework_of(row: Row) -> tuple[str, Settings]:
    """The preset of the row's framework, with what it sets beside it; Megatron-Core's for an unknown one."""
    old = releases.before_core(row)
    if old:
        return old
    word = row.text("framework")
    if _adds_up_in_fp32(row):
        return "deepspeed-bf16", {}
    if recipes.runs_xtuner_v1(row):
        return "xtuner-v1", {}
    for part, eager, compiled, usually in PLAIN_TORCH:
        if part.lower() in word.lower():
            name, beside = ("fsdp-compiled", compiled) if compiles(row, usually) else ("fsdp", eager)
            return name, beside | _of_version(word)
    said = word.lower()
    if _over_deepspeed(said):
        name, beside = "deepspeed", {}
    else:
        name, beside = next(
            ((name, beside) for part, name, beside in FRAMEWORKS if part.lower() in said), _nearest(row, said)
        )
    if beside is LLAMA_RECIPES:
        return name, {**beside, **_of_version(word)}
    if name == "hf-trainer":
        return _hugging_face(row, word)
    return _of_release(row, name, beside)


def _of_release(row: Row, name: str, beside: Settings) -> tuple[str, Settings]:
    """What the release says of a framework whose choices changed, and BLOOM's fork of DeepSpeed."""
    word = row.text("framework")
    if name == "megatron" and known(word):
        return releases.megatron_of(row)
    if name == "picotron" and _one_replica(row):
        return name, {**beside, **WITHOUT_BUCKETS}
    if name == "nemo":
        return releases.nemo_of(word), beside
    if name == "megatron-2021":
        return name, {**beside, **releases.sums_of(row, fuses="zero-bubble" in word)}
    if name in ("deepspeed", "xtuner"):
        name, since = releases.deepspeed_of(row, name)
        beside = {**beside, **since}
    if row.dataset in REDUCES_TO_OWNERS:
        beside = {**beside, "data_parallel.gradient_sync": "reduce_scatter"}
    return name, beside


def _one_replica(row: Row) -> bool:
    """Whether all GPUs of a row hold one copy of the model."""
    ranks = row.whole_or("tp", 1) * row.whole_or("pp", 1) * row.whole_or("cp", 1)
    return row.whole("num_gpus") == ranks


def _adds_up_in_fp32(row: Row) -> bool:
    """Whether DeepSpeed's BF16_Optimizer runs: in bf16 below stage 2 (runtime/engine.py,
    _do_optimizer_sanity_check: stage 1 and gradients added up in fp32, as configurations of Megatron's layers
    ask for; stages 2 and 3 have ZeRO's own)."""
    over = _over_deepspeed(row.text("framework").lower())
    return over and row.text("precision").lower() == "bf16" and zero_stage_of(row) <= 1


def _over_deepspeed(said: str) -> bool:
    """Whether Megatron's layers run over DeepSpeed's engine, in whichever order both are named: Megatron-DeepSpeed and
    GPT-NeoX, not tables of either ("Megatron-LM/Megatron-DeepSpeed")."""
    both = "megatron" in said and "deepspeed" in said
    return "neox" in said or (both and "megatron-lm/" not in said)


def unfused_over_deepspeed(row: Row) -> frozenset[str]:
    """What Megatron's layers leave to elementwise PyTorch: rotary embeddings (Megatron-DeepSpeed
    megatron/model/rotary_pos_embedding.py); of GPT-NeoX those in bf16 alone (positional_embeddings.py:
    apply_rotary_pos_emb_torch, else scripted)."""
    scripted = "neox" in row.text("framework").lower() and row.text("precision").lower() == "fp16"
    return frozenset() if scripted else frozenset({"rotary"})


def _nearest(row: Row, said: str) -> tuple[str, Settings]:
    """What an unknown framework is priced as, which the report says. Colossal-AI's plugins of data
    parallelism alone shard Hugging Face's modules as DeepSpeed does."""
    if "colossal" in said and row.whole_or("tp", 1) == row.whole_or("pp", 1) == 1:
        return "xtuner", GEMINI if zero_stage_of(row) == 3 else LOW_LEVEL_ZERO
    return ("maxtext", {}) if any(part.lower() in said for part in OVER_JAX) else UNKNOWN_FRAMEWORK


def known(word: str) -> bool:
    """Whether a framework's name is one that is read."""
    names = (*(part for part, *_ in PLAIN_TORCH), *(part for part, *_ in FRAMEWORKS))
    return _over_deepspeed(word.lower()) or any(part.lower() in word.lower() for part in names)


def compiles(row: Row, usually: bool) -> bool:
    """Whether a model of plain PyTorch was compiled: as framework, precision or notes say, else as ``usually``."""
    said = f"{row.text('framework')}; {row.text('precision')}; {row.notes}".lower()
    if re.search(r"\beager\b|(\bno|\bnot|without) (torch\.)?compile|compile[ =:]+(off|false)", said):
        return False
    # torchtitan's guides of float8 and of asynchronous tensor parallelism ask for it (docs/float8.md;
    # --experimental.enable_async_tensor_parallel).
    return usually or any(sign in said for sign in ("compile", "float8", "fp8", "async tp", "asynctp"))


def asks_for_cudnn(row: Row) -> bool:
    """Whether attention of a model of torchtitan is cuDNN's: the first that it asks PyTorch for on Blackwell
    (models/attention.py of v0.1.0, has_cuda_capability(10, 0)) and from v0.2 on everywhere, but for models
    that run FlexAttention (v0.2.0, use_flex_attn)."""
    framework, model = row.text("framework").lower(), row.text("model_name").lower()
    if "torchtitan" not in framework or model.startswith(FLEX_ATTENTION):
        return False
    release = re.search(r"torchtitan v?0\.(\d+)", framework)
    return row.text("gpu").startswith(CUDNN_FIRST) or (release is not None and int(release[1]) >= 2)


def forces_turns(row: Row) -> bool:
    """Whether a benchmark gave tokens the experts one after the other: torchtitan models/moe/moe.py,
    _debug_force_load_balance_routing. Megatron-Core draws its scores at random."""
    balanced = re.search("force.*balance", row.notes.lower()) is not None
    return "torchtitan" in row.text("framework").lower() and balanced


def runs_modules_of_hugging_face(row: Row) -> bool:
    """Whether a row trains Hugging Face's modules as they are; Colossal-AI does unless told otherwise
    (hybrid_parallel_plugin.py, enable_fused_normalization False)."""
    said = row.text("framework").lower()
    words = (*HUGGING_FACE, *OWN_LOOPS, "Colossal")
    return "xtuner" not in said and any(word.lower() in said for word in words)


def runs_composer(row: Row) -> bool:
    """Whether a row ran llm-foundry, by any of its names."""
    return framework_of(row)[0] == "composer"


def fuses_norms(row: Row) -> bool:
    """Whether norms of plain PyTorch are one kernel: torchtitan's page of April 2024 (docs/performance.md of
    1ea476e9f), whose train_configs set norm_type fused_rmsnorm in all models but those of 70B."""
    here = "torchtitan" in row.text("framework") and row.text("source").endswith("docs/performance.md")
    return here and "70b" not in row.text("model_name").lower()


def _of_version(word: str) -> Settings:
    """What the version of FSDP says, where it is named."""
    found = re.search(r"fsdp ?v?([12])\b", word.lower())
    return {} if not found else FSDP1 if found[1] == "1" else FSDP2


def _hugging_face(row: Row, word: str) -> tuple[str, Settings]:
    """DeepSpeed or FSDP below Hugging Face's modules. accelerate cuts sequences over FSDP2 (accelerator.py,
    maybe_context_parallel), or by DeepSpeed's Ulysses (parallelism_config.py, sp_backend)."""
    said = f"{word} {row.notes}".lower()
    if re.search("deepspeed|ulysses", said):
        return _of_release(row, "xtuner", DEEPSPEED_CHAT if "deepspeed-chat" in said else {})
    return "hf-trainer", FSDP2 if row.whole_or("cp", 1) > 1 else _of_version(word)
