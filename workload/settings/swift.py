"""A plan as the arguments of MS-Swift's Megatron: ``megatron pt --model NAME $(grep -v '^#' FILE)``, or
``megatron sft``.

Names, defaults and refusals: ms-swift 3602360 (August 2026), swift/megatron/arguments/megatron_args.py
(``MegatronArguments``; ``_init_vpp_size``; bf16 sums and reduces gradients in fp32),
swift/megatron/arguments/sft_args.py. The model is the Hub's; data, learning rate and checkpoints are the
user's.
"""

from solver.plans.plan_table import Plan
from solver.problem.problem import Problem
from spec.job import JobSpec
from spec.model import ModelSpec
from workload.settings.launch_file import LaunchText, launch_text, requirement, same_framework, setting_omissions
from workload.settings.megatron import check_megatron, flag_lines, launch_flags_of_hub_models
from workload.settings.megatron_flags import (
    RELATIVES,
    Flags,
    adapter_obstacles,
    adapter_targets,
    job_keys,
    job_omissions,
)

NAME = "MS-Swift"
require = requirement(NAME)
USAGE = "ms-swift of August 2026 (3602360): NPROC_PER_NODE=... megatron {} --model NAME $(grep -v '^#' FILE) and your dataset"
SAME, OTHERWISE, UNSAID, DEFAULTS = (RELATIVES["swift"][key] for key in ("same", "otherwise", "unsaid", "defaults"))
OF_ADAPTERS = frozenset({"adapter_dropout", "adapter_dtype"})


def swift_settings(problem: Problem, plan: Plan) -> LaunchText:
    """One argument a line. Raises ExportError for what MS-Swift cannot run."""
    flags, left_out = swift_arguments(problem, plan)
    notes = (
        "set --model, its name on the Hub or its folder",
        *left_out,
        *job_omissions(problem, plan),
        *setting_omissions(problem, job_keys(problem.job) | OF_ADAPTERS),
    )
    return launch_text(plan, USAGE.format("pt" if problem.job.task == "pretrain" else "sft"), notes, flag_lines(flags))


def check_swift(model: ModelSpec, job: JobSpec) -> None:
    """Raise ExportError for a model or a job that no plan makes MS-Swift run."""
    check_megatron(model, job)
    precision = job.precision
    wide = precision.compute != "bf16" or precision.gradient == "fp32"
    require(wide, f"gradients of bf16 products in {precision.gradient}")
    require(job.moe_dispatcher != "hybridep", "experts reached by hybridep")
    for obstacle in adapter_obstacles(model, job):
        require(False, obstacle)


def swift_arguments(problem: Problem, plan: Plan) -> tuple[Flags, tuple[str, ...]]:
    """Arguments and their values, and what is left out. Raises ExportError for what MS-Swift cannot run."""
    same_framework("megatron", plan)
    check_swift(problem.model, problem.job)
    requested = launch_flags_of_hub_models(problem, plan)
    flags: Flags = DEFAULTS | _adapters(problem.job)
    if any(run.block.moe for run in problem.model.blocks):
        flags["--moe_router_dtype"] = "none"  # else fp32
    notes = []
    for name, value in requested.items():
        if name in UNSAID:
            notes += [f"left out: {UNSAID[name].format(value)}"] if UNSAID[name] else []
            continue
        require(name in SAME or name in OTHERWISE, f"what Megatron-LM's {name} says")
        if name in SAME:
            flags[name[:2] + name[2:].replace("-", "_")] = "true" if value is None else value
        else:
            argument, *off = OTHERWISE[name]
            flags[argument] = off[0] if off else value
    return flags, tuple(notes)


def _adapters(job: JobSpec) -> Flags:
    """LoRA: by what it is beside, and in which format its own weights are."""
    if not job.adapter_rank:
        return {}
    names = " ".join(adapter_targets(job))
    flags: Flags = {"--tuner_type": "lora", "--lora_rank": job.adapter_rank, "--target_modules": names}
    if not job.adapter_dropout:
        flags["--lora_dropout"] = "0.0"
    return flags | ({"--lora_dtype": "float32"} if job.adapter_dtype == "fp32" else {})
