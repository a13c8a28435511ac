"""Questions whose batch is a plan's, for tests of exporters."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ops.recompute import Recompute
from solver.plans.plan_table import Plan
from solver.problem.problem import Problem
from spec.frameworks import framework_preset
from spec.job import JobSpec, Precision
from spec.model import ModelSpec
from tests.solver.questions import question, small_model
from tests.workload.random_plans import Case


def asked(
    plan: Plan,
    *,
    model: ModelSpec | None = None,
    preset: Mapping[str, Any] | None = None,
    job: Mapping[str, Any] | None = None,
) -> Problem:
    """The plan's world and batch under its own preset; ``preset`` changes choices of the preset, ``job``
    fields of the job, of which those of Precision by their names."""
    base = question(
        model=model or small_model(layers=8),
        world_size=plan.world_size,
        sequences=plan.dp * plan.micro_batch * plan.num_micro,
        preset=framework_preset(plan.preset).changed(preset or {}),
    )
    changes = dict(job or {})
    formats = {key: changes.pop(key) for key in list(changes) if key in Precision.__dataclass_fields__}
    precision = replace(base.job.precision, **formats)
    return replace(base, job=replace(base.job, precision=precision, **changes))


def known(plan: Plan, **changes: Any) -> tuple[ModelSpec, JobSpec]:
    """What stands before there is a plan."""
    question = asked(plan, **changes)
    return question.model, question.job


def flags_in(text: str) -> dict[str, str | None]:
    """The flags of a command line, None for switches."""
    parts = (part.strip().partition(" ") for part in text.split("--")[1:])
    return {f"--{name}": value or None for name, _, value in parts}


def under(case: Case, framework: str, **formats: str) -> tuple[Problem, Plan]:
    """The case under a framework's preset; gradients are reduced as they are summed, unless ``formats`` say otherwise."""
    own = case.problem.job.precision
    precision = replace(own, **{"reduce": own.gradient} | formats)
    job = replace(case.problem.job, precision=precision, preset=framework_preset(framework))
    return replace(case.problem, job=job), replace(case.plan, preset=framework)


def says(settings: Mapping[str, Any], plan: Plan) -> bool:
    """Whether settings by Megatron-Core's names are those of the plan."""

    def degree(*names: str) -> int:
        return next((int(settings[name]) for name in names if settings.get(name)), 1)

    def on(name: str) -> bool:
        return str(settings.get(name)).lower() == "true"

    sharded, micro_batch = on("use_distributed_optimizer"), degree("micro_batch_size")
    read = replace(
        plan,
        strategy="fsp" if on("sequence_parallel") else "mtp",
        recompute=Recompute(settings["recompute_granularity"] or "none"),
        tp=degree("tensor_model_parallel_size"),
        cp=degree("context_parallel_size"),
        pp=degree("pipeline_model_parallel_size"),
        vpp=degree("virtual_pipeline_model_parallel_size", "num_virtual_stages_per_pipeline_rank"),
        ep=degree("expert_model_parallel_size"),
        etp=degree("expert_tensor_parallel_size"),
        zero_stage=int(sharded),
        zero_size=plan.dp * plan.cp // degree("num_distributed_optimizer_instances") if sharded else 1,
        micro_batch=micro_batch,
        num_micro=degree("global_batch_size") // (micro_batch * plan.dp),
    )
    # with one tensor-parallel rank nothing is cut, whichever way it would be
    return read == (plan if plan.tp > 1 else replace(plan, strategy="mtp"))
