"""A plan as DeepSpeed's JSON configuration.

Keys: DeepSpeed 0.17.5, runtime/config.py, runtime/zero/config.py (``DeepSpeedZeroConfig``),
runtime/precision_config.py, runtime/tensor_parallel/config.py (``autotp_size``). What DeepSpeed takes in
Python (pipeline stages, activation checkpointing) is returned as notes.
"""

from ops.groups import ranks_and_stride
from ops.recompute.layers import Recompute
from solver.plans.plan_table import Plan, PlanTable
from solver.question import Question
from spec.errors import ExportError
from spec.mixers.attention import attention_of
from workload.settings.launch_error import launch_of, refuse_unless, refuse_unsaid, same_framework

Settings = dict[str, object]
# The keys of a plan that the configuration or its notes say.
SAYS = frozenset(
    {"tp", "pp", "ep", "etp", "zero_stage", "zero_size", "micro_batch", "num_micro", "recompute"}
    | {"optimizer_offload"}
)


def deepspeed_settings(question: Question, plan: Plan) -> tuple[Settings, tuple[str, ...]]:
    """The configuration of ``plan``, and what its training script has to set.

    Raises ExportError for what DeepSpeed cannot run.
    """
    job = question.job
    same_framework("deepspeed", plan)
    launch = launch_of("deepspeed", plan, "DeepSpeed")
    refuse_unsaid(plan, SAYS, "DeepSpeed")
    copies = _copies(plan)
    refuse_unless(
        plan.zero_stage == 0 or plan.zero_size == copies,
        "DeepSpeed",
        f"ZeRO over {plan.zero_size} of {copies} ranks with the same weights",
    )
    share, whole = plan.optimizer_offload, plan.zero_stage >= 3 or plan.optimizer_offload == 1.0
    refuse_unless(
        share == 0.0 or (plan.zero_stage > 0 and whole), "DeepSpeed", f"{share:g} of the optimizer offloaded"
    )
    auto_tp = "tensor_parallel" in launch.settings
    refuse_unless(not auto_tp or plan.zero_stage < 3, "DeepSpeed", "AutoTP beside ZeRO-3")
    if plan.tp > 1:
        for run in question.model.blocks:
            attention_of(run.block.mixer, "DeepSpeed's AutoTP and sequence parallelism")
    refuse_unless(plan.etp in (1, plan.tp), "DeepSpeed", f"experts over tp {plan.etp} beside tp {plan.tp}")
    sequences = plan.micro_batch * plan.num_micro * plan.dp
    settings: Settings = {
        "train_batch_size": sequences,
        "train_micro_batch_size_per_gpu": plan.micro_batch,
        "gradient_accumulation_steps": plan.num_micro,
        **_precision(job.precision.compute),
        "zero_optimization": _zero(question, plan),
    }
    return settings | launch.settings, (*launch.in_script, *_notes(plan))


def _copies(plan: Plan) -> int:
    """Ranks that hold the same dense weights, over all of which DeepSpeed shards."""
    ranks, _ = ranks_and_stride(plan.sharding.traits.copies.dense, PlanTable.of(plan).layout)
    return int(ranks[0])


def _precision(compute: str) -> Settings:
    sections = {"bf16": "bf16", "fp16": "fp16"}
    if compute not in sections:
        raise ExportError(f"DeepSpeed's JSON has no section for {compute} products: bf16 or fp16")
    return {sections[compute]: {"enabled": True}}


def _zero(question: Question, plan: Plan) -> Settings:
    preset = question.job.preset
    zero: Settings = {
        "stage": plan.zero_stage,
        "contiguous_gradients": True,
        "overlap_comm": preset.data_parallel.overlap_grad_reduce or plan.zero_stage == 3,
        "reduce_scatter": True,
    }
    share = plan.optimizer_offload
    if share:
        # zero/offload_config.py, DeepSpeedZeroOffloadOptimizerConfig; ratio is read at stage 3
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
        if share < 1.0:
            zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True, "ratio": share}
    if preset.data_parallel.bucket_elements:
        zero["reduce_bucket_size"] = preset.data_parallel.bucket_elements
    return zero


def _notes(plan: Plan) -> list[str]:
    notes = []
    if plan.pp > 1:
        notes.append(f"deepspeed.pipe.PipelineModule(..., num_stages={plan.pp})")
    if plan.ep > 1:
        notes.append(f"deepspeed.moe.layer.MoE(..., ep_size={plan.ep}) in every layer of experts")
    if plan.recompute is not Recompute.NONE:
        whole = plan.recompute is Recompute.FULL
        what = "every layer" if whole else "the attention core of every layer"
        notes.append(f"activation checkpointing of {what} (deepspeed.checkpointing.checkpoint)")
    return notes
