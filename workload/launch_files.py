"""A plan as the launch settings of its framework, and as a timeline: one exporter a file."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from solver.estimate import estimate_memory
from solver.memory.device import needs_words, usable_bytes
from solver.plans.plan_table import Plan, PlanTable
from solver.problem.problem import Problem
from solver.problem.requested_plan import broken_rules
from spec.errors import ExportError
from spec.files import atomic_file
from spec.job import JobSpec
from spec.model import ModelSpec
from workload.settings.accelerate import accelerate_settings, check_accelerate
from workload.settings.bridge import bridge_settings, check_bridge
from workload.settings.deepspeed import check_deepspeed, deepspeed_settings
from workload.settings.frameworks import WRITTEN, check_framework
from workload.settings.internevo import check_internevo, internevo_settings
from workload.settings.launch_file import LaunchText, with_warning
from workload.settings.megatron import check_megatron, megatron_settings
from workload.settings.megatron_fsdp import check_megatron_fsdp, megatron_fsdp_settings
from workload.settings.step_trace import trace_text
from workload.settings.swift import check_swift, swift_settings
from workload.settings.torchtitan import check_torchtitan, torchtitan_settings
from workload.settings.zero_bubble import check_zero_bubble, zero_bubble_settings

Composer = Callable[[Problem, Plan], LaunchText]
"""Raises ExportError for a plan that the framework does not run."""
Check = Callable[[ModelSpec, JobSpec], None]
"""Raises ExportError for a model or a job that no plan makes the framework run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exporter:
    """``compose`` and ``check`` by the framework presets whose plans it writes; ``of_any`` writes everyone's."""

    compose: Mapping[str, Composer] = field(default_factory=dict)
    check: Mapping[str, Check] = field(default_factory=dict)
    of_any: Composer | None = None
    adapters: bool = False
    """Whether its settings say adapters beside frozen weights."""


EXPORTERS: dict[str, Exporter] = {
    "megatron": Exporter(
        compose={
            "megatron": megatron_settings,
            "megatron-fsdp": megatron_fsdp_settings,
            "zero-bubble": zero_bubble_settings,
        },
        check={"megatron": check_megatron, "megatron-fsdp": check_megatron_fsdp, "zero-bubble": check_zero_bubble},
    ),
    "deepspeed": Exporter(compose={"deepspeed": deepspeed_settings}, check={"deepspeed": check_deepspeed}),
    "internevo": Exporter(compose={"internevo": internevo_settings}, check={"internevo": check_internevo}),
    "bridge": Exporter(
        compose={"megatron-bridge": bridge_settings}, check={"megatron-bridge": check_bridge}, adapters=True
    ),
    "swift": Exporter(compose={"megatron": swift_settings}, check={"megatron": check_swift}, adapters=True),
    "accelerate": Exporter(
        compose=dict.fromkeys(WRITTEN["accelerate"].frameworks, accelerate_settings),
        check=dict.fromkeys(WRITTEN["accelerate"].frameworks, check_accelerate),
    ),
    "torchtitan": Exporter(
        compose=dict.fromkeys(WRITTEN["torchtitan"].frameworks, torchtitan_settings),
        check=dict.fromkeys(WRITTEN["torchtitan"].frameworks, check_torchtitan),
    ),
    "trace": Exporter(of_any=trace_text),
}
"""By the name of their option, --export_NAME."""


def check_exports(names: Iterable[str], model: ModelSpec, job: JobSpec) -> None:
    """Raise ExportError for an exporter that has no words for this model or job, whatever the plan."""
    for name in names:
        has_adapters = EXPORTERS[name].adapters or EXPORTERS[name].of_any is not None
        if job.adapter_rank and not has_adapters:
            raise ExportError(
                f"--export_{name}: adapters (adapter_rank) are set in a training script, not by its flags"
            )
        if job.images and EXPORTERS[name].of_any is None:
            raise ExportError(f"--export_{name}: images (images) are set in a training script, not by its flags")
        if job.preset.name in EXPORTERS[name].check:
            EXPORTERS[name].check[job.preset.name](model, job)


def write_launch_files(
    problem: Problem, plan: Plan, files: Mapping[str, Path], *, force: bool = False
) -> tuple[list[Path], list[str]]:
    """Write ``files``, exporter to path, all of them or none: the paths, and the notes of each. With ``force`` a plan
    that does not fit gets a warning in the first line of files that have comments.

    Raises ExportError for a plan that its framework does not run or, without ``force``, that does not fit, or a file
    that cannot be written.
    """
    check_framework(files, plan.preset)
    check_exports(files, problem.model, problem.job)
    texts = {name: _composed(name, problem, plan) for name in files}
    needed = estimate_memory(problem.model, problem.job, PlanTable.of(plan), problem.cluster).needed_bytes[0]
    usable = usable_bytes(problem.cluster)
    # A trace launches nothing.
    launched = [name for name in files if EXPORTERS[name].of_any is None] if needed > usable else []
    lacks = needs_words(needed, usable) if launched else ""
    for name in launched:
        if not force:
            raise ExportError(f"--export_{name}: {plan.label()} {lacks}: --force writes it with a warning")
        texts[name] = with_warning(texts[name], f"does not fit: {lacks}")
    with ExitStack() as stack:
        handles = {name: stack.enter_context(atomic_file(path)) for name, path in files.items()}
        for name, text in texts.items():
            handles[name].write(text.text)
    return list(files.values()), [f"{files[name]}: {note}" for name, text in texts.items() for note in text.notes]


def _composed(name: str, problem: Problem, plan: Plan) -> LaunchText:
    of_any = EXPORTERS[name].of_any
    if of_any is not None:
        return of_any(problem, plan)
    for reason in broken_rules(problem, plan):
        raise ExportError(f"--export_{name}: {plan.preset} does not run this plan: {reason}")
    return EXPORTERS[name].compose[plan.preset](problem, plan)
