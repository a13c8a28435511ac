"""A plan as the command line of the zero-bubble fork of Megatron-LM (arXiv 2401.10241).

Flags and refusals: sail-sg/zero-bubble-pipeline-parallelism, commit 39f2c18 (2025-05-07, Megatron core 0.9),
megatron/core/zbpp_utils.py (``validate_arguments``, ``WeightGradStore.is_supported``) and
megatron/training/arguments.py.
"""

from dataclasses import replace

from solver.plans.plan_table import Plan
from solver.plans.schedules import Schedule
from solver.problem.problem import Problem
from spec.job import JobSpec
from spec.model import ModelSpec
from workload.settings.launch_file import LaunchText, launch_text, requirement, same_framework
from workload.settings.megatron import check_megatron, fact_flags, flag_lines, megatron_flags, omissions
from workload.settings.megatron_flags import RELATIVES, Flags, job_flags, model_flags

NAME = "The zero-bubble fork"
require = requirement(NAME)
USAGE = "torchrun ... pretrain_gpt.py $(grep -v '^#' FILE) of sail-sg/zero-bubble-pipeline-parallelism 39f2c18"
# Micro-batches that a stage may hold before its weight gradients, in stages (README, zb1p and zb2p)
PENDING = {Schedule.ZB_H1: 1, Schedule.ZB_1P: 1, Schedule.ZB_H2: 2, Schedule.ZB_2P: 2}
# Flags of core 0.14 with the values that stand for the only way there, and those that its core 0.9 does not have.
WITHOUT, LACKING = (RELATIVES["zero_bubble"][key] for key in ("without", "lacking"))
EXPERT_WIDTH = "--moe-ffn-hidden-size"


def zero_bubble_settings(problem: Problem, plan: Plan) -> LaunchText:
    """One flag a line. Raises ExportError for what the fork cannot run."""
    flags = zero_bubble_flags(problem, plan)
    notes = list(omissions(problem, plan))
    if any(run.block.moe for run in problem.model.blocks):
        notes.append("left out: tokens moved to their experts by a fused kernel")
    if plan.schedule is not Schedule.ONE_F_ONE_B:
        notes.append("left out: the order of its passes, which the fork searches itself within that memory")
        if "--enable-optimizer-post-validation" not in flags:
            notes.append("left out: stages that update before the last is ready, which it does in fp16 alone")
    usage = f"{USAGE} and your data, tokenizer, learning rate, checkpoints"
    return launch_text(plan, usage, notes, flag_lines(flags))


def check_zero_bubble(model: ModelSpec, job: JobSpec) -> None:
    """Raise ExportError for a model or a job that no plan makes the fork run."""
    check_megatron(model, job)
    for flag in model_flags(model, job) | job_flags(model, job) | fact_flags(model):
        # Widths of experts alone are written as those of dense layers.
        require(flag not in LACKING or flag == EXPERT_WIDTH, f"what {flag} says, which its core 0.9 lacks")
    require(not model.tied_embeddings, "an embedding tied to the head")
    require(job.optimizer == "adamw", "another optimizer than Adam")


def zero_bubble_flags(problem: Problem, plan: Plan) -> Flags:
    """Megatron-LM's flags in the words of core 0.9, and the schedule's."""
    same_framework("zero-bubble", plan)
    check_zero_bubble(problem.model, problem.job)
    flags: Flags = {}
    # the plan as Megatron-LM itself runs it
    megatron = megatron_flags(problem, replace(plan, preset="megatron", schedule=Schedule.ONE_F_ONE_B))
    megatron.pop("--moe-permute-fusion", None)  # its core 0.9 has no such kernel
    if "--ffn-hidden-size" not in megatron:
        megatron["--ffn-hidden-size"] = megatron.pop(EXPERT_WIDTH, None)
    for flag, value in megatron.items():
        require(flag not in LACKING, f"what {flag} says, which its core 0.9 lacks")
        allowed = WITHOUT.get(flag)
        if allowed is None:
            flags[flag] = value
        else:
            require(value in allowed, f"{flag} {value}, which its core 0.9 lacks")
    require(flags.pop("--expert-tensor-parallel-size", plan.tp) == plan.tp, "experts over another tp")
    if flags.pop("--num-virtual-stages-per-pipeline-rank", None) is not None:
        flags["--num-layers-per-virtual-pipeline-stage"] = problem.model.num_layers // (plan.pp * plan.vpp)
    if problem.job.flash_attention:
        flags["--use-flash-attn"] = None
    return flags | _schedule(problem, plan)


def _schedule(problem: Problem, plan: Plan) -> Flags:
    """Splitting a backward wants Megatron's own layers, and gradients that are not reduced beside it."""
    if plan.schedule is Schedule.ONE_F_ONE_B:
        return {"--no-pre-communication-optimization": None}
    reduces = plan.dp * plan.cp > 1 and problem.job.preset.data_parallel.overlap_grad_reduce
    require(not reduces, "zero bubbles beside overlap-grad-reduce")
    require(plan.pp > 1 and plan.vpp == 1, f"zero bubbles on {plan.pp} stages of {plan.vpp} chunks")
    flags: Flags = {
        "--transformer-impl": "local",
        "--enable-zero-bubble": None,
        "--zero-bubble-max-pending-backward": PENDING[plan.schedule] * plan.pp,
        "--no-pre-communication-optimization": None,
    }
    if problem.job.precision.compute == "fp16":
        flags["--enable-optimizer-post-validation"] = None
    return flags
