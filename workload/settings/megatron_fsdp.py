"""A plan as Megatron-LM's command line with Megatron-FSDP, which shards optimizer states, gradients and parameters.

Flags and refusals: Megatron-LM core 0.20 (d98e8a6), megatron/training/arguments.py (``validate_args``,
use_megatron_fsdp), docs/user-guide/features/megatron_fsdp.md, examples/megatron_fsdp/train_llama3_8b_fsdp_h100_fp8.sh and
core/distributed/fsdp/mcore_fsdp_adapter.py (overlap_moe_expert_parallel_comm).
"""

from dataclasses import replace

from solver.plans.plan_table import Plan
from solver.problem.problem import Problem
from spec.job import JobSpec
from spec.model import ModelSpec
from workload.settings.launch_file import LaunchText, launch_text, requirement, same_framework
from workload.settings.megatron import USAGE, check_megatron, flag_lines, megatron_flags, omissions
from workload.settings.megatron_flags import Flags

NAME = "Megatron-FSDP"
require = requirement(NAME)
STRATEGIES = ("no_shard", "optim", "optim_grads", "optim_grads_params")
"""--data-parallel-sharding-strategy, by ZeRO stage."""
CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS"
# Its units are layers, and gathered MXFP8 parameters have a buffer of their own.
NOT_ITS_FLAGS = ("--ddp-bucket-size", "--reuse-grad-buf-for-mxfp8-param-ag")


def megatron_fsdp_settings(problem: Problem, plan: Plan) -> LaunchText:
    """One flag a line. Raises ExportError for what Megatron-FSDP cannot run."""
    flags = megatron_fsdp_flags(problem, plan)
    notes = [note for note in omissions(problem, plan) if CONNECTIONS not in note]
    usage = f"Megatron-LM core 0.19 or later: torchrun ... pretrain_gpt.py {USAGE}"
    return launch_text(plan, usage, [*notes, f"leave {CONNECTIONS} unset"], flag_lines(flags))


def check_megatron_fsdp(model: ModelSpec, job: JobSpec) -> None:
    """Raise ExportError for a model or a job that no plan makes Megatron-FSDP run."""
    check_megatron(model, job)
    require(job.optimizer == "adamw", "another optimizer than Adam")
    overlapped = job.overlap_expert_a2a and not job.cuda_graphs <= {"full_iteration"}
    require(not overlapped, "CUDA graphs of parts of layers beside overlapped experts")


def megatron_fsdp_flags(problem: Problem, plan: Plan) -> Flags:
    """Megatron-LM's flags, and those of the shards."""
    same_framework("megatron-fsdp", plan)
    check_megatron_fsdp(problem.model, problem.job)
    buckets = problem.job.preset.changed({"data_parallel.bucket_elements": 1})
    as_ddp = replace(problem, job=replace(problem.job, preset=buckets))
    # The plan as Megatron-LM itself runs it with shards of the optimizer's states.
    flags = megatron_flags(as_ddp, replace(plan, preset="megatron", zero_stage=min(plan.zero_stage, 1)))
    flags = {flag: value for flag, value in flags.items() if flag not in NOT_ITS_FLAGS}
    fsdp: Flags = {
        "--use-megatron-fsdp": None,
        "--data-parallel-sharding-strategy": STRATEGIES[plan.zero_stage],
        "--ckpt-format": "fsdp_dtensor",
    }
    return flags | fsdp | ({"--no-gradient-accumulation-fusion": None} if plan.zero_stage > 1 else {})
