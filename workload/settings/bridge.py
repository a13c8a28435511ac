"""A plan as a Megatron-Bridge recipe: a Python module whose ``recipe(hf_model)`` returns the ConfigContainer
to pretrain with.

Names: Megatron-Bridge 067f987 (August 2026), recipes/common.py (``_pretrain_common``), training/config.py
(``ConfigContainer``), training/mixed_precision.py (its registry), training/comm_overlap.py (``CommOverlapConfig``), and
Megatron-Core's TransformerConfig, DistributedDataParallelConfig and OptimizerConfig, whose fields bear the names of
Megatron-LM's flags. The model comes from the Hub (``AutoBridge``), by its provider: most families have no builder-backed
config (models/conversion/auto_bridge.py, ``get_model_config``), and those with latent attention cannot be made one. Data,
tokenizer and learning rate are the user's.
"""

from collections.abc import Mapping

from solver.plans.plan_table import Plan
from solver.problem.problem import Problem
from spec.job import JobSpec, Precision
from spec.model import ModelSpec
from workload.settings.launch_file import LaunchText, launch_text, requirement, same_framework, setting_omissions
from workload.settings.megatron import SWITCHED_OFF, launch_flags_of_hub_models
from workload.settings.megatron_flags import (
    FP8_RECIPES,
    RELATIVES,
    Flags,
    adapter_obstacles,
    adapter_targets,
    hybrid_pattern,
    job_flags,
    job_keys,
    job_omissions,
    scaling_word,
)

NAME = "Megatron-Bridge"
require = requirement(NAME)
USAGE = "Megatron-Bridge of August 2026 (067f987): {0}(recipe(NAME), forward_step) of megatron.bridge.training.{0}"
# The entry point of megatron.bridge.training and the common recipe (recipes/common.py) of a task.
ENTRIES = {
    "pretrain": ("pretrain", "_pretrain_common"),
    "sft": ("finetune", "_sft_common"),
    "lora": ("finetune", "_peft_common"),
}
# The holder of each field that a flag of Megatron-LM sets.
HOLDER = {name: holder for holder, names in RELATIVES["bridge"].items() for name in names}
# Flags whose field has another name or takes the value the other way round.
OTHERWISE: dict[str, tuple[tuple[str, object], ...]] = {
    "--num-virtual-stages-per-pipeline-rank": (),
    "--sft": (),
    "--no-overlap-p2p-communication": (("comm_overlap.overlap_p2p_comm", False),),
    "--no-rope-fusion": (("model.apply_rope_fusion", False),),
    "--no-masked-softmax-fusion": (("model.masked_softmax_fusion", False),),
    "--no-check-for-nan-in-loss-and-grad": (
        ("ddp.check_for_nan_in_grad", False),
        ("rerun_state_machine.check_for_nan_in_loss", False),
    ),
    "--seq-length": (("model.seq_length", ...), ("dataset.seq_length", ...)),
    "--ddp-bucket-size": (("ddp.bucket_size", ...),),
    "--use-distributed-optimizer": (
        ("ddp.use_distributed_optimizer", True),
        ("optimizer.use_distributed_optimizer", True),
    ),
}
# What training/mixed_precision.py says by one name; what remains of a format is said by fields of it.
# Types of models that it has a bridge of.
HUB_TYPES = frozenset(RELATIVES["bridge_models"]["types"])
RECIPES, FORMAT_FLAGS = (RELATIVES["bridge_formats"][key] for key in ("recipes", "flags"))
STATES = ("--exp-avg-dtype", "--exp-avg-sq-dtype", "--main-params-dtype")
DTYPES = {"bf16": "torch.bfloat16", "fp16": "torch.float16", "fp32": "torch.float32", "fp8": "torch.uint8"}
# Off by default; a recipe's common part or a family's provider (models/deepseek, models/qwen, models/glm) has them on.
DEFAULTS: dict[str, object] = {
    "model.moe_shared_expert_overlap": False,
    "model.moe_router_dtype": None,
    "model.mtp_num_layers": None,
    "model.recompute_granularity": None,
    "model.recompute_modules": None,
    "model.cross_entropy_loss_fusion": False,
    "ddp.overlap_grad_reduce": False,
    "ddp.overlap_param_gather": False,
    "ddp.use_distributed_optimizer": False,
    "optimizer.use_distributed_optimizer": False,
    "ddp.check_for_nan_in_grad": True,
}


def bridge_settings(problem: Problem, plan: Plan) -> LaunchText:
    """The module. Raises ExportError for what Megatron-Bridge cannot run."""
    values = bridge_fields(problem, plan)
    notes = (
        "set data, tokenizer, learning rate and checkpoints, here those of its common recipe",
        *["set config.checkpoint.pretrained_checkpoint"] * (problem.job.task != "pretrain"),
        *job_omissions(problem, plan),
        *setting_omissions(problem, job_keys(problem.job)),
    )
    entry, common = ENTRIES[problem.job.task]
    return launch_text(plan, USAGE.format(entry), notes, ["", *_module(problem.job.precision, common, values)])


def bridge_fields(problem: Problem, plan: Plan) -> dict[str, object]:
    """Fields of the ConfigContainer by their path, the mixed precision aside. Raises ExportError for what
    Megatron-Bridge cannot run."""
    same_framework("megatron-bridge", plan)
    check_bridge(problem.model, problem.job)
    packed = problem.job.task == "pretrain" or plan.micro_batch == 1  # training/gpt_step.py packs them into one
    require(packed, f"{plan.micro_batch} sequences of chats a micro-batch")
    requested = launch_flags_of_hub_models(problem, plan)
    # beside a layout too: CommOverlapConfig decides on overlaps before Megatron-Core counts the layout's chunks
    chunks = {"model.virtual_pipeline_model_parallel_size": plan.vpp} if plan.vpp > 1 else {}
    if "--hybrid-layer-pattern" in requested:
        chunks = {}  # as many as the pattern's parts
    # training/config.py, ConfigContainer.validate: parts of a chat may have no token that counts
    tuned = problem.job.task != "pretrain" and plan.cp > 1
    by_token = {"model.calculate_per_token_loss": True, "ddp.average_in_collective": False} if tuned else {}
    return DEFAULTS | _fields(requested) | chunks | by_token | _adapters(problem.job)


def check_bridge(model: ModelSpec, job: JobSpec) -> None:
    """Raise ExportError for a model or a job that no plan makes Megatron-Bridge run."""
    require(model.model_type in HUB_TYPES, f"models of type {model.model_type or 'no model_type of the Hub'}")
    job_flags(model, job)
    # models/nemotronh: its provider has a number of experts in dense models as well
    graphed = bool(hybrid_pattern(model)) and "mlp" in job.cuda_graphs
    require(not graphed, "CUDA graphs of dense layers in a hybrid model")
    for obstacle in adapter_obstacles(model, job):
        require(False, obstacle)


def _adapters(job: JobSpec) -> dict[str, object]:
    """LoRA of ``_peft_common``: its rank and what it is beside."""
    if not job.adapter_rank:
        require(job.task != "lora", "adapters of rank 0")
        return {}
    require(job.task == "lora", "adapters without task=lora")
    require(not job.adapter_dropout, "dropout of adapters")
    require(not job.adapter_dtype, f"adapters in {job.adapter_dtype}")
    return {"peft.dim": job.adapter_rank, "peft.target_modules": adapter_targets(job)}


def _fields(requested: Flags) -> dict[str, object]:
    fields: dict[str, object] = {}
    for flag, value in requested.items():
        name = flag[2:].replace("-", "_")
        if flag in FORMAT_FLAGS:
            continue
        if flag in OTHERWISE:
            fields |= {path: value if fixed is ... else fixed for path, fixed in OTHERWISE[flag]}
        elif flag == "--attention-backend":
            fields["model.attention_backend"] = _Code(f"AttnBackend.{value}")
        elif flag in STATES:
            fields[f"optimizer.{name}"] = _Code(DTYPES[str(value)])
        else:
            known = name in HOLDER and flag not in SWITCHED_OFF.values()
            require(known, f"what Megatron-LM's {flag} says")
            fields[f"{HOLDER[name]}.{name}"] = _value(name, value)
    if "model.cpu_offloading_num_layers" in fields:
        fields["model.cpu_offloading"] = True
    return fields


class _Code(str):
    """Python as it stands, not a text."""

    def __repr__(self) -> str:
        return str(self)


def _value(name: str, value: str | int | None) -> object:
    """Flags are texts or switches; fields are typed."""
    if value is None:
        return True
    if name in ("recompute_modules", "offload_modules", "cuda_graph_modules"):
        return str(value).split()
    if name in ("attention_dropout", "hidden_dropout", "moe_expert_capacity_factor", "optimizer_offload_fraction"):
        return float(value)
    return value


def _precision(precision: Precision) -> list[str]:
    """A named recipe, with gradients, gathers and layers of bf16 as priced."""
    recipe, _ = FP8_RECIPES.get(scaling_word(precision), ("", ""))
    low = precision.linear != precision.compute
    name = RECIPES[recipe if precision.linear == "fp8" else "nvfp4"] if low else f"{precision.compute}_mixed"
    require(not low or precision.compute == "bf16", f"{precision.linear} products beside {precision.compute}")
    lines = [
        f"    precision = get_mixed_precision_config({name!r})",
        f"    precision.grad_reduce_in_fp32 = {precision.reduce == 'fp32'}",
    ]
    if precision.linear == "fp4":
        lines.append(f"    precision.fp4_param_gather = {precision.parameter_gather == 'fp4'}")
    if precision.linear == "fp8":
        held = precision.parameter_gather == "fp8" or precision.low_precision_parameters
        lines.append(f"    precision.fp8_param_gather = {held}")
        if recipe == "mxfp8":
            lines.append(f"    precision.reuse_grad_buf_for_mxfp8_param_ag = {held}")
        first, last = precision.high_precision_first_layers, precision.high_precision_last_layers
        if recipe == "tensorwise" or first or last:
            lines.append(f"    precision.first_last_layers_bf16 = {bool(first or last)}")
        if first or last:
            lines.append(f"    precision.num_layers_at_start_in_bf16 = {first}")
            lines.append(f"    precision.num_layers_at_end_in_bf16 = {last}")
        if recipe == "blockwise":
            lines.append("    precision.fp8 = 'e4m3'")
    return [*lines, "    config.mixed_precision = precision"]


def _module(precision: Precision, common: str, values: Mapping[str, object]) -> list[str]:
    overlap = {path: value for path, value in values.items() if path.startswith("comm_overlap.")}
    made = {path.split(".")[1]: value for path, value in overlap.items()}
    # by default CommOverlapConfig switches them on for a distributed optimizer
    made |= {
        name: values[f"ddp.{name}"]
        for name in ("overlap_grad_reduce", "overlap_param_gather", "bucket_size")
        if f"ddp.{name}" in values
    }
    inside = ", ".join(f"{name}={value!r}" for name, value in ({"tp_comm_overlap": False} | made).items())
    return [
        "import torch",
        "from megatron.bridge import AutoBridge",
        f"from megatron.bridge.recipes.common import {common}",
        "from megatron.bridge.training.comm_overlap import CommOverlapConfig",
        "from megatron.bridge.training.config import ConfigContainer",
        "from megatron.bridge.training.mixed_precision import get_mixed_precision_config",
        "from megatron.core.transformer.enums import AttnBackend",
        "",
        "",
        "def recipe(hf_model: str) -> ConfigContainer:",
        f"    config = {common}()",
        "    config.model = AutoBridge.from_hf_pretrained(hf_model).to_megatron_provider(load_weights=False)",
        "    config.tokenizer.tokenizer_model = hf_model",
        "    config.model.pipeline_dtype = torch.bfloat16"
        if precision.compute == "bf16"
        else "    config.model.pipeline_dtype = torch.float16",
        f"    config.comm_overlap = CommOverlapConfig({inside})",
        *(f"    config.{path} = {value!r}" for path, value in values.items() if path not in overlap),
        *_precision(precision),
        "    return config",
    ]
