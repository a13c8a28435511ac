"""Benchmark: matrix products of a Linear in its three layouts, and batched products."""

from collections.abc import Callable
from dataclasses import replace

import torch

from profdb.cases import GemmCase, SustainedCase
from profiler.benchmarks.fp8 import launch_fp8
from profiler.benchmarks.launched import Call, Launched, UnsupportedCaseError
from profiler.benchmarks.torch_dtypes import random_operand, rotating_calls, torch_dtype
from profiler.device import Device
from profiler.timing import SustainedStopwatch
from spec.dtypes import dtype_bytes

Operands = tuple[torch.Tensor, torch.Tensor]

COPIED_ELEMENTS = 1 << 28
"""Elements of the copies between sustained products: half a GiB each way, a tenth of a millisecond or more on any GPU."""


def launch_gemm(case: GemmCase, device: Device) -> Launched:
    """Returns the product C[m, n] = A[m, k] B[k, n], its operands stored in the case's layout."""
    if case.dtype_in == "fp8":
        return launch_fp8(case, device)
    check_gemm(case)
    where = device.torch_device
    # Bytes of one set of operands and result.
    moved = case.batch * (
        (case.m * case.k + case.k * case.n) * dtype_bytes(case.dtype_in) + case.m * case.n * dtype_bytes(case.dtype_out)
    )
    calls = rotating_calls(lambda: gemm_call(case, where), moved, device)
    name = "torch.bmm" if case.batch > 1 else ("torch.addmm" if case.bias else "torch.mm")
    return Launched(case=case, calls=calls, implementation=name)


def check_gemm(case: GemmCase) -> None:
    """Raises UnsupportedCaseError for a case that torch cannot launch as it is."""
    if case.dtype_out != case.dtype_in or case.scale_recipe:
        raise UnsupportedCaseError(f"torch.mm writes {case.dtype_in} from {case.dtype_in}, unscaled")
    if case.bias and case.batch > 1:
        raise UnsupportedCaseError("a batched product with bias")


def operands(case: GemmCase, where: torch.device) -> Operands:
    """Returns A as an m x k view and B as a k x n view of tensors stored in the case's layout."""
    batch = (case.batch,) if case.batch > 1 else ()
    # Layouts are cuBLAS's in row-major terms: T means that a tensor is stored transposed.
    if case.layout == "TN":
        left = random_operand((*batch, case.k, case.m), case.dtype_in, where).transpose(-1, -2)
    else:
        left = random_operand((*batch, case.m, case.k), case.dtype_in, where)
    if case.layout == "NT":
        right = random_operand((*batch, case.n, case.k), case.dtype_in, where).transpose(-1, -2)
    else:
        right = random_operand((*batch, case.k, case.n), case.dtype_in, where)
    return left, right


def gemm_call(case: GemmCase, where: torch.device) -> Call:
    """Returns one product on its own operands."""
    left, right = operands(case, where)
    batch = (case.batch,) if case.batch > 1 else ()
    out = torch.empty((*batch, case.m, case.n), dtype=torch_dtype(case.dtype_out), device=where)
    if case.bias:
        offset = random_operand((case.n,), case.dtype_in, where)
        return lambda: torch.addmm(offset, left, right, out=out)
    product: Callable[..., torch.Tensor] = torch.bmm if case.batch > 1 else torch.mm
    return lambda: product(left, right, out=out)


def launch_sustained(case: SustainedCase, device: Device) -> Launched:
    """Returns one product until clocks have settled, one trial per second; on a GPU alternating with copies of an
    array larger than any cache.

    Raises UnsupportedCaseError as launch_gemm does.
    """
    product = GemmCase(
        m=case.m,
        k=case.k,
        n=case.n,
        dtype_in=case.dtype_in,
        dtype_accumulate=case.dtype_accumulate,
        dtype_out=case.dtype_out,
        scale_recipe=case.scale_recipe,
    )
    launched = replace(launch_gemm(product, device), case=case, sustained_s=case.seconds)
    if device.kind != "cuda":
        return launched
    source = torch.randn(COPIED_ELEMENTS, dtype=torch.bfloat16, device=device.torch_device)
    target = torch.empty_like(source)
    # Copies stand for the memory-bound kernels of a step, during which a GPU draws less.
    clock = SustainedStopwatch.of(device, lambda: target.copy_(source), case.percent / 100.0)
    return replace(launched, clock=clock)
