"""Questions whose batch is a plan's, for tests of exporters."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from solver.plans.plan_table import Plan
from solver.problem.problem import Problem
from spec.frameworks import framework_preset
from spec.job import JobSpec, Precision
from spec.model import ModelSpec
from tests.solver.questions import question, small_model


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
