"""A plan as accelerate's configuration file: ``accelerate launch --config_file FILE train.py``; what Hugging
Face's Trainer, LLaMA-Factory and Axolotl are started with.

Keys and refusals: accelerate 1.15, commands/config/config_args.py (``ClusterConfig``), commands/launch.py
(``_validate_launch_command``), utils/launch.py, parallelism_config.py (``ParallelismConfig``), utils/dataclasses.py
(``FullyShardedDataParallelPlugin``; its ``set_mixed_precision`` reduces in the format of the products). Batches, and
gradient checkpointing under FSDP1, are the training script's and stand in the file's head.
"""

import json

from ops.recompute import Recompute
from solver.plans.plan_table import Plan
from solver.problem.problem import Problem
from spec.job import JobSpec, Precision
from spec.model import ModelSpec
from workload.settings.frameworks import check_framework
from workload.settings.launch_file import (
    EXPANDABLE_SEGMENTS,
    SIXTEEN_BITS,
    LaunchText,
    launch_of,
    launch_text,
    refuse_other_keys,
    requirement,
    setting_omissions,
    true_notes,
)

NAME = "accelerate"
require = requirement(NAME)
USAGE = "accelerate 1.15 or later: accelerate launch --config_file FILE train.py and your model, data and learning rate"
FSDP1 = "hf-trainer"
Section = dict[str, str | int | bool]
Settings = dict[str, str | int | bool | Section]
PLAN_KEYS = frozenset({"tp", "cp", "zero_stage", "zero_size", "micro_batch", "num_micro", "recompute"})
JOB_KEYS = frozenset(
    str.split(
        "precision.compute precision.gradient precision.reduce precision.master precision.moments precision.linear "
        "context_parallel host.code optimizer expandable_segments"
    )
)
# parallelism_config.py: the torch backend's --parallelism_config_cp_comm_strategy
CP_STRATEGIES = {"all_gather": "allgather", "ring": "alltoall"}


def accelerate_settings(problem: Problem, plan: Plan) -> LaunchText:
    """The file. Raises ExportError for what accelerate cannot run."""
    settings = accelerate_config(problem, plan)
    notes = (*_in_script(problem, plan), *setting_omissions(problem, JOB_KEYS))
    return launch_text(plan, USAGE, notes, _yaml(settings))


def check_accelerate(model: ModelSpec, job: JobSpec) -> None:
    """Raise ExportError for a job that no plan makes accelerate run; every model is its script's."""
    del model
    require(job.optimizer == "adamw", "whole matrices dealt to ranks, as Muon is priced")
    _precision(job.precision)


def accelerate_config(problem: Problem, plan: Plan) -> Settings:
    """The configuration. Raises ExportError for what accelerate cannot run."""
    job = problem.job
    check_framework([NAME], plan.preset)
    check_accelerate(problem.model, job)
    refuse_other_keys(plan, PLAN_KEYS, NAME)
    nodes = -(-plan.world_size // problem.cluster.gpus_per_node)
    settings: Settings = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "FSDP" if plan.zero_stage else "MULTI_GPU",
        "mixed_precision": _precision(job.precision),
        "num_machines": nodes,
        "num_processes": plan.world_size,
        "machine_rank": 0,
        "main_training_function": "main",
        "use_cpu": False,
    }
    if job.preset.host.code == "compiled":
        settings["dynamo_config"] = {"dynamo_backend": "INDUCTOR", "dynamo_use_regional_compilation": True}
    if not plan.zero_stage:
        require(plan.tp == plan.cp == 1, "tp or cp without FSDP2")
        return settings
    old = plan.preset == FSDP1
    settings["fsdp_config"] = _fsdp1(problem, plan) if old else _fsdp2(plan)
    return settings if old else settings | {"parallelism_config": _degrees(job, plan)}


def _fsdp1(problem: Problem, plan: Plan) -> Section:
    """Sharded over all ranks, or over those of a node."""
    require(plan.tp == plan.cp == 1, "tp or cp beside FSDP1")
    within = problem.cluster.gpus_per_node
    require(plan.zero_size in (plan.dp, within), f"FSDP1 over {plan.zero_size} of {plan.dp} ranks")
    kind = {2: "SHARD_GRAD_OP", 3: "FULL_SHARD"}[plan.zero_stage]
    if plan.zero_size < plan.dp:
        kind = {"FULL_SHARD": "HYBRID_SHARD", "SHARD_GRAD_OP": "HYBRID_SHARD_ZERO2"}[kind]
    return {
        "fsdp_version": 1,
        "fsdp_sharding_strategy": kind,
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_backward_prefetch": "BACKWARD_PRE",
        "fsdp_use_orig_params": True,
        "fsdp_sync_module_states": True,
        "fsdp_cpu_ram_efficient_loading": True,
        "fsdp_state_dict_type": "SHARDED_STATE_DICT",
        "fsdp_offload_params": False,
    }


def _fsdp2(plan: Plan) -> Section:
    """Stage 3 frees a layer's gathered weights after its forward, stage 2 keeps them for the backward."""
    selective = plan.recompute is Recompute.SELECTIVE
    require(not selective, "selective recomputation: it wraps whole layers")
    return {
        "fsdp_version": 2,
        "fsdp_reshard_after_forward": plan.zero_stage == 3,
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_activation_checkpointing": plan.recompute is Recompute.FULL,
        "fsdp_cpu_ram_efficient_loading": True,
        "fsdp_state_dict_type": "SHARDED_STATE_DICT",
        "fsdp_offload_params": False,
    }


def _degrees(job: JobSpec, plan: Plan) -> Section:
    """Shards lie over dp_shard x cp ranks; one rank alone that shards is no FSDP."""
    copies = plan.dp * plan.cp
    require(plan.zero_size % plan.cp == 0, f"shards over {plan.zero_size} ranks beside cp {plan.cp}")
    replicas = copies // plan.zero_size
    require(replicas == 1 or plan.zero_size > plan.cp, f"{replicas} replicas of weights that are not sharded")
    degrees: Section = {
        "parallelism_config_dp_replicate_size": replicas,
        "parallelism_config_dp_shard_size": plan.zero_size // plan.cp,
        "parallelism_config_cp_size": plan.cp,
    }
    if plan.cp > 1:
        known = job.context_parallel in CP_STRATEGIES
        require(known, f"context parallelism by {job.context_parallel} beside FSDP2")
        degrees["parallelism_config_cp_comm_strategy"] = CP_STRATEGIES[job.context_parallel]
    return degrees | launch_of("accelerate", plan, NAME)


def _precision(precision: Precision) -> str:
    """mixed_precision: products and reductions in one format; "no" where parameters themselves are held in it."""
    compute = precision.compute
    require(compute in SIXTEEN_BITS, f"products in {compute}")
    require(precision.linear == compute, f"{precision.linear} products")
    require(precision.reduce == compute, f"gradients reduced in {precision.reduce}")
    states = (precision.master, precision.moments)
    require(
        states in (("fp32", "fp32"), ("", compute)),
        f"{precision.master or 'no'} master weights beside moments in {precision.moments}",
    )
    return compute if precision.master else "no"


def _in_script(problem: Problem, plan: Plan) -> tuple[str, ...]:
    """Settings of the training script, by the names of transformers' TrainingArguments."""
    job = problem.job
    steps = f"per_device_train_batch_size={plan.micro_batch} and gradient_accumulation_steps={plan.num_micro}"
    checkpoints = plan.recompute is Recompute.FULL and (plan.preset == FSDP1 or not plan.zero_stage)
    several = plan.world_size > problem.cluster.gpus_per_node
    return true_notes(
        {
            f"set {steps} in the script": True,
            f"set sequences of {job.seq_len} tokens": True,
            f"load the model in {job.precision.compute}": not job.precision.master,
            "set gradient_checkpointing=True in the script": checkpoints,
            "set --machine_rank, --main_process_ip and --main_process_port on each node": several,
            f"load the model with tp_size={plan.tp}": plan.tp > 1,
            f"set {EXPANDABLE_SEGMENTS}": job.expandable_segments,
        }
    )


def _yaml(settings: Settings) -> list[str]:
    """A line a key; values as JSON writes them, which is YAML too."""
    lines = []
    for key, value in settings.items():
        if isinstance(value, dict):
            lines.append(f"{key}:")
            lines += [f"  {inner}: {json.dumps(one)}" for inner, one in value.items()]
        else:
            lines.append(f"{key}: {json.dumps(value)}")
    return lines
