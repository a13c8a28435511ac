"""Predictions of cases, requested as by a user: with a config file, a framework, job settings and a plan."""

import tempfile
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from benchmarks.gpu_steps.case import StepCase
from profdb.cases import Case
from profdb.store.case_file import WeighedCase
from solver.analysis.look_ups import look_ups
from solver.plans.plan_table import Plan, PlanTable
from solver.problem.loading import load_problem
from solver.problem.price import price_plan
from solver.problem.problem import Problem
from solver.problem.request import Request
from solver.problem.requested_plan import parse_plan, plan_of
from solver.problem.result import Answer

MODEL = """source = "Llama-like, plain PyTorch modules (benchmarks/gpu_steps/training.py)"
[model]
hidden = {hidden}
vocab = {vocab}
[[model.blocks]]
count = {layers}
attention = {{ num_heads = {heads}, num_kv_heads = {kv_heads} }}
mlp = {{ ffn_hidden = {ffn}, gated = true }}
[data]
seq_len = {seq_len}
"""

# Unsharded bf16 weights with fp32 master weights, gradients summed in one flat tensor after the last backward.
PLAIN: dict[str, object] = {
    "data_parallel.shards_master": False,
    "data_parallel.fsdp_version": 0,
    "data_parallel.overlap_grad_reduce": False,
    "data_parallel.flattened_buckets": True,
    "layers.keeps_joined_qkv": True,
}
# Eager kernels, except that torch's RMSNorm is a single kernel.
EAGER: dict[str, object] = {"layers.fused_activation": False, "unfused": frozenset({"rotary"})}
SEVERAL_MICRO_BATCHES: dict[str, object] = {"data_parallel.accumulation": "accumulate"}


def job_settings_of(case: StepCase) -> dict[str, object]:
    """The job settings by which the framework of a case differs from its preset."""
    settings = PLAIN | ({} if case.compiled else EAGER)
    return settings | (SEVERAL_MICRO_BATCHES if case.num_micro > 1 else {})


def problem_of(case: StepCase, ranks: int, request: Request) -> tuple[Problem, Plan]:
    """The problem and the plan of a case on ``ranks`` data-parallel ranks; ``request`` names the source of times.

    Raises ConfigError or ProfileError as the solver does.
    """
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "decoder.toml"
        config.write_text(MODEL.format(**{name: getattr(case.shape, name) for name in case.shape.__slots__}))
        problem = load_problem(
            replace(
                request,
                config=config,
                world_size=ranks,
                global_batch_tokens=ranks * case.rank_tokens,
                framework="fsdp-compiled" if case.compiled else "fsdp",
                job=job_settings_of(case),
            )
        ).problem
    recompute = "full" if case.recompute else "none"
    text = f"strategy=mtp,tp=1,pp=1,zero_stage=0,micro_batch={case.micro_batch},recompute={recompute}"
    return problem, plan_of(parse_plan(text), problem, "benchmarks/gpu_step.py")


def price_case(case: StepCase, ranks: int, request: Request) -> Answer:
    """The prediction of a case. Raises MissingCurveError, and as ``problem_of``."""
    problem, plan = problem_of(case, ranks, request)
    return price_plan(problem, PlanTable.of(plan))[0]


def cases_to_measure(cases: Iterable[StepCase], ranks: int, request: Request) -> list[WeighedCase]:
    """The benchmark cases that the predictions of all cases depend on, heaviest first."""
    heaviest: dict[Case, WeighedCase] = {}
    for case in cases:
        problem, plan = problem_of(case, ranks, request)
        for one in look_ups(problem, [plan]):
            heavier = heaviest.get(one.case)
            heaviest[one.case] = one if heavier is None or one.seconds > heavier.seconds else heavier
    return sorted(heaviest.values(), key=lambda one: -one.seconds)
