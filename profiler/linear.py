"""Benchmark: matrix products of a Linear in its three layouts, batched products, fp8 products."""

from collections.abc import Callable

import torch

from profdb.cases import GemmCase
from profiler.device import Device
from profiler.launched import Call, Launched, UnsupportedCaseError
from profiler.torch_dtypes import operand_copies, random_operand, torch_dtype
from spec.dtypes import dtype_bytes

Operands = tuple[torch.Tensor, torch.Tensor]


def launch_gemm(case: GemmCase, device: Device) -> Launched:
    """Operands of C[m, n] = A[m, k] B[k, n] stored as the layout says, and the product into C."""
    if case.dtype_in == "fp8":
        return launch_fp8(case, device)
    check_gemm(case)
    where = device.torch_device
    moved = case.batch * (
        (case.m * case.k + case.k * case.n) * dtype_bytes(case.dtype_in)
        + case.m * case.n * dtype_bytes(case.dtype_out)
    )
    calls = tuple(gemm_call(case, where) for _ in range(operand_copies(moved, device.cache_bytes)))
    name = "torch.bmm" if case.batch > 1 else ("torch.addmm" if case.bias else "torch.mm")
    return Launched(case=case, calls=calls, implementation=name)


def check_gemm(case: GemmCase) -> None:
    """UnsupportedCaseError for what torch cannot launch as said."""
    if case.dtype_out != case.dtype_in or case.scale_recipe:
        raise UnsupportedCaseError(f"torch.mm writes {case.dtype_in} from {case.dtype_in}, unscaled")
    if case.bias and case.batch > 1:
        raise UnsupportedCaseError("a batched product with bias")


def operands(case: GemmCase, where: torch.device) -> Operands:
    """A as an m x k view and B as a k x n view of tensors stored in the case's layout."""
    batch = (case.batch,) if case.batch > 1 else ()
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
    """One product on its own operands."""
    left, right = operands(case, where)
    batch = (case.batch,) if case.batch > 1 else ()
    out = torch.empty((*batch, case.m, case.n), dtype=torch_dtype(case.dtype_out), device=where)
    if case.bias:
        offset = random_operand((case.n,), case.dtype_in, where)
        return lambda: torch.addmm(offset, left, right, out=out)
    product: Callable[..., torch.Tensor] = torch.bmm if case.batch > 1 else torch.mm
    return lambda: product(left, right, out=out)


def launch_fp8(case: GemmCase, device: Device) -> Launched:
    """fp8 products run on the tensor cores in layout NT only: frameworks transpose copies for the
    gradients, so that their products are NT as well (cuBLASLt documentation, "cublasLtMatmul",
    table of FP8 kernels: A transposed, B not transposed in column-major terms)."""
    if device.capability < (8, 9):
        raise UnsupportedCaseError("fp8 products need compute capability 8.9")
    if case.layout != "NT" or case.batch != 1 or case.scale_recipe != "tensor" or case.bias:
        raise UnsupportedCaseError("fp8 products run as NT, one at a time, scaled per tensor")
    if case.k % 16 or case.n % 16:
        raise UnsupportedCaseError("fp8 products need k and n to be multiples of 16")
    where = device.torch_device
    moved = (case.m * case.k + case.k * case.n) + 2 * case.m * case.n
    calls = tuple(fp8_call(case, where) for _ in range(operand_copies(moved, device.cache_bytes)))
    return Launched(case=case, calls=calls, implementation="torch._scaled_mm")


def fp8_call(case: GemmCase, where: torch.device) -> Call:
    """One scaled product with fast accumulation, as training frameworks run the forward."""
    left = random_operand((case.m, case.k), "fp8", where)
    right = random_operand((case.n, case.k), "fp8", where).t()
    scale = torch.ones((), dtype=torch.float32, device=where)
    out_dtype = torch_dtype(case.dtype_out)
    return lambda: torch._scaled_mm(
        left, right, scale_a=scale, scale_b=scale, out_dtype=out_dtype, use_fast_accum=True
    )
