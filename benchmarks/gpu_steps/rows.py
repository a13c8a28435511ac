"""One case, predicted, and measured in a process of its own within a time limit."""

import json
import os
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu_steps.case import StepCase
from benchmarks.gpu_steps.prices import price_case
from solver.problem.request import Request
from solver.problem.result import Answer
from spec.errors import UserError

ONE_ROW = Path(__file__).resolve().parent / "one_row.py"
LONGEST_REASON = 160
GIB = 2**30
KEEPING_FREED_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "-1"}
"""glibc returns freed memory to the system, whose pages are cleared again at the next write (mallopt(3)): a tenth of a
small step. The predicted step has a caching allocator like a GPU's, which keeps freed memory."""


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
        prediction = None
        if self.prediction is not None:
            prediction = {
                "step_s": self.prediction.step_s,
                "parts_s": self.prediction.parts_s,
                "allocated_bytes": self.prediction.allocated_bytes,
                "reserved_bytes": self.prediction.reserved_bytes,
            }
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
    if limit_s <= 0.0:
        return StepResult(
            case=case,
            status="left out",
            reason="--budget_s is spent",
            measurement={},
            prediction=prediction,
            unpriced=unpriced,
        )
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
