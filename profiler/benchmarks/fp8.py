"""fp8 products: operands, the scales that each recipe wants, and the kernels of torch that take them.

Recipes (``scale_recipe``): "tensor" one scale an operand; "row" one a row of A and a column of B; "block" one
for 1 x 128 of A and 128 x 128 of B (DeepSeek-V3, arXiv 2412.19437, section 3.3.2); "mx" one power of two for
32 elements along k (OCP Microscaling Formats, MXFP8).

All run in layout NT only: frameworks transpose copies for the gradients, so that their products are NT as
well (cuBLASLt documentation, "cublasLtMatmul", table of FP8 kernels: A transposed, B not transposed in
column-major terms). Source of shapes and strides: PyTorch, aten/src/ATen/native/cuda/ScaledBlas.cpp
and GroupedBlas.cpp.
"""

from collections.abc import Callable

import torch

from profdb.cases import GemmCase, GroupedGemmCase
from profiler.benchmarks.launched import OUT_OF_MEMORY, Call, Launched, UnsupportedCaseError
from profiler.benchmarks.torch_dtypes import operand_copies, random_operand, torch_dtype
from profiler.device import Device

Scales = tuple[torch.Tensor, torch.Tensor]

FAST = frozenset({"tensor", "row"})
"""Recipes that training frameworks run with fast accumulation; block scales are added up exactly."""


def launch_fp8(case: GemmCase, device: Device) -> Launched:
    """One scaled product; UnsupportedCaseError for what torch or the device has no kernel for."""
    check_fp8(case, device)
    where = device.torch_device
    moved = (case.m * case.k + case.k * case.n) + 2 * case.m * case.n
    calls = tuple(fp8_call(case, where) for _ in range(operand_copies(moved, device.cache_bytes)))
    try_once(calls[0])
    return Launched(case=case, calls=calls, implementation=f"torch._scaled_mm, {case.scale_recipe} scales")


def try_once(call: Call) -> None:
    """UnsupportedCaseError with torch's reason where its release or its CUDA has no such kernel."""
    try:
        call()
    except OUT_OF_MEMORY:
        raise
    except RuntimeError as refused:
        raise UnsupportedCaseError(str(refused).splitlines()[0]) from refused


def check_fp8(case: GemmCase, device: Device) -> None:
    """UnsupportedCaseError with the reason why a case cannot run."""
    if case.scale_recipe not in SCALES:
        raise UnsupportedCaseError(f"fp8 products are scaled by one of {', '.join(SCALES)}")
    if case.scale_recipe not in offered_scales(device):
        raise UnsupportedCaseError(f"no fp8 products scaled by {case.scale_recipe} on this architecture")
    if case.layout != "NT" or case.batch != 1 or case.bias:
        raise UnsupportedCaseError("fp8 products run as NT, one at a time, without bias")
    if case.k % 16 or case.n % 16 or (case.scale_recipe == "mx" and case.k % 32):
        raise UnsupportedCaseError("fp8 products need k and n to be multiples of 16 (mx: k of 32)")


def offered_scales(device: Device, *, grouped: bool = False) -> tuple[str, ...]:
    """Recipes that the device's architecture has products for; where no sheet says what it is, all, and
    torch says which it lacks."""
    if device.kind != "cuda":
        return ()
    if device.architecture is None:
        return tuple(SCALES)
    fp8 = device.architecture.fp8
    if fp8 is None:
        return ()
    return fp8.grouped_scales if grouped else fp8.scales


def fp8_call(case: GemmCase, where: torch.device) -> Call:
    """One scaled product, 16 bits out."""
    left = random_operand((case.m, case.k), "fp8", where)
    right = random_operand((case.n, case.k), "fp8", where).t()
    scale_a, scale_b = SCALES[case.scale_recipe](case.m, case.k, case.n, where)
    out_dtype, fast = torch_dtype(case.dtype_out), case.scale_recipe in FAST
    return lambda: torch._scaled_mm(
        left, right, scale_a=scale_a, scale_b=scale_b, out_dtype=out_dtype, use_fast_accum=fast
    )


def tensor_scales(m: int, k: int, n: int, where: torch.device) -> Scales:
    """One scale for each operand."""
    return torch.ones((), device=where), torch.ones((), device=where)


def row_scales(m: int, k: int, n: int, where: torch.device) -> Scales:
    """m x 1 and 1 x n."""
    return torch.ones((m, 1), device=where), torch.ones((1, n), device=where)


def block_scales(m: int, k: int, n: int, where: torch.device) -> Scales:
    """A: m x k/128, m contiguous. B: k/128 x n/128, k contiguous, a column padded to four scales."""
    along = -(-k // 128)
    left = torch.ones((along, m), device=where).t()
    padded = torch.ones((-(-n // 128), -(-along // 4) * 4), device=where)
    return left, padded[:, :along].t()


def mx_scales(m: int, k: int, n: int, where: torch.device) -> Scales:
    """Powers of two for 32 elements along k, in tiles of 128 rows by 4 scales (cuBLASLt documentation, "1D
    Block Scaling Factors Layout"); all 1, so that their order in the tile does not matter."""
    along = -(-k // 128) * 4
    left, right = (
        torch.ones(-(-rows // 128) * 128 * along, device=where).to(torch.float8_e8m0fnu) for rows in (m, n)
    )
    return left, right


SCALES: dict[str, Callable[[int, int, int, torch.device], Scales]] = {
    "tensor": tensor_scales,
    "row": row_scales,
    "block": block_scales,
    "mx": mx_scales,
}


def launch_grouped_fp8(case: GroupedGemmCase, device: Device) -> Launched:
    """The experts' products in one launch, scaled by row: what torch's grouped kernel takes."""
    rows = case.m // case.groups
    if case.scale_recipe not in offered_scales(device, grouped=True):
        raise UnsupportedCaseError("no such grouped fp8 products on this architecture")
    if case.layout != "NT" or case.scale_recipe != "row" or case.dtype_out != "bf16":
        raise UnsupportedCaseError("grouped fp8 products run as NT, scaled by row, into bf16")
    if rows % 16 or case.k % 16 or case.n % 16:
        raise UnsupportedCaseError("grouped fp8 products need rows of a group, k and n to be multiples of 16")
    moved = case.groups * case.k * case.n + case.m * case.k + 2 * case.m * case.n
    copies = operand_copies(moved, device.cache_bytes, most=4)
    calls = tuple(grouped_fp8_call(case, device.torch_device) for _ in range(copies))
    try_once(calls[0])
    return Launched(case=case, calls=calls, implementation="torch._scaled_grouped_mm, row scales")


def grouped_fp8_call(case: GroupedGemmCase, where: torch.device) -> Call:
    """All groups in one launch: rows against (groups, k, n), each weight contiguous along k."""
    rows = case.m // case.groups
    ends = torch.arange(rows, case.m + 1, rows, dtype=torch.int32, device=where)
    left = random_operand((case.m, case.k), "fp8", where)
    right = random_operand((case.groups, case.n, case.k), "fp8", where).transpose(1, 2)
    scale_a = torch.ones(case.m, device=where)
    scale_b = torch.ones((case.groups, case.n), device=where)
    return lambda: torch._scaled_grouped_mm(
        left, right, scale_a, scale_b, offs=ends, out_dtype=torch.bfloat16, use_fast_accum=True
    )
