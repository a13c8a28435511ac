"""The work of a plan that was typed: every stage's rows, made in memory."""

import hashlib
import re
from dataclasses import replace
from pathlib import Path

from runner.groups.degrees import Degrees
from runner.groups.typed_plan import PLAN, check_dp, plan_and_dp
from runner.replay.stage_files import Work, work_of
from solver.opening import open_question
from solver.plans.plan_table import Plan
from solver.question import Question
from solver.request import Request
from solver.typed_plan import broken_rules, check_order, plan_of
from spec.errors import ConfigError
from workload.aicb.csv_workload import Workload
from workload.aicb.plan_rows import GeneralOptions, general_items
from workload.stage_work import stage_works


def planned_work(request: Request, typed: str, world: int) -> Work:
    """The plan ``typed`` (tp=2,dp=2,...) of a request on ``world`` ranks, one iteration a stage, with the
    times that the request's profile or cluster gives its computation.

    Raises ConfigError for a plan that does not divide the ranks or that the framework cannot run; otherwise as
    open_question.
    """
    question = open_question(replace(request, world_size=world)).question
    written, dp = plan_and_dp(typed)
    plan = plan_of(written, question, PLAN)
    check_dp(plan, dp)
    check_order(plan, question, PLAN)
    broken = broken_rules(question, plan)
    if broken:
        raise ConfigError(where=PLAN, key="plan", value=typed, allowed="; ".join(broken))
    return work_of_plan(question, plan)


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
    made = "\n".join(" ".join(item.cells()) for workload in workloads for item in workload.stage_work)
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
