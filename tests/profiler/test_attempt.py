"""Whatever a case raises, wherever it does, is that case's result."""

from collections.abc import Callable

import pytest
import torch

from profdb.cases import Case, GemmCase
from profiler.benchmarks.launched import UnsupportedCaseError
from profiler.measurement import measure
from tests.profiler.fakes import fake_bench


class TritonError(Exception):
    """As triton.CompilationError: of no family but Exception."""


RAISED = [
    (RuntimeError("CUDA error: CUBLAS_STATUS_NOT_SUPPORTED when calling cublasLtMatmul"), "failed"),
    (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"), "oom"),
    (RuntimeError("CUDA driver error: out of memory"), "oom"),
    (MemoryError(), "oom"),
    (torch.OutOfMemoryError("CUDA out of memory."), "oom"),
    (ValueError("Scale must be contiguous"), "failed"),
    (TypeError("unexpected keyword 'enable_gqa'"), "failed"),
    (NotImplementedError("no backward"), "failed"),
    (AssertionError(), "failed"),
    (ImportError("no module named triton"), "failed"),
    (KeyError("float8"), "failed"),
    (OSError("gcc not found"), "failed"),
    (TritonError("at 12:4"), "failed"),
    (UnsupportedCaseError("no such kernel"), "failed"),
]


class BreaksAt:
    """A clock that raises at its n-th burst: in the first launch, in a later one, in the trials."""

    def __init__(self, problem: Exception, burst: int) -> None:
        self.problem, self.left = problem, burst

    def burst(self, *_: object) -> float:
        self.left -= 1
        if self.left == 0:
            raise self.problem
        return 1e-3


@pytest.mark.parametrize(("problem", "status"), RAISED, ids=lambda value: repr(value)[:40])
@pytest.mark.parametrize("point", ["launch", 1, 2, 4, 6])
def test_whatever_a_case_raises_is_its_result(problem: Exception, status: str, point: str | int) -> None:
    case = GemmCase(m=8, k=8, n=8)
    bench = fake_bench()
    if point == "launch":
        bench.launcher.before = raising(problem)  # type: ignore[attr-defined]
    else:
        bench.device_clock = BreaksAt(problem, int(point))
    sample = measure(case, bench, "2026-01-01")
    assert (sample.case, sample.status, sample.trials_s) == (case, status, ())
    said = str(problem) or type(problem).__name__
    assert said in str(sample.launched["reason"])


def raising(problem: BaseException) -> Callable[[Case], None]:
    def refuse(_: Case) -> None:
        raise problem

    return refuse
