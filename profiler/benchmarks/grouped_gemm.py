"""Benchmark: the products of a layer's experts, each on its own rows, in one launch.

Rows of all groups lie one after another, spread evenly or by ``group_rows``. NT is the experts' forward, NN their
input gradient; in TN (weight gradients) each group sums over its own rows: ``m`` rows in total are
contracted, ``k`` x ``n`` is the weight of one group. Block-scaled fp8 runs in DeepGEMM where that is installed: torch's
grouped kernel accepts no 1 x 128 scales (deepseek-ai/DeepGEMM, csrc/apis/gemm.hpp, m_grouped_fp8_gemm_nt_contiguous).
"""

from itertools import accumulate, pairwise
from types import ModuleType

import torch

from profdb.cases import GroupedGemmCase
from profiler.benchmarks.fp8 import launch_grouped_fp8
from profiler.benchmarks.launched import Call, Launched, UnsupportedCaseError
from profiler.benchmarks.optional_packages import optional_package
from profiler.benchmarks.torch_dtypes import random_operand, rotating_calls
from profiler.device import Device
from spec.dtypes import dtype_bytes


def launch_grouped_gemm(case: GroupedGemmCase, device: Device) -> Launched:
    """Returns the grouped product and its operands: torch's grouped_mm, else one product per group."""
    group_rows(case)
    if case.scale_recipe == "block":
        return launch_deep_gemm(case, device)
    # torch's grouped fp8 product is measured with equal groups only (``grouped_fp8_call``).
    if case.dtype_in == "fp8" and case.spread == "even":
        return launch_grouped_fp8(case, device)
    if case.dtype_in != case.dtype_out or case.scale_recipe:
        raise UnsupportedCaseError("grouped products in one unscaled dtype only, or fp8 evenly spread")
    grouped = grouped_product(case, device)
    moved = dtype_bytes(case.dtype_in) * (case.groups * case.k * case.n + case.m * case.k + case.m * case.n)
    build = grouped_call if grouped is not None else looped_call
    calls = rotating_calls(lambda: build(case, device.torch_device), moved, device, most=4)
    return Launched(case=case, calls=calls, implementation=grouped or "torch.mm for each group")


def group_rows(case: GroupedGemmCase) -> tuple[int, ...]:
    """Returns the rows of each group. Uneven: from half to one and a half of the mean in equal steps, in multiples of
    UNEVEN_ROWS.

    Raises UnsupportedCaseError for rows that do not spread so, and for another spread.
    """
    if case.spread not in ("even", "uneven"):
        raise UnsupportedCaseError(f"spread {case.spread!r} is neither even nor uneven")
    unit = UNEVEN_ROWS if case.spread == "uneven" else 1
    units, remainder = divmod(case.m, unit)
    if remainder or units % case.groups:
        raise UnsupportedCaseError(f"{case.m} rows do not spread over {case.groups} groups in steps of {unit}")
    mean = units // case.groups
    if case.spread == "even" or case.groups == 1:
        return (mean * unit,) * case.groups
    # Steps of 0 to ``mean`` units above half of the mean.
    above = [round(mean * group / (case.groups - 1)) for group in range(case.groups)]
    rows = [mean - mean // 2 + step for step in above]
    # The remainder of rounding goes to the largest group.
    rows[-1] += units - sum(rows)
    return tuple(row * unit for row in rows)


UNEVEN_ROWS = 16
"""Rows of one expert are a multiple of this: strides of 16 bytes and more for any format."""


def launch_deep_gemm(case: GroupedGemmCase, device: Device) -> Launched:
    """Returns DeepGEMM's grouped product of fp8 rows with 1 x 128 scales and weights with 128 x 128 scales."""
    package = optional_package("deep_gemm") if device.kind == "cuda" else None
    if package is None or not hasattr(package, "m_grouped_fp8_gemm_nt_contiguous"):
        raise UnsupportedCaseError("block-scaled grouped products need DeepGEMM on a GPU")
    if case.dtype_in != "fp8" or case.layout != "NT" or case.dtype_out != "bf16":
        raise UnsupportedCaseError("block-scaled grouped products run as NT, fp8 into bf16")
    rows = group_rows(case)
    if case.k % 128 or case.n % 128 or any(count % DEEP_GEMM_ROWS for count in rows):
        raise UnsupportedCaseError("DeepGEMM wants k, n and the rows of a group in multiples of 128")
    moved = case.groups * case.k * case.n + case.m * case.k + 2 * case.m * case.n
    where = device.torch_device
    calls = rotating_calls(lambda: deep_gemm_call(case, rows, package, where), moved, device, most=4)
    return Launched(case=case, calls=calls, implementation="deep_gemm.m_grouped_fp8_gemm_nt_contiguous")


DEEP_GEMM_ROWS = 128
"""Rows of a group in DeepGEMM's contiguous layout (csrc/apis/runtime.hpp, get_mk_alignment_for_contiguous_layout)."""


def deep_gemm_call(case: GroupedGemmCase, rows: tuple[int, ...], package: ModuleType, where: torch.device) -> Call:
    """Returns all groups in one launch; each row has the index of its group. Scales of the rows are stored with the
    rows contiguous, as the kernel reads them: in any other order DeepGEMM transposes them in a launch of its own
    (csrc/jit_kernels/impls/smxx_layout.hpp, get_mn_major_tma_aligned_tensor)."""
    left = random_operand((case.m, case.k), "fp8", where)
    right = random_operand((case.groups, case.n, case.k), "fp8", where)
    scale_a = torch.ones((case.k // 128, case.m), device=where).t()
    scale_b = torch.ones((case.groups, case.n // 128, case.k // 128), device=where)
    out = torch.empty((case.m, case.n), dtype=torch.bfloat16, device=where)
    groups = torch.arange(case.groups, dtype=torch.int32, device=where)
    group_of = groups.repeat_interleave(torch.tensor(rows, device=where))
    product = package.m_grouped_fp8_gemm_nt_contiguous
    return lambda: product((left, scale_a), (right, scale_b), out, group_of)


def grouped_product(case: GroupedGemmCase, device: Device) -> str | None:
    """Returns the name of torch's grouped product; None where this torch, device or shape has none.

    The kernel needs strides of 16 bytes (torch documentation, torch.nn.functional.grouped_mm) and is written for
    compute capability 9 and 10: elsewhere torch copies ``offs`` to the host, which waits for the device, and runs one
    product per group under the same name (PyTorch, aten/src/ATen/native/cuda/GroupedBlas.cpp, _grouped_mm_cuda).
    """
    if device.kind != "cuda" or device.capability[0] not in WITH_GROUPED_KERNEL or case.dtype_in != "bf16":
        return None
    # 16 bytes are 8 elements of bf16.
    if case.k % 8 or case.n % 8 or (case.layout == "TN" and any(rows % 8 for rows in group_rows(case))):
        return None
    if hasattr(torch.nn.functional, "grouped_mm"):
        return "torch.nn.functional.grouped_mm"
    return "torch._grouped_mm" if hasattr(torch, "_grouped_mm") else None


WITH_GROUPED_KERNEL = (9, 10)
"""Major compute capabilities of torch's grouped kernel."""


def grouped_call(case: GroupedGemmCase, where: torch.device) -> Call:
    """Returns all groups in one launch."""
    product = getattr(torch.nn.functional, "grouped_mm", None) or torch._grouped_mm
    ends = torch.tensor(tuple(accumulate(group_rows(case))), dtype=torch.int32, device=where)
    left, right = grouped_operands(case, where)
    return lambda: product(left, right, offs=ends)


def grouped_operands(case: GroupedGemmCase, where: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns A and B of the grouped product: rows and (groups, k, n), or for TN k x rows and rows."""
    if case.layout == "TN":
        # Weight gradients: X^T dY, each group over its own rows of both.
        left = random_operand((case.m, case.k), case.dtype_in, where).t()
        return left, random_operand((case.m, case.n), case.dtype_in, where)
    left = random_operand((case.m, case.k), case.dtype_in, where)
    if case.layout == "NT":
        stored = random_operand((case.groups, case.n, case.k), case.dtype_in, where)
        return left, stored.transpose(1, 2)
    return left, random_operand((case.groups, case.k, case.n), case.dtype_in, where)


def looped_call(case: GroupedGemmCase, where: torch.device) -> Call:
    """Returns one product per group, as torch releases and devices without a grouped product run experts."""
    left, right = grouped_operands(case, where)
    spans = [slice(*ends) for ends in pairwise(accumulate(group_rows(case), initial=0))]

    def weight_gradients() -> None:
        for span in spans:
            torch.mm(left[:, span], right[span])

    def products() -> None:
        for group, span in enumerate(spans):
            torch.mm(left[span], right[group])

    return weight_gradients if case.layout == "TN" else products
