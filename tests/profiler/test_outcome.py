"""Whatever a case raises, wherever it does, is that case's result."""

import weakref

import pytest
import torch

from profdb.cases import GemmCase
from profiler.benchmarks.launched import UnsupportedCaseError
from profiler.device import Device
from profiler.distributed.world import World
from profiler.measurement import measure
from profiler.outcome import DeviceLostError, run_on_all_ranks
from tests.profiler.fakes import fake_bench, raising, single_world


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


@pytest.mark.parametrize("point", ["launch", 1, 2, 4, 6])
def test_whatever_a_case_raises_is_its_result(point: str | int) -> None:
    for problem, status in RAISED:
        check_raised(problem, status, point)


def check_raised(problem: Exception, status: str, point: str | int) -> None:
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


@pytest.mark.parametrize(
    ("of_others", "status", "lost"),
    [
        (["ok", "ok"], "ok", False),
        (["failed ValueError: no luck", "ok"], "failed", False),
        (["failed ValueError: no luck", "oom CUDA out of memory"], "oom", False),
        (["oom CUDA out of memory", "lost AcceleratorError: misaligned address"], "failed", True),
    ],
)
def test_what_any_rank_meets_is_the_outcome_on_all(
    of_others: list[str], status: str, lost: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a rank that came through itself: a lost device before a full one before a refusal."""
    monkeypatch.setattr(World, "gather", lambda _, word: [word, *of_others])
    monkeypatch.setattr(World, "slowest", lambda _, words: [max(*words, *(float(word != "ok") for word in of_others))])
    outcome = run_on_all_ranks(single_world(), lambda: None)
    assert (outcome.status, outcome.device_lost, outcome.ok) == (status, lost, status == "ok")
    assert not outcome.reason or f" {outcome.reason}" in "".join(of_others)


def test_memory_that_cannot_be_freed_is_a_result_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error that a kernel left behind comes up in whatever asks the device next: here in freeing its cache."""
    bench = fake_bench()
    bench.launcher.before = raising(torch.OutOfMemoryError("CUDA out of memory."))  # type: ignore[attr-defined]
    broken = raising(RuntimeError("CUDA error: an illegal memory access was encountered"))
    monkeypatch.setattr(Device, "release_memory", broken)
    case = GemmCase(m=8, k=8, n=8)
    assert measure(case, bench, "").status == "oom"
    answers = iter([True, False])
    monkeypatch.setattr(Device, "answers", lambda _: next(answers))
    with pytest.raises(DeviceLostError, match="illegal memory access") as lost:
        measure(case, bench, "")
    assert (lost.value.sample.case, lost.value.sample.status) == (case, "failed")


def test_what_a_failed_case_held_is_gone_before_memory_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """A trace keeps every frame that it passed, and with them the operands that filled the device."""

    class Operands:
        """Stands for tensors."""

    held: list[weakref.ref[Operands]] = []
    there: list[bool] = []

    def fill(_: object) -> None:
        operands = Operands()
        held.append(weakref.ref(operands))
        raise torch.OutOfMemoryError("CUDA out of memory.")

    bench = fake_bench()
    bench.launcher.before = fill  # type: ignore[attr-defined]
    monkeypatch.setattr(Device, "release_memory", lambda _: there.append(held[0]() is not None))
    assert measure(GemmCase(m=8, k=8, n=8), bench, "").status == "oom"
    assert there == [False]


def test_room_that_cannot_be_left_is_a_result_too(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = fake_bench()
    monkeypatch.setattr(Device, "leave_room", raising(RuntimeError("CUDA error: unknown error")))
    sample = measure(GemmCase(m=8, k=8, n=8), bench, "")
    assert (sample.status, bench.launcher.launched) == ("failed", [])  # type: ignore[attr-defined]
