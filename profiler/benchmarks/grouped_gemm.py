"""Benchmark: the products of a layer's experts, each on its own rows, in one launch.

Rows of all groups lie one after another and are spread evenly. NT is the experts' forward, NN their
input gradient; in TN (weight gradients) each group sums over its own rows: ``m`` rows in total are
contracted, ``k`` x ``n`` is the weight of one group.
"""

import torch

from profdb.cases import GroupedGemmCase
from profiler.benchmarks.fp8 import launch_grouped_fp8
from profiler.benchmarks.launched import Call, Launched, UnsupportedCaseError
from profiler.benchmarks.torch_dtypes import operand_copies, random_operand
from profiler.device import Device
from spec.dtypes import dtype_bytes


def launch_grouped_gemm(case: GroupedGemmCase, device: Device) -> Launched:
    """Operands of the grouped product and its call; torch's grouped_mm, else one product a group."""
    if case.m % case.groups:
        raise UnsupportedCaseError(f"{case.m} rows do not spread evenly over {case.groups} groups")
    if case.dtype_in == "fp8" and case.spread == "even":
        return launch_grouped_fp8(case, device)
    if case.dtype_in != case.dtype_out or case.scale_recipe or case.spread != "even":
        raise UnsupportedCaseError("grouped products in one unscaled dtype, evenly spread, only")
    grouped = grouped_product(case, device)
    moved = dtype_bytes(case.dtype_in) * (case.groups * case.k * case.n + case.m * case.k + case.m * case.n)
    copies = operand_copies(moved, device.cache_bytes, most=4)
    build = grouped_call if grouped is not None else looped_call
    calls = tuple(build(case, device.torch_device) for _ in range(copies))
    return Launched(case=case, calls=calls, implementation=grouped or "torch.mm for each group")


def grouped_product(case: GroupedGemmCase, device: Device) -> str | None:
    """Name of torch's grouped product; None where this torch, device or shape has none.

    The kernel needs strides of 16 bytes (torch documentation, torch.nn.functional.grouped_mm).
    """
    if device.kind != "cuda" or device.capability < (8, 0) or case.dtype_in != "bf16":
        return None
    rows = case.m // case.groups
    if case.k % 8 or case.n % 8 or (case.layout == "TN" and rows % 8):
        return None
    if hasattr(torch.nn.functional, "grouped_mm"):
        return "torch.nn.functional.grouped_mm"
    return "torch._grouped_mm" if hasattr(torch, "_grouped_mm") and device.capability >= (9, 0) else None


def grouped_call(case: GroupedGemmCase, where: torch.device) -> Call:
    """All groups in one launch."""
    product = getattr(torch.nn.functional, "grouped_mm", None) or torch._grouped_mm
    rows = case.m // case.groups
    ends = torch.arange(rows, case.m + 1, rows, dtype=torch.int32, device=where)
    left, right = grouped_operands(case, where)
    return lambda: product(left, right, offs=ends)


def grouped_operands(case: GroupedGemmCase, where: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """A and B of the grouped product: rows against (groups, k, n), or for TN k x rows against rows."""
    if case.layout == "TN":
        left = random_operand((case.m, case.k), case.dtype_in, where).t()
        return left, random_operand((case.m, case.n), case.dtype_in, where)
    left = random_operand((case.m, case.k), case.dtype_in, where)
    if case.layout == "NT":
        stored = random_operand((case.groups, case.n, case.k), case.dtype_in, where)
        return left, stored.transpose(1, 2)
    return left, random_operand((case.groups, case.k, case.n), case.dtype_in, where)


def looped_call(case: GroupedGemmCase, where: torch.device) -> Call:
    """One product a group, as torch releases and devices without a grouped product run experts."""
    left, right = grouped_operands(case, where)
    rows = case.m // case.groups
    spans = [slice(group * rows, (group + 1) * rows) for group in range(case.groups)]

    def weight_gradients() -> None:
        for span in spans:
            torch.mm(left[:, span], right[span])

    def products() -> None:
        for group, span in enumerate(spans):
            torch.mm(left[span], right[group])

    return weight_gradients if case.layout == "TN" else products
