"""Every case of a GPU's sweep on tensors without data: torch's own shape functions take its operands, and say what it gives."""

from collections.abc import Callable, Sequence

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from profdb.cases import AttentionCase, Case, GemmCase, GroupedGemmCase, MemoryBoundCase
from profiler.benchmarks.attention import Order, attention_operands, core_call, sdpa_forward
from profiler.benchmarks.fp8 import fp8_call, grouped_fp8_call
from profiler.benchmarks.grouped_gemm import grouped_call
from profiler.benchmarks.linear import gemm_call, operands
from profiler.benchmarks.memory_bound import FUNCTIONS, kernel_call
from profiler.benchmarks.torch_dtypes import torch_dtype
from profiler.cases.sweep_plan import gpu_compute
from profiler.rehearsal import smoke_cases

META = torch.device("meta")
CASES = [item.case for item in gpu_compute()]


def check_gemm(case: GemmCase) -> None:
    call = fp8_call if case.dtype_in == "fp8" else gemm_call
    result = call(case, META)()
    assert isinstance(result, torch.Tensor)
    batch = (case.batch,) if case.batch > 1 else ()
    assert (tuple(result.shape), result.dtype) == ((*batch, case.m, case.n), torch_dtype(case.dtype_out))
    if case.dtype_in != "fp8":
        left, right = operands(case, META)
        # As stored: T in the layout is a transposed view.
        assert left.stride()[-2:] == ((1, case.m) if case.layout == "TN" else (case.k, 1))
        assert right.stride()[-2:] == ((1, case.k) if case.layout == "NT" else (case.n, 1))


def check_grouped(case: GroupedGemmCase) -> None:
    if case.scale_recipe == "block":
        return  # DeepGEMM's, which torch does not know
    call = grouped_fp8_call if case.dtype_in == "fp8" else grouped_call
    result = call(case, META)()
    assert isinstance(result, torch.Tensor)
    shape = (case.groups, case.k, case.n) if case.layout == "TN" else (case.m, case.n)
    assert (tuple(result.shape), result.dtype) == (shape, torch.bfloat16)


def check_kernel(case: MemoryBoundCase) -> None:
    result = kernel_call(case, FUNCTIONS[case.kernel], META)()
    results = result if isinstance(result, tuple) else (result,)
    assert all(one is None or isinstance(one, torch.Tensor) for one in results)


def check_attention(case: AttentionCase) -> None:
    """As on a GPU: torch's shape functions of cuDNN's and FlashAttention's kernels choose by the device."""
    if case.mask not in ("causal", "full"):
        return
    with FakeTensorMode():
        where = torch.device("cuda")
        if case.kernel == "core":
            core_call(case, where)()
            return
        tensors = attention_operands(case, Order.HEADS, where)
        result = sdpa_forward(case, "cudnn" if case.kernel == "cudnn" else "flash2")(*tensors)
    assert tuple(result.shape) == (case.batch, case.heads, case.q_len, case.v_dim)
    assert (result.dtype, result.device.type) == (torch_dtype(case.dtype), "cuda")


CHECKS: dict[type, Callable[..., None]] = {
    GemmCase: check_gemm,
    GroupedGemmCase: check_grouped,
    MemoryBoundCase: check_kernel,
    AttentionCase: check_attention,
}


def check(cases: Sequence[Case]) -> list[str]:
    """The cases that torch refuses, or that give something else."""
    wrong = []
    for case in cases:
        try:
            CHECKS[type(case)](case)
        except (AssertionError, RuntimeError, TypeError, ValueError) as error:
            wrong.append(f"{case}: {str(error).splitlines()[0]}")
    return wrong


@pytest.mark.parametrize("kind", CHECKS)
def test_torch_takes_a_case_of_every_kind(kind: type) -> None:
    cases = smoke_cases([case for case in CASES if type(case) is kind])
    assert len(cases) > 5
    assert check(cases) == []


@pytest.mark.nightly
@pytest.mark.parametrize("kind", [GemmCase, GroupedGemmCase, MemoryBoundCase])
def test_torch_takes_every_case(kind: type) -> None:
    cases = [case for case in CASES if type(case) is kind]
    assert len(cases) > 900
    assert check(cases) == []


def test_what_torch_does_not_take_is_found() -> None:
    """k of 24 is no multiple of 16; scales of another size."""
    odd = GemmCase(m=64, k=24, n=48, dtype_in="fp8", scale_recipe="row")
    assert len(check([odd, GroupedGemmCase(groups=4, m=64, k=30, n=48)])) == 2
