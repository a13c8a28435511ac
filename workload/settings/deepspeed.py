"""A plan as DeepSpeed's JSON configuration.

Keys and refusals: DeepSpeed 0.19, runtime/config.py, runtime/zero/config.py (``DeepSpeedZeroConfig``),
runtime/precision_config.py, runtime/tensor_parallel/config.py (``autotp_size``), runtime/engine.py
(``_do_optimizer_sanity_check``; ``_configure_tensor_parallel_states``: AutoTP at every ZeRO stage from 0.19 on),
runtime/pipe/engine.py, runtime/pipe/topology.py. What DeepSpeed takes in Python (the model, pipeline
stages, activation checkpointing) stands in the file under SCRIPT, a key that it does not read, and is returned.
"""

import json

from ops.layout import ranks_and_stride
from ops.recompute import Recompute
from solver.plans.plan_table import Plan, PlanTable
from solver.problem.problem import Problem
from spec.job import JobSpec, Precision
from spec.mixers.attention import attention_of
from spec.model import ModelSpec
from workload.settings.launch_file import (
    EXPANDABLE_SEGMENTS,
    LaunchText,
    launch_of,
    refuse_other_keys,
    requirement,
    same_framework,
    setting_omissions,
    true_notes,
)

NAME = "DeepSpeed"
require = requirement(NAME)
SCRIPT = "set_in_the_training_script"
PRICED = "priced_and_left_out"
Settings = dict[str, object]
# The keys of a plan that the configuration or its notes say.
PLAN_KEYS = frozenset(
    {"tp", "pp", "ep", "etp", "zero_stage", "zero_size", "micro_batch", "num_micro", "recompute"}
    | {"optimizer_offload"}
)

# The settings of a job that the JSON, or its refusals, say.
JOB_KEYS = frozenset(
    str.split(
        "data_parallel.fp32_gradients data_parallel.bucket_elements data_parallel.overlap_grad_reduce "
        "precision.compute precision.gradient precision.reduce precision.master precision.moments precision.linear "
        "precision.scale_recipe precision.scaling optimizer adapter_rank adapted expandable_segments"
    )
)


def deepspeed_settings(problem: Problem, plan: Plan) -> LaunchText:
    """The JSON. Raises ExportError for what DeepSpeed cannot run."""
    settings = deepspeed_json(problem, plan)
    script = (*_ulysses(plan), *_in_script(problem, plan), *_facts(problem.model))
    settings[SCRIPT] = list(script)
    omissions = setting_omissions(problem, JOB_KEYS)
    if omissions:
        settings[PRICED] = [clause.removeprefix("left out: ") for clause in omissions]
    notes = (*(f"set in the training script: {note}" for note in script), *omissions)
    return LaunchText(text=json.dumps(settings, indent=2) + "\n", notes=notes)


def check_deepspeed(model: ModelSpec, job: JobSpec) -> None:
    """Raise ExportError for a job that no plan makes DeepSpeed run; every model is its script's."""
    del model
    require(job.optimizer == "adamw", "whole matrices dealt to ranks, as Muon is priced")
    _precision(job.precision)


def deepspeed_json(problem: Problem, plan: Plan) -> Settings:
    """The configuration without what the script sets. Raises ExportError for what DeepSpeed cannot run."""
    job = problem.job
    same_framework("deepspeed", plan)
    check_deepspeed(problem.model, job)
    _refuse_plan(job, plan)
    if plan.tp > 1:
        for run in problem.model.blocks:
            attention_of(run.block.mixer, f"{NAME}'s AutoTP and sequence parallelism")
    settings: Settings = {
        "train_micro_batch_size_per_gpu": plan.micro_batch,
        "gradient_accumulation_steps": plan.num_micro,
        **_precision(job.precision),
        "zero_optimization": _zero(job, plan),
    }
    launch = launch_of("deepspeed", plan, NAME)
    if plan.pp > 1:
        launch.pop("tensor_parallel", None)  # the script's own, by the pipeline's grid
    if "tensor_parallel" not in launch:
        # else checked against all ranks, those of a tensor-parallel group too: left for DeepSpeed to multiply
        settings["train_batch_size"] = plan.micro_batch * plan.num_micro * plan.dp
    return settings | launch


def _refuse_plan(job: JobSpec, plan: Plan) -> None:
    refuse_other_keys(plan, PLAN_KEYS, NAME)
    copies = _copies(plan)
    whole = plan.zero_stage == 0 or plan.zero_size == copies
    require(whole, f"ZeRO over {plan.zero_size} of {copies} ranks with the same weights")
    require(plan.pp == 1 or plan.zero_stage < 2, f"pipeline stages beside ZeRO-{plan.zero_stage}")
    require(plan.etp in (1, plan.tp), f"experts over tp {plan.etp} beside tp {plan.tp}")
    overlap = job.preset.data_parallel.overlap_grad_reduce
    require(plan.pp == 1 or not overlap, "overlap_comm beside pipeline stages, which switch it off")
    narrow = job.precision.gradient == job.precision.compute
    require(narrow or plan.zero_stage > 0, f"gradients in {job.precision.gradient} without ZeRO")
    share, parted = plan.optimizer_offload, plan.zero_stage >= 3 or plan.optimizer_offload == 1.0
    require(share == 0.0 or (plan.zero_stage > 0 and parted), f"{share:g} of the optimizer offloaded")


def _copies(plan: Plan) -> int:
    """Ranks that hold the same dense weights, over all of which DeepSpeed shards."""
    ranks, _ = ranks_and_stride(plan.sharding.traits.copies.dense, PlanTable.of(plan).layout)
    return int(ranks[0])


def _precision(precision: Precision) -> Settings:
    """Products, the format gradients are summed in, and the one they travel in."""
    compute = precision.compute
    require(compute in ("bf16", "fp16"), f"products in {compute}: its JSON has bf16 and fp16")
    require(precision.linear == compute, f"{precision.linear} products")
    states = {precision.master, precision.moments}
    require(states == {"fp32"}, f"optimizer states in {', '.join(sorted(states - {'fp32'}))}")
    formats = ("fp32", "fp16", "bf16")
    require(precision.gradient in formats, f"gradients in {precision.gradient}")
    require(precision.reduce in formats, f"gradients reduced in {precision.reduce}")
    return {
        compute: {"enabled": True},
        "data_types": {"grad_accum_dtype": precision.gradient},
        "communication_data_type": precision.reduce,
    }


def _zero(job: JobSpec, plan: Plan) -> Settings:
    choices = job.preset.data_parallel
    zero: Settings = {
        "stage": plan.zero_stage,
        "contiguous_gradients": True,
        "overlap_comm": choices.overlap_grad_reduce or plan.zero_stage == 3,
        "reduce_scatter": True,
    }
    share = plan.optimizer_offload
    if share:
        # zero/offload_config.py, DeepSpeedZeroOffloadOptimizerConfig; ratio is read at stage 3
        part = {"ratio": share} if share < 1.0 else {}
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True, **part}
    if choices.bucket_elements:
        zero["reduce_bucket_size"] = choices.bucket_elements
    return zero


def _ulysses(plan: Plan) -> tuple[str, ...]:
    """Steps of a training script beside the key of sequence parallelism (runtime/config.py;
    docs/_tutorials/ulysses-alst-sequence-parallelism.md)."""
    ranks = launch_of("deepspeed", plan, NAME).get("sequence_parallel_size")
    if ranks is None:
        return ()
    return (
        f"mpu = UlyssesSPAttentionHF.register_with_transformers(..., sequence_parallel_size={ranks}) before the "
        "model is made, then deepspeed.initialize(..., mpu=mpu); in Megatron-DeepSpeed "
        f"--ds-sequence-parallel-size {ranks}",
        "UlyssesSPDataLoaderAdapter(...) around the data loader, and a loss averaged over the sequence group",
    )


def _in_script(problem: Problem, plan: Plan) -> tuple[str, ...]:
    """Settings of the plan that are not JSON."""
    sequences = plan.micro_batch * plan.num_micro * plan.dp
    what = "every layer" if plan.recompute is Recompute.FULL else "the attention core of every layer"
    recomputes = plan.recompute is not Recompute.NONE
    # Layers of the script (Megatron-DeepSpeed's, GPT-NeoX's), sharded over a part of the pipeline's grid.
    cuts = plan.pp > 1 and plan.tp > 1
    grid = f"topology=PipeModelDataParallelTopology(num_pp={plan.pp}, num_mp={plan.tp}, num_dp={plan.dp})"
    return true_notes(
        {
            f"sequences of {problem.job.seq_len} tokens, {sequences} a step": True,
            f"deepspeed.pipe.PipelineModule(..., {grid if cuts else f'num_stages={plan.pp}'})": plan.pp > 1,
            f"layers that the script shards over the {plan.tp} ranks of the topology's model axis": cuts,
            f"deepspeed.moe.layer.MoE(..., ep_size={plan.ep}) in every layer of experts": plan.ep > 1,
            f"activation checkpointing of {what} (deepspeed.checkpointing.checkpoint)": recomputes,
            f"the environment variable {EXPANDABLE_SEGMENTS}": problem.job.expandable_segments,
        }
    )


def _facts(model: ModelSpec) -> list[str]:
    """The model is the script's: what its shapes do not say."""
    notes = [f"the model {model.name}, {model.source}"]
    if model.rope is not None:
        scaling = model.rope.scaling
        scaled = f", scaled as {scaling.kind} by {scaling.factor:g}" if scaling else ""
        part = f", of {model.rope.share:g} of a head" if model.rope.share < 1.0 else ""
        notes.append(f"rotary base {model.rope.base:.10g}{part}{scaled}")
    if model.norm_epsilon is not None:
        notes.append(f"norm epsilon {model.norm_epsilon!r}")
    parts = {part for run in model.blocks for part in (run.block.mlp, run.block.moe) if part}
    notes.append(f"activation {', '.join(sorted({part.activation for part in parts}))}")
    for moe in {run.block.moe for run in model.blocks if run.block.moe}:
        weights = f"router weights by {moe.score}{', divided by their sum' if moe.normalized else ''}"
        groups = f", from {moe.route_chosen_groups} of {moe.route_groups} groups" if moe.route_groups > 1 else ""
        notes.append(f"{weights}, times {moe.route_scale:g}{groups}")
    return notes
