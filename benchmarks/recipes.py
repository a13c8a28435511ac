"""Hand-tuned recipes of a framework, one per row of a CSV file, as the model, job and plan of a user's question."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

from benchmarks.published_rows import Row, rows_of
from ops.recompute import MODULES
from profdb.modelled.cost_model import ModelledCostModel
from solver.plans.plan_table import Plan
from solver.problem.problem import Problem
from solver.problem.requested_plan import plan_of
from solver.times.op_times import OpTimer
from spec.cluster.cluster import ClusterSpec, segmented
from spec.errors import ConfigError
from spec.frameworks import OffloadedPart
from spec.mixers.attention import AttentionKind, AttentionSpec
from spec.model import BlockRun, BlockSpec, MlpSpec, ModelSpec, MoeSpec
from spec.parameters import num_parameters
from spec.settings.job import JobRequest, job_of
from spec.settings.plan import PlanSettings

SPECS = {"h100": "h100-sxm", "b200": "b200", "b300": "b300", "gb200": "gb200-nvl72", "gb300": "gb300-nvl72"}
"""GPU -> its hardware spec in configs/clusters."""
REQUIRED = ("recipe", "kind", "task", "model", "gpu", "num_gpus", "tp", "pp", "micro_batch", "global_batch")
# Largest relative difference from the published number of parameters: biases, norms and router corrections of a family.
TOLERANCE = 0.01
# Megatron-Bridge, training/mixed_precision.py, by the recipe's word.
PRECISIONS: dict[str, dict[str, object]] = {
    "bf16": {"precision.recipe": "bf16"},
    "fp8cs": {"precision.recipe": "fp8-current"},
    "fp8ds": {"precision.recipe": "fp8-current", "precision.scaling": "delayed"},
    "fp8sc": {"precision.recipe": "fp8-blockwise"},
    "fp8mx": {"precision.recipe": "mxfp8"},
    "nvfp4": {"precision.recipe": "nvfp4"},
}
# Format in which low-precision parameters are gathered; MXFP8 ones in 16 bits (reuse_grad_buf_for_mxfp8_param_ag).
GATHERED = {"fp8cs": "fp8", "fp8ds": "fp8", "nvfp4": "fp4"}
DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "": "fp32"}
GRAPHED = {"attn", "mamba", "mlp", "moe_router", "moe_preprocess", "full_iteration"}

# What MoE recipes run in FP8 in addition to the linear layers, if one CUDA graph holds a whole iteration: Megatron-Bridge
# 26.06 (v0.5.0), scripts/performance/configs/*/*_workload_base_configs.py, cuda_graph_impl "full_iteration" of MXFP8 with
# fp8_dot_product_attention, and fp8_output_proj in *_llm_pretrain.py; 26.08 (v0.6.0), perf_recipes/*/common.py.
ATTENDS: Mapping[str, object] = {"precision.attention": "fp8"}
HEAD: Mapping[str, object] = {"precision.low_precision_head": True}
# (start of the model's name, start of the GPU's name, settings); the first that fits.
BY_MODEL: tuple[tuple[str, str, Mapping[str, object]], ...] = (
    ("deepseek_v3", "gb200", HEAD),
    ("deepseek_v3", "", {**HEAD, **ATTENDS}),
    ("qwen3", "", ATTENDS),
    ("gpt_oss_120b", "", {**HEAD, **ATTENDS}),
)
# Models with moe_router_dtype "fp32": Megatron-Bridge (v0.2.0 to v0.6.0), src/megatron/bridge/models.
FP32_ROUTERS = ("deepseek", "kimi", "glm", "nemotron", "qwen3-next")


@dataclass(frozen=True, slots=True, kw_only=True)
class TunedRecipe(Row):
    """One row; an empty cell is a setting that the recipe does not change."""

    @property
    def name(self) -> str:
        """Name of the recipe's function."""
        return self.text("recipe")

    def says(self, column: str) -> bool:
        """True if a switch is on."""
        return self.text(column) == "1"

    @property
    def counts(self) -> bool:
        """True for a recipe that is tuned for throughput in pre-training on a GPU with a hardware spec."""
        tuned = self.text("kind") == "perf" and self.text("task") == "pretrain"
        return tuned and self.text("gpu") in SPECS


def read_recipes(path: Path) -> list[TunedRecipe]:
    """Every row of the file. Raises ConfigError for a file that is not one of recipes."""
    return list(rows_of(path, TunedRecipe, REQUIRED, "--recipes"))


def model_of(recipe: TunedRecipe) -> ModelSpec:
    """The recipe's model, dense or MoE. Raises ConfigError for other models, and if the number of parameters is not the
    published one."""
    if recipe.text("needs"):
        allowed = "a dense model or one of experts, of full attention"
        raise ConfigError(where=recipe.where, key="needs", value=recipe.text("needs"), allowed=allowed)
    model = ModelSpec(
        name=recipe.text("model"),
        hidden=recipe.whole("hidden"),
        vocab=recipe.whole("vocab"),
        blocks=_blocks(recipe),
        source=recipe.text("source"),
    )
    published, counted = recipe.whole("params_total", 0), num_parameters(model).total
    if published and abs(counted / published - 1.0) > TOLERANCE:
        raise ConfigError(where=recipe.where, key="params_total", value=published, allowed=f"about {counted:,}")
    return model


def _blocks(recipe: TunedRecipe) -> tuple[BlockRun, ...]:
    """Dense layers, then MoE layers, then MTP blocks."""
    attention, layers = _attention(recipe), recipe.whole("layers")
    dense = BlockSpec(mixer=attention, mlp=MlpSpec(ffn_hidden=recipe.whole("ffn"), gated=True, activation="silu"))
    if not recipe.whole("experts", 0):
        return (BlockRun(block=dense, count=layers),)
    first = recipe.whole("dense_layers", 0)
    routed = BlockSpec(mixer=attention, mlp=None, moe=_experts(recipe))
    runs = [BlockRun(block=dense, count=first)] * bool(first) + [BlockRun(block=routed, count=layers - first)]
    predicted = recipe.whole("mtp", 0)
    return (*runs, *[BlockRun(block=replace(routed, mtp=True), count=predicted)] * bool(predicted))


def _attention(recipe: TunedRecipe) -> AttentionSpec:
    heads = recipe.whole("heads")
    if recipe.whole("kv_lora_rank", 0):
        nope, rope = recipe.whole("qk_nope_dim"), recipe.whole("qk_rope_dim")
        return AttentionSpec(
            kind=AttentionKind.MLA,
            num_heads=heads,
            num_kv_heads=heads,
            qk_dim=nope + rope,
            v_dim=recipe.whole("v_dim"),
            rope_dim=rope,
            q_lora_rank=recipe.whole("q_lora_rank", 0),
            kv_lora_rank=recipe.whole("kv_lora_rank"),
        )
    width, kv_heads = recipe.whole("head_dim"), recipe.whole("kv_heads")
    return AttentionSpec(
        kind=AttentionKind.GQA if kv_heads < heads else AttentionKind.MHA,
        num_heads=heads,
        num_kv_heads=kv_heads,
        qk_dim=width,
        v_dim=width,
        # Qwen3's config.json and modeling_qwen3.py
        qk_norm=recipe.text("model").startswith("qwen3"),
    )


def _experts(recipe: TunedRecipe) -> MoeSpec:
    # DeepSeek-V3's config.json: n_group 8, topk_group 4
    groups = (8, 4) if recipe.text("model").startswith("deepseek_v3") else (1, 1)
    return MoeSpec(
        num_experts=recipe.whole("experts"),
        topk=recipe.whole("topk"),
        expert_ffn_hidden=recipe.whole("expert_ffn"),
        shared_ffn_hidden=recipe.whole("shared_expert_ffn", 0),
        route_groups=groups[0],
        route_chosen_groups=groups[1],
    )


def low_precision_settings(recipe: TunedRecipe) -> Mapping[str, object]:
    """Settings of low precision in addition to the linear layers, of MXFP8 recipes with a full-iteration CUDA graph."""
    if recipe.text("precision") != "fp8mx" or recipe.text("cuda_graph_impl") != "full_iteration":
        return {}
    model, gpu = (recipe.text(column).lower().replace("-", "_") for column in ("model", "gpu"))
    fitting = (settings for name, start, settings in BY_MODEL if model.startswith(name) and gpu.startswith(start))
    return next(fitting, {})


def routes_in_fp32(recipe: TunedRecipe) -> bool:
    """True if the router computes in fp32, as the model's default says; not in DeepSeek-V3's recipes under FSDP
    (perf_recipes/deepseek/gb300/deepseek_v3.py: moe_router_dtype "bf16")."""
    sharded = recipe.text("model") == "deepseek_v3" and recipe.says("fsdp")
    name = recipe.text("model").lower().replace("_", "-")
    in_fp32 = any(word in name for word in FP32_ROUTERS)
    return bool(recipe.whole("experts", 0)) and in_fp32 and not sharded


def settings_of(recipe: TunedRecipe) -> dict[str, object]:
    """The job settings by which the recipe differs from its framework's preset. Raises ConfigError for one that cannot be
    expressed."""
    word = recipe.text("precision")
    if word not in PRECISIONS:
        allowed = f"one of {', '.join(PRECISIONS)}"
        raise ConfigError(where=recipe.where, key="precision", value=word, allowed=allowed)
    low_precision_weights = word != "bf16" and recipe.says("param_gather_low_precision")
    fp32_gradients = recipe.says("grad_reduce_in_fp32")
    scopes = set(recipe.text("cuda_graph_scope").split("+")) & GRAPHED
    if recipe.text("cuda_graph_impl") == "full_iteration":
        scopes = {"full_iteration"}
    settings: dict[str, object] = {
        **PRECISIONS[word],
        "precision.low_precision_parameters": low_precision_weights,
        "precision.parameter_gather": GATHERED.get(word, "bf16") if low_precision_weights else "bf16",
        "precision.moments": DTYPES[recipe.text("exp_avg_dtype")],
        "data_parallel.fp32_gradients": fp32_gradients,
        "data_parallel.accumulation": "accumulate_fp32" if fp32_gradients else "accumulate_16bit",
        "data_parallel.overlap_grad_reduce": recipe.says("overlap_grad_reduce"),
        "data_parallel.overlap_param_gather": recipe.says("overlap_param_gather"),
        "tensor_parallel.overlap": recipe.says("tp_comm_overlap"),
        "loss.fused": True,
        "host.checks_numbers": False,
        # scripts/performance/configs: moe_router_fusion of every tuned MoE recipe
        "moe_router_fusion": bool(recipe.whole("experts", 0)),
        "precision.router": "fp32" if routes_in_fp32(recipe) else "none",
        "overlap_expert_a2a": recipe.says("moe_a2a_overlap"),
        "delay_wgrad": recipe.says("delay_wgrad"),
        "cuda_graphs": frozenset(scopes),
        "optimizer": "muon" if "muon" in recipe.text("optimizer") else "adamw",
        # scripts/performance: PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True
        "expandable_segments": True,
    }
    if recipe.text("moe_dispatcher") in ("deepep", "hybridep"):
        settings["moe_dispatcher"] = recipe.text("moe_dispatcher")
    return settings | low_precision_settings(recipe)


def problem_of(recipe: TunedRecipe, cluster: ClusterSpec) -> Problem:
    """The recipe's model and job on its hardware spec. Raises ConfigError for what cannot be expressed."""
    seq_len, gpus = recipe.whole("seq_len"), recipe.whole("num_gpus")
    job_request = JobRequest(
        world_size=gpus,
        seq_len=seq_len,
        global_batch_tokens=recipe.whole("global_batch") * seq_len,
        framework="megatron-fsdp" if recipe.says("fsdp") else "megatron-bridge",
        settings=settings_of(recipe),
        where=recipe.where,
    )
    job = job_of(job_request, cluster.gpu.architecture)
    cluster = segmented(cluster, job.world_size, job.nvlink_segment)
    return Problem(
        model=model_of(recipe),
        job=job,
        cluster=cluster,
        op_timer=OpTimer.on(cluster, ModelledCostModel(cluster=cluster)),
    )


def recipe_plan(recipe: TunedRecipe, problem: Problem) -> Plan:
    """The recipe's plan. Raises ConfigError for degrees that contradict the job."""
    # Muon's recipes shard by whole matrices instead (dist_muon, Megatron-Core's layer-wise distributed optimizer).
    distributed = recipe.says("distributed_optimizer") or recipe.text("optimizer").startswith("dist")
    sharded = 3 if recipe.says("fsdp") else int(distributed)
    kind, modules = _recompute(recipe)
    layers, parts = _offload(recipe)
    written = PlanSettings(
        strategy="fsp" if recipe.whole("tp") > 1 else "mtp",
        tp=recipe.whole("tp"),
        pp=recipe.whole("pp"),
        vpp=recipe.whole("vpp", 1),
        cp=recipe.whole("cp", 1),
        ep=recipe.whole("ep", 1),
        etp=recipe.whole("etp", 1),
        zero_stage=sharded,
        zero_size=0,
        micro_batch=recipe.whole("micro_batch"),
        recompute=kind,
        recompute_modules=modules,
        layout=recipe.text("pipeline_layout") or _layout(recipe),
        offloaded_layers=layers,
        offload_modules=parts,
    )
    return plan_of(written, problem, recipe.where)


def _offload(recipe: TunedRecipe) -> tuple[int, tuple[OffloadedPart, ...]]:
    """The number of offloaded layers ("layers:N") and the offloaded parts of all layers. Raises ConfigError for other
    words."""
    text = recipe.text("activation_offload")
    layers = re.fullmatch(r"layers:(\d+)", text)
    if layers:
        return int(layers[1]), ()
    parts = get_args(OffloadedPart)
    names = text.split("+") if text else []
    for name in names:
        if name not in parts:
            allowed = f"layers:N, or of {', '.join(parts)} joined by +"
            raise ConfigError(where=recipe.where, key="activation_offload", value=text, allowed=allowed)
    return 0, tuple(name for name in parts if name in names)


def _layout(recipe: TunedRecipe) -> str | None:
    """The layout of a recipe without one. If the stages do not divide the layers, embedding and loss count as a layer each
    (Llama 3.1 405B: account_for_embedding_in_pipeline_split, account_for_loss_in_pipeline_split)."""
    stages = recipe.whole("pp") * recipe.whole("vpp", 1)
    return "embedding+loss" if recipe.whole("layers") % stages else None


def _recompute(recipe: TunedRecipe) -> tuple[str, tuple[str, ...]]:
    """The kind of recomputation and its modules, from "none", "full", "full:block:N" or "selective:" and modules."""
    kind, _, rest = recipe.text("recompute").partition(":")
    if kind != "selective":
        return kind or "none", ()
    modules = rest.split("+")
    return "none", tuple(name for name in MODULES if name in modules)
