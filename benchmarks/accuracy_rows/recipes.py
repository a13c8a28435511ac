"""What a framework's own recipes set where a row leaves it open, each with the file that says so.

Recipes are read as published, before and without a look at what a row measured.
"""

import re

from benchmarks.accuracy_rows.notes import Notes
from benchmarks.accuracy_rows.remat import POLICIES, policy
from benchmarks.accuracy_rows.row import Row
from ops.recompute import Recompute

# Stated by the framework's own recipes: NeMo-Framework-Launcher, conf/training/gpt3/*.yaml,
# activations_checkpoint_num_layers 0.
RECOMPUTES: dict[str, tuple[Recompute, ...]] = {"NeMo/Megatron-Core": (Recompute.NONE,)}

# Megatron-Bridge, scripts/performance/configs: set_qwen3_common_configs clears recomputation for all; the
# other expert models recompute modules alone.
BRIDGE_RECOMPUTES: tuple[tuple[str, Recompute], ...] = (
    ("qwen3", Recompute.NONE),
    ("gpt-oss", Recompute.NONE),
    ("deepseek", Recompute.NONE),
    ("kimi", Recompute.NONE),
)

# The modules, where a row's own recipe was not found: */*_workload_base_configs.py, what most releases and
# formats have in common, by starts of the model's and the GPU's name; the first that fits wins.
BRIDGE_MODULES: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("gpt-oss", "GB300", ()),
    ("gpt-oss", "B300", ()),
    ("gpt-oss", "", ("layernorm", "moe_act")),
    ("deepseek", "H100", ("mla_up_proj", "mlp")),
    ("deepseek", "", ("mla_up_proj",)),
    ("kimi", "H100", ("mla_up_proj", "mlp")),
    ("kimi", "", ("mla_up_proj",)),
)

# Megatron-Bridge, scripts/performance/configs/*/*_workload_base_configs.py from release 25.11 (v0.2) to v0.5:
# moe_flex_dispatcher_backend where a row's own recipe was not found, by starts of the model's and the GPU's name and by release
# ("" for all); the first that fits wins, and where none does no recipe sets one.
BRIDGE_DISPATCHERS: tuple[tuple[str, str, str, str], ...] = (
    ("deepseek", "H100", "25.11", "deepep"),
    ("deepseek", "B200", "25.11", "all_to_all"),
    ("deepseek", "", "", "hybridep"),
    ("kimi", "GB", "", "hybridep"),
    ("qwen3-235b", "GB", "", "hybridep"),
    ("qwen3-235b", "", "26.02.01", "deepep"),
    ("qwen3-30b", "H100", "25.11", "all_to_all"),
    ("qwen3-30b", "H100", "26.02", "deepep"),
    ("qwen3-30b", "B200", "25.11", "all_to_all"),
    ("qwen3-30b", "B200", "26.02", "all_to_all"),
    ("qwen3-30b", "", "", "hybridep"),
)

# The same and, for 25.09 (v0.1), scripts/performance/run_script.py: moe_a2a_overlap, for all formats, where a row's own recipe was
# not found, by starts of the model's and the GPU's name and by release.
BRIDGE_OVERLAPS = frozenset(
    {
        ("deepseek", "H100", "25.09"),
        ("deepseek", "H100", "25.11"),
        ("qwen3-235b", "B200", "25.11"),
        ("qwen3-235b", "B300", "26.02"),
        ("qwen3-30b", "H100", "25.11"),
        ("qwen3-30b", "H100", "26.02"),
        *(("qwen3-235b", "H100", release) for release in ("25.11", "26.02", "26.02.01", "26.04", "26.04.01")),
    }
)
# Megatron-Bridge, models/{deepseek,kimi,glm}/*: moe_shared_expert_overlap true; apply_flex_dispatcher_backend (training/flex_dispatcher_backend.py)
# and overlapped exchanges (scripts/performance, _set_moe_a2a_overlap_overrides) clear it.
OVERLAPPED_SHARED_EXPERTS = ("deepseek", "kimi", "glm", "moonlight")

# NeMo AutoModel, examples/benchmark/configs/*_te_deepep.yaml, activation_checkpointing: by the start of
# the model's name.
AUTOMODEL_RECOMPUTES: tuple[tuple[str, Recompute], ...] = (
    ("gpt-oss", Recompute.NONE),
    ("moonlight", Recompute.NONE),
    ("qwen3", Recompute.FULL),
    ("deepseek", Recompute.FULL),
    ("kimi", Recompute.FULL),
)

# The benchmark settings of the first author of arXiv 2504.14960 (yanring/Megatron-MoE-ModelZoo,
# runtime_configs/benchmarking/runtime.conf): MBS 1 for every model but a toy of 8 x 2B, at that paper's
# sequence length and global batch.
EXPERT_MICRO_BATCHES: dict[str, tuple[int, ...]] = {"Megatron-Core": (1,)}

# Starts of names of models that NeMo-Framework-Launcher 24.07 has scripts for, and of those whose files there set
# cross_entropy_loss_fusion (launcher_scripts/conf/training).
LAUNCHED_IN_2407 = ("gpt3-5b", "gpt3-20b", "gpt3-40b", "gpt3-175b", "llama2-", "llama3-8b", "llama3-70b")
FUSED_LOSS_IN_2407 = ("llama3", "nemotron")

# Megatron-MoE-ModelZoo, model_configs/benchmarking/Qwen2-57B-A14B.yaml (--moe-shared-expert-overlap true in all of its versions).
ZOO_OVERLAPPED_SHARED_EXPERTS = frozenset({"qwen2-57b-a14b"})

# dgxc-benchmarking v25.01 to v25.04, llama3.1, nemotron, grok1 and nemo_megatron: activations_checkpoint_granularity null in all
# configurations but Nemotron 340B's, "selective" (nemotron4-340b-synth.yaml); nothing sets it in those of NeMo 2 (v25.04: pretrain_llama31.py).
NEMO_ON_DGXC = re.compile(r"NeMo \(DGX Cloud recipe v(25\.0[1-4])")
WITHOUT_RECOMPUTATION = ("llama3.1-", "nemotron4-15b", "grok1", "gpt3-175b")

MAXTEXT_ON_DGXC = re.compile(r"MaxText \(DGX Cloud recipe v(\d\d\.\d\d)")


def micro_batches(row: Row) -> tuple[int, ...]:
    """Micro-batch sizes of the framework's recipes for this kind of model; () where none is known."""
    if not row.whole_or("num_experts", 0):
        return ()
    return EXPERT_MICRO_BATCHES.get(row.text("framework"), ())


def runs_xtuner_v1(row: Row) -> bool:
    """Whether a row is of XTuner's engine of 2025: one with experts, which the engine before it cannot shard."""
    return "XTuner" in row.text("framework") and row.whole_or("num_experts", 0) > 0


def recomputes(row: Row) -> tuple[Recompute, ...]:
    """Recompute modes of the framework's recipes for this model; () where none is known."""
    if "MLPerf" in row.text("framework"):
        # NVIDIA's conf/custom.yaml: activations_checkpoint_granularity null unless the environment says otherwise
        return (Recompute.NONE,)
    if runs_xtuner_v1(row):
        return (Recompute.FULL,)  # xtuner/v1/config/fsdp.py, recompute_ratio 1
    if MAXTEXT_ON_DGXC.match(row.text("framework")) or policy(row):
        return (Recompute.FULL,)  # but for what kept_by_recomputation says
    name = row.text("model_name").lower()
    release = NEMO_ON_DGXC.match(row.text("framework"))
    if release:
        if name.startswith("nemotron4-340b"):
            return (Recompute.SELECTIVE,) if release[1] < "25.04" else ()
        return (Recompute.NONE,) if name.startswith(WITHOUT_RECOMPUTATION) else ()
    for word, table in (("AutoModel", AUTOMODEL_RECOMPUTES), ("Megatron-Bridge", BRIDGE_RECOMPUTES)):
        if word in row.text("framework"):
            return tuple(kind for start, kind in table if name.startswith(start))
    return RECOMPUTES.get(row.text("framework"), ())


def kept_by_recomputation(row: Row) -> dict[str, object]:
    """MaxText in dgxc-benchmarking, maxtext/configure.sh: save_qkv_proj from v25.02 on; before, a custom policy of query_proj,
    key_proj, value_proj and out_proj (in bf16 mlpwo too, whose product does not run again anyway). llm-foundry before
    October 2023 (300cc5c58, sweep.sh: torch 1.13.1, before early_stop), when its scripts wrote "bf16" for "amp_bf16"."""
    if "llm-foundry" in row.text("framework"):
        return {} if row.text("precision").startswith("amp") else {"recomputation.stops_early": False}
    release = MAXTEXT_ON_DGXC.match(row.text("framework"))
    if not release:
        kept = POLICIES.get(policy(row), "")
        return {"recomputation.keeps": kept} if kept else {}
    return {"recomputation.keeps": "qkv+out" if release[1] < "25.02" else "qkv"}


def recompute_modules(row: Row, stated: tuple[str, ...]) -> tuple[str, ...]:
    """Modules that run again: as stated, else the recipe's where the row leaves recomputation open.

    InternEvo repeats residual adds and norms of layers that it does not checkpoint
    (dropout_selective_checkpoint, on by default: internlm/model/modeling_internlm.py).
    """
    if "InternEvo" in row.text("framework"):
        return ("dropout_norm",) if row.text("recompute") == "none" else ()
    if stated or row.known("recompute") or "Megatron-Bridge" not in row.text("framework"):
        return stated
    model, gpu = row.text("model_name").lower(), row.text("gpu")
    fitting = (
        names for start, card, names in BRIDGE_MODULES if model.startswith(start) and gpu.startswith(card)
    )
    return next(fitting, ())


def dispatcher(row: Row, stated: str) -> str:
    """The dispatcher of JobSpec: as stated, else the recipe's, else the framework's default all-to-all.

    DeepEP and HybridEP both send a token once to each place; a recipe found to set none states so.
    """
    if stated:
        return stated if stated in ("deepep", "hybridep") else "all_to_all"
    framework, name = row.text("framework"), row.text("model_name").lower()
    if "AutoModel" in framework:
        return "deepep" if "deepep" in row.notes.lower() else "all_to_all"
    if "torchtitan" in framework.lower():
        # parallelism.expert_parallel_comm_backend: "standard" unless said (v0.2.2, config/job_config.py)
        said = f"{framework}; {row.notes}".lower()
        return next((kind for kind in ("hybridep", "deepep") if kind in said), "all_to_all")
    if "Megatron-Bridge" not in framework:
        return "all_to_all"
    gpu, release = row.text("gpu"), framework.split()[-1]
    if release == "25.09":
        once = name.startswith("deepseek") and gpu.startswith("H100") and "tokendrop" not in row.notes
        return "deepep" if once else "all_to_all"
    fitting = (
        kind
        for start, card, only, kind in BRIDGE_DISPATCHERS
        if name.startswith(start) and gpu.startswith(card) and only in ("", release)
    )
    return next(fitting, "all_to_all")


def exchange(row: Row, notes: Notes) -> dict[str, object]:
    """How experts exchange and what hides it: as stated, else as the recipe sets it."""
    kind, framework = dispatcher(row, notes.dispatcher), row.text("framework")
    name, gpu, release = row.text("model_name").lower(), row.text("gpu"), framework.split()[-1]
    bridge = "Megatron-Bridge" in framework
    silent = bridge and "moe_a2a_overlap" not in row.notes and "tokendrop" not in row.notes
    across = notes.expert_overlap or (
        silent
        and any(
            name.startswith(one) and gpu.startswith(card) and release == of
            for one, card, of in BRIDGE_OVERLAPS
        )
    )
    shared = bridge and kind == "all_to_all" and not across and name.startswith(OVERLAPPED_SHARED_EXPERTS)
    return {
        "moe_dispatcher": kind,
        "overlap_expert_a2a": across,
        # scripts/performance/utils/overrides.py, _set_moe_a2a_overlap_overrides sets both
        "delay_wgrad": across,
        "overlap_shared_experts": shared,
    }


def fuses_router(row: Row) -> bool:
    """Megatron-Bridge's tuned recipes of expert models set moe_router_fusion from release 25.09 (v0.1) on:
    scripts/performance/configs/*/*_llm_pretrain.*; Megatron-Core's default is off."""
    return bool(row.whole_or("num_experts", 0)) and "Megatron-Bridge" in row.text("framework")


def cuda_graphs(row: Row, stated: frozenset[str]) -> frozenset[str]:
    """What CUDA graphs replay: as stated; else, on Blackwell, as Megatron-Bridge's recipes for experts set it
    (scripts/performance/configs): router and preprocessing, and where experts are padded whole layers
    (release 25.09, qwen3_30b_a3b_llm_pretrain.yaml, cuda_graphs true)."""
    silent = "cuda_graph" not in row.notes and "Megatron-Bridge" in row.text("framework")
    if not silent or not row.whole_or("num_experts", 0) or row.text("gpu").startswith("H100"):
        return stated
    whole = frozenset({"full_iteration"})
    return whole if "tokendrop" in row.notes else frozenset({"moe_router", "moe_preprocess"})


def optimizer(row: Row) -> dict[str, object]:
    """Kimi K2's recipes in Megatron-Bridge train with Muon, which gathers parameters after its update
    (recipes/kimi/kimi_k2.py of v0.3.0: optimizer_type "muon", overlap_param_gather False), AdamW elsewhere."""
    if not trains_with_muon(row):
        return {}
    return {"optimizer": "muon", "data_parallel.overlap_param_gather": False}


def trains_with_muon(row: Row) -> bool:
    """Whether the recipe of a row's model is Muon's."""
    return "Megatron-Bridge" in row.text("framework") and row.text("model_name").lower().startswith("kimi")


def narrow_fp4(row: Row) -> dict[str, object]:
    """Parameters held and gathered in fp4: Megatron-Bridge from v0.5.0 on, release 26.06 (training/mixed_precision.py,
    bf16_with_nvfp4_mixed: fp4_param_gather True; not in v0.4.1)."""
    release = re.match(r"Megatron-Bridge (\d\d\.\d\d)", row.text("framework"))
    if not release or release[1] < "26.06" or trains_with_muon(row):
        return {}
    return {"precision.parameter_gather": "fp4", "precision.narrow_parameters": True}


def launch_settings(row: Row) -> dict[str, object]:
    """What the files that launch exactly this model set beside its framework's preset.

    NeMo-Framework-Launcher 24.07: examples/training/gpt and llama, */*.sh (+training.model.optim.grad_sync_dtype=bf16, the format of
    the buffer that gradients are added up in too); launcher_scripts/conf/training/gpt3/*b.yaml (hidden_dropout 0.1), 175b.yaml and
    175b_fp8.yaml (ub_tp_comm_overlap False). dgxc-benchmarking v25.01 to v25.04: nemo_megatron/gpt3_175b_hydra.yaml (hidden_dropout 0.1).
    """
    name = row.text("model_name").lower()
    if row.text("framework") == "Megatron-Core" and name in ZOO_OVERLAPPED_SHARED_EXPERTS:
        return {"overlap_shared_experts": True}
    if NEMO_ON_DGXC.match(row.text("framework")):
        return {"dropout": True} if name.startswith("gpt3-175b") else {}
    if row.text("framework") != "NeMo/Megatron-Core" or "24.07" not in row.notes:
        return {}
    if not name.startswith(LAUNCHED_IN_2407):
        return {"loss.fused": True} if name.startswith(FUSED_LOSS_IN_2407) else {}
    said: dict[str, object] = {
        "loss.fused": name.startswith(FUSED_LOSS_IN_2407),
        "data_parallel.fp32_gradients": False,
        "data_parallel.accumulation": "accumulate_16bit",
    }
    wide = {"tensor_parallel.overlap": False} if name == "gpt3-175b" else {}
    return said | ({"dropout": True} if name.startswith("gpt3-") else {}) | wide


def expert_ranks(row: Row, stated: int, dp: int) -> int:
    """Expert parallelism: as stated, but DeepEP moves tokens between expert ranks, so a row of AutoModel
    that runs it over "1" rank left the degree out; its recipes then take all FSDP ranks
    (examples/benchmark/configs/gptoss_*_te_deepep.yaml: ep_size = GPUs).
    """
    experts = row.whole_or("num_experts", 0)
    left_out = stated == 1 and "AutoModel" in row.text("framework") and "deepep" in row.notes.lower()
    return dp if left_out and experts and experts % dp == 0 else stated


def prediction_blocks(row: Row, stated: bool) -> int:
    """Multi-token-prediction blocks: one where the row says so, and in Megatron-Bridge's DeepSeek-V3
    (recipes/deepseek/deepseek_v3.py: mtp_num_layers 1)."""
    name = row.text("model_name").lower().replace("-", "")
    return int(stated or (name.startswith("deepseekv3") and "Megatron-Bridge" in row.text("framework")))
