"""Kernels on warm operands: one set of them, no more than the cache holds, under a key of their own."""

from dataclasses import replace

import pytest
import torch

from profdb.cases import FAMILY_OF, Family, GemmCase, MemoryBoundCase, WarmKernelCase
from profiler.benchmarks.launched import UnsupportedCaseError
from profiler.benchmarks.memory_bound import launch_memory_bound, launch_warm
from profiler.cases.sweep_plan import SweepPlan, gpu_compute, skip_reason
from profiler.device import Device
from tests.profiler.fakes import device_like

CASE = WarmKernelCase(kernel="gelu", direction="forward", rows=64, width=256, dtype="bf16")


SMALL_CACHE = device_like("cpu", cache_bytes=128 << 10)


def test_one_set_of_operands_is_read_again_and_again() -> None:
    cold = MemoryBoundCase(kernel="gelu", direction="forward", rows=64, width=256, dtype="bf16")
    # a read and a write of 64 x 256 in 2 bytes: 64 KiB a set, five of which exceed twice the cache
    assert len(launch_memory_bound(cold, SMALL_CACHE).calls) == 5
    warm = launch_warm(CASE, SMALL_CACHE)
    assert (len(warm.calls), warm.case, FAMILY_OF[type(warm.case)]) == (1, CASE, Family.WARM)
    assert warm.implementation == "torch, operands in the cache"


@pytest.mark.parametrize("changed", [{"rows": 129}, {"kernel": "none"}, {"direction": "sideways"}])
def test_what_the_cache_does_not_hold_or_nobody_runs_is_refused(changed: dict[str, object]) -> None:
    fits = launch_warm(replace(CASE, rows=128), SMALL_CACHE)  # 128 KiB
    assert fits.case.rows == 128  # type: ignore[union-attr]
    with pytest.raises(UnsupportedCaseError):
        launch_warm(replace(CASE, **changed), SMALL_CACHE)  # type: ignore[arg-type]


def test_a_backward_runs_on_its_own_operands() -> None:
    launched = launch_warm(replace(CASE, direction="backward"), Device(kind="cpu"))
    assert isinstance(launched.calls[0](), torch.Tensor | tuple)


def test_a_sweep_without_a_compiler_leaves_out_what_only_it_fuses() -> None:
    plan = SweepPlan(device_kind="cuda", excluded_kernels=frozenset({"swiglu"}))
    warm = [item.case for item in gpu_compute() if isinstance(item.case, WarmKernelCase)]
    assert {case.kernel for case in warm} == {"rmsnorm", "layernorm", "swiglu", "gelu", "add"}
    assert {case.kernel for case in warm if plan.takes(case)} == {"rmsnorm", "layernorm", "gelu", "add"}


def test_a_sweep_leaves_out_what_the_device_cannot_run() -> None:
    """An H100 has no products scaled by MXFP8, and a processor none in fp8; 2,048 rows of RMSNorm's backward move 50 MB."""
    cases = [item.case for item in gpu_compute()]
    plan = SweepPlan(device_kind="cuda", fp8_scales=("tensor", "row"), cache_bytes=50_000_000)
    left = [case for case in cases if not plan.takes(case)]
    assert {case.scale_recipe for case in left if isinstance(case, GemmCase)} == {"block", "mx"}
    warm = {(case.kernel, case.direction, case.rows) for case in left if isinstance(case, WarmKernelCase)}
    assert ("rmsnorm", "backward", 2048) in warm
    assert ("rmsnorm", "forward", 2048) not in warm
    assert all("not of this machine" in skip_reason(case, plan) for case in left)
    whole = SweepPlan(device_kind="cuda")
    assert all(whole.takes(case) for case in cases)
