"""The work of a plan that was typed: every stage's rows, made in memory."""

import hashlib
import re
from dataclasses import replace
from pathlib import Path

from runner.groups.degrees import Degrees
from runner.replay.stage_files import Work, work_of
from solver.opening import open_question
from solver.plans.plan_table import Plan
from solver.question import Question
from solver.request import Request
from solver.typed_plan import broken_rules, check_order, parse_plan, plan_of
from spec.errors import ConfigError
from spec.settings.plan import WrittenPlan
from workload.aicb.general.csv_workload import Workload
from workload.aicb.general.megatron import GeneralOptions, general_items
from workload.build import stage_works

WHERE = "--plan"


def planned_work(request: Request, typed: str, world: int) -> Work:
    """The plan ``typed`` (tp=2,dp=2,...) of a request on ``world`` ranks, one iteration a stage, with the times that the
    request's profile or cluster gives its computation.

    Raises ConfigError for a plan that does not divide the ranks or that the framework cannot run; otherwise as
    open_question.
    """
    question = open_question(replace(request, world_size=world)).question
    keys, dp = without_dp(typed)
    plan = plan_of(parse_plan(keys) if keys else WrittenPlan(), question, WHERE)
    if dp not in ("", str(plan.dp)):
        raise ConfigError(where=WHERE, key="dp", value=dp, allowed=f"{plan.dp}, the ranks that are left")
    check_order(plan, question, WHERE)
    broken = broken_rules(question, plan)
    if broken:
        raise ConfigError(where=WHERE, key="plan", value=typed, allowed="; ".join(broken))
    return work_of_plan(question, plan)


def without_dp(typed: str) -> tuple[str, str]:
    """A plan as solver.typed_plan takes it, and the value of the key dp, which follows from the others ("": not said)."""
    parts = [part.strip() for part in typed.split(",")]
    said = [part.removeprefix("dp=") for part in parts if part.startswith("dp=")]
    return ",".join(part for part in parts if not part.startswith("dp=")), said[0] if said else ""


def work_of_plan(question: Question, plan: Plan) -> Work:
    """The rows of each stage's first rank."""
    options = GeneralOptions(epochs=1, computation=True, timed=True, everything=True)
    works = [
        replace(work, position=position, count=1)
        for work in stage_works(question, plan)
        for position in range(work.position, work.position + work.count)
    ]
    workloads = [Workload(items=list(general_items(plan, work, options))) for work in works]
    name = re.sub(r"[^\w.=+-]+", "_", f"{question.model.name}-{plan.label()}")
    degrees = Degrees(tp=plan.tp, cp=plan.cp, ep=plan.ep, etp=plan.etp, dp=plan.dp, pp=plan.pp, wp=plan.wp)
    made = "\n".join(" ".join(item.cells()) for workload in workloads for item in workload.items)
    return work_of(
        workloads,
        [Path(f"{name}-stage{work.position}") for work in works],
        degrees,
        arguments={
            "model": question.model.name,
            "plan": plan.label(),
            "world_size": plan.world_size,
            "tensor_model_parallel_size": plan.tp,
            "context_parallel_size": plan.cp,
            "expert_model_parallel_size": plan.ep,
            "expert_tensor_parallel_size": plan.etp,
            "pipeline_model_parallel": plan.pp,
        },
        name=name,
        digest=hashlib.sha256(made.encode()).hexdigest(),
    )
