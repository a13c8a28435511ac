"""What the solver says of a case: asked as a user asks, with a config file, a framework, job settings and a plan."""

import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.gpu_steps.case import StepCase
from profdb.cases import Case
from profdb.store.case_file import WeighedCase
from solver.analysis.look_ups import look_ups
from solver.plans.plan_table import Plan, PlanTable
from solver.problem.loading import load_problem
from solver.problem.problem import Problem
from solver.problem.request import Request
from solver.problem.typed_plan import parse_plan, plan_of
from solver.search import price_plan

MODEL = """source = "Llama-like, plain PyTorch modules (benchmarks/gpu_steps/decoder.py)"
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

# Whole bf16 weights with an fp32 copy of their own, gradients summed in one flat tensor after the last backward.
PLAIN: dict[str, object] = {
    "data_parallel.shards_master": False,
    "data_parallel.fsdp_version": 0,
    "data_parallel.overlap_grad_reduce": False,
    "data_parallel.flattened_buckets": True,
    "layers.keeps_joined_qkv": True,
}
# One operation after another; torch's RMSNorm is one kernel.
EAGER: dict[str, object] = {"layers.fused_activation": False, "unfused": frozenset({"rotary"})}
SEVERAL_MICRO_BATCHES: dict[str, object] = {"data_parallel.accumulation": "accumulate"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """Where the times come from: a ``profile``, or with ``cluster`` that sheet's, ``missing`` ones modelled
    if it says so.
    """

    root: Path
    profile: Path | None = None
    cluster: str | None = None
    missing: str = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """Seconds of a step, its parts, and bytes."""

    step_s: float
    parts_s: dict[str, float]
    allocated_bytes: float
    reserved_bytes: float


def job_settings_of(case: StepCase) -> dict[str, object]:
    """How the framework of a case differs from its preset."""
    said = PLAIN | ({} if case.compiled else EAGER)
    return said | (SEVERAL_MICRO_BATCHES if case.num_micro > 1 else {})


def asked(case: StepCase, ranks: int, asking: Asking) -> tuple[Problem, Plan]:
    """A case on ``ranks`` data-parallel copies as a question and a plan.

    Raises ConfigError or ProfileError as the solver does.
    """
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "decoder.toml"
        config.write_text(MODEL.format(**{name: getattr(case.shape, name) for name in case.shape.__slots__}))
        inputs = load_problem(
            Request(
                root=asking.root,
                profile=asking.profile,
                cluster=asking.cluster,
                missing=asking.missing,
                config=config,
                world_size=ranks,
                global_batch_tokens=ranks * case.rank_tokens,
                framework="fsdp-compiled" if case.compiled else "fsdp",
                job=job_settings_of(case),
            )
        )
    recompute = "full" if case.recompute else "none"
    text = f"strategy=mtp,tp=1,pp=1,zero_stage=0,micro_batch={case.micro_batch},recompute={recompute}"
    return inputs.problem, plan_of(parse_plan(text), inputs.problem, "benchmarks/gpu_step.py")


def predicted(case: StepCase, ranks: int, asking: Asking) -> Predicted:
    """The price of a case; raises MissingCurveError, and what ``asked`` does."""
    question, plan = asked(case, ranks, asking)
    answer = price_plan(question, PlanTable.of(plan))[0]
    return Predicted(
        step_s=answer.step_s,
        parts_s=answer.parts_s,
        allocated_bytes=answer.allocated_bytes,
        reserved_bytes=answer.reserved_bytes,
    )


def cases_to_measure(cases: Iterable[StepCase], ranks: int, asking: Asking) -> list[WeighedCase]:
    """What the prices of all cases hang on, heaviest first."""
    heaviest: dict[Case, WeighedCase] = {}
    for case in cases:
        question, plan = asked(case, ranks, asking)
        for one in look_ups(question, [plan]):
            known = heaviest.get(one.case)
            heaviest[one.case] = one if known is None or one.seconds > known.seconds else known
    return sorted(heaviest.values(), key=lambda one: -one.seconds)
