"""One case, predicted as a user requests it (a config file, a framework, job settings and a plan), and measured in a process
of its own within a time limit."""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

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
from spec.errors import UserError

ONE_ROW = Path(__file__).resolve().parent / "one_row.py"
LONGEST_REASON = 160
GIB = 2**30
KEEPING_FREED_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "-1"}
"""glibc returns freed memory to the system, whose pages are cleared again at the next write (mallopt(3)): a tenth of a
small step. The predicted step has a caching allocator like a GPU's, which keeps freed memory."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """A case with its measurement and prediction. ``status`` is ok, oom, failed, timeout or left out; ``measurement`` is the
    output of its process; without a ``prediction`` the reason is in ``unpriced``."""

    case: StepCase
    status: str
    reason: str = ""
    measurement: dict[str, Any]
    prediction: Answer | None
    unpriced: str = ""

    @property
    def step_s(self) -> float | None:
        """Median seconds of a step: the sum of its parts' medians."""
        trials = self.measurement.get("trials")
        return sum(statistics.median(times) for times in trials.values()) if trials else None

    def as_dict(self) -> dict[str, Any]:
        """The row of the JSON file."""
        names = ("step_s", "parts_s", "allocated_bytes", "reserved_bytes")
        prediction = self.prediction and {name: getattr(self.prediction, name) for name in names}
        return {
            "case": json.loads(self.case.as_text()),
            "status": self.status,
            "reason": self.reason,
            "step_s": self.step_s,
            "measured": self.measurement,
            "predicted": prediction,
            "not_predicted": self.unpriced,
        }

    def as_line(self) -> str:
        """The row of the table: measured, predicted and ratio of time, allocated and reserved memory."""
        prediction, result = self.prediction, self.measurement
        if self.status != "ok":
            return f"{self.case.name:26} {self.status}: {self.reason}".rstrip(": ")
        bytes_of = ("allocated_bytes", "reserved_bytes")
        pairs = [(self.step_s, prediction.step_s if prediction else None, 1e3)]
        pairs += [(result.get(name), getattr(prediction, name) if prediction else None, 1 / GIB) for name in bytes_of]
        line = f"{self.case.name:26} " + "   ".join(_compared(*pair) for pair in pairs)
        return line if prediction else f"{line}   {self.unpriced}"


def _compared(measured: float | None, prediction: float | None, unit: float) -> str:
    words = ["-" if one is None else f"{one * unit:.1f}" for one in (measured, prediction)]
    ratio = f"{prediction / measured:.3f}" if measured and prediction else "-"
    return f"{words[0]:>9} {words[1]:>9} {ratio:>6}"


def row_of(case: StepCase, ranks: int, device: str, request: Request, limit_s: float) -> StepResult:
    """The result of predicting and running a case; errors of both are in it. ``limit_s`` 0: not run."""
    prediction, unpriced = None, ""
    try:
        prediction = price_case(case, ranks, request)
    except UserError as error:
        unpriced = str(error).partition("\n")[0]
    measurement: dict[str, Any] = {"status": "left out", "reason": "--budget_s is spent"}
    if limit_s > 0.0:
        measurement = run(case, ranks, device, limit_s)
    status, reason = measurement.pop("status"), str(measurement.pop("reason", ""))[:LONGEST_REASON]
    return StepResult(
        case=case, status=status, reason=reason, measurement=measurement, prediction=prediction, unpriced=unpriced
    )


def run(case: StepCase, ranks: int, device: str, limit_s: float) -> dict[str, Any]:
    """The output of a case's process, or how it ended."""
    words = [sys.executable]
    if ranks > 1:
        words += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    words += [str(ONE_ROW), device, case.as_text()]
    environ = os.environ | (KEEPING_FREED_MEMORY if device == "cpu" else {})
    try:
        process = subprocess.run(words, capture_output=True, text=True, timeout=limit_s, check=False, env=environ)
    except subprocess.TimeoutExpired:
        return {"status": "timeout", "reason": f"not done within {limit_s:.0f} s"}
    if process.returncode:
        errors = [line for line in process.stderr.splitlines() if "Error" in line] or ["no word"]
        return {"status": "failed", "reason": f"status {process.returncode}: {errors[0].strip()}"}
    result: dict[str, Any] = json.loads(process.stdout.splitlines()[-1])
    return result
