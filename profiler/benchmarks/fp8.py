"""fp8 products: operands, the scales of each recipe, and torch's kernels for them.

Recipes (``scale_recipe``): "tensor" one scale an operand; "row" one a row of A and a column of B; "block" one
for 1 x 128 of A and 128 x 128 of B (DeepSeek-V3, arXiv 2412.19437, section 3.3.2); "mx" one power of two for
32 elements along k (OCP Microscaling Formats, MXFP8).

All run in layout NT only: frameworks transpose copies for the gradients, so that their products are NT as
well (cuBLASLt documentation, "cublasLtMatmul", table of FP8 kernels: A transposed, B not transposed in
column-major terms). Source of shapes and strides: PyTorch, aten/src/ATen/native/cuda/ScaledBlas.cpp
(_scaled_block1x128_block128x128, _scaled_mxfp8_mxfp8) and GroupedBlas.cpp. torch is given the recipe by name: where it
infers it from shapes (torch._scaled_mm), it refuses blocks of B padded to four if k is no multiple of 512.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn import functional

from profdb.cases import GemmCase, GroupedGemmCase, MemoryBoundCase
from profiler.benchmarks.kernel_functions import KernelFunction
from profiler.benchmarks.launched import Call, Launched, UnsupportedCaseError, call_or_refuse
from profiler.benchmarks.torch_dtypes import random_operand, rotating_calls, torch_dtype
from profiler.device import Device

Scales = tuple[torch.Tensor, torch.Tensor]
MakesScales = Callable[[int, int, int, torch.device], Scales]

FAST = frozenset({"tensor", "row"})
"""Recipes that training frameworks run with fast accumulation; with block scales they accumulate exactly."""


def launch_fp8(case: GemmCase, device: Device) -> Launched:
    """Returns one scaled product; raises UnsupportedCaseError if torch or the device has no kernel for it."""
    check_fp8(case, device)
    where = device.torch_device
    # Bytes: 8-bit operands, 16-bit result.
    moved = (case.m * case.k + case.k * case.n) + 2 * case.m * case.n
    calls = rotating_calls(lambda: fp8_call(case, where), moved, device)
    call_or_refuse(calls[0])
    return Launched(case=case, calls=calls, implementation=f"torch scaled_mm, {case.scale_recipe} scales")


def check_fp8(case: GemmCase, device: Device) -> None:
    """Raises UnsupportedCaseError with the reason why a case cannot run."""
    if case.scale_recipe not in RECIPES:
        raise UnsupportedCaseError(f"fp8 products are scaled by one of {', '.join(RECIPES)}")
    # Known to the benchmark, but not to this architecture's tensor cores.
    if case.scale_recipe not in scale_recipes(device):
        raise UnsupportedCaseError(f"no fp8 products scaled by {case.scale_recipe} on this architecture")
    # torch's scaled product has neither the other layouts nor batches.
    if case.layout != "NT" or case.batch != 1 or case.bias:
        raise UnsupportedCaseError("fp8 products run as NT, one at a time, without bias")
    if case.k % 16 or case.n % 16 or (case.scale_recipe == "mx" and case.k % 32):
        raise UnsupportedCaseError("fp8 products need k and n to be multiples of 16 (mx: k of 32)")


def scale_recipes(device: Device, *, grouped: bool = False) -> tuple[str, ...]:
    """Returns the recipes that the device's architecture has products for; without a hardware spec all of them, and
    torch reports which it lacks."""
    if device.kind != "cuda":
        return ()
    if device.architecture is None:
        return tuple(RECIPES)
    fp8 = device.architecture.fp8
    if fp8 is None:
        return ()
    return fp8.grouped_scales if grouped else fp8.scales


def fp8_call(case: GemmCase, where: torch.device) -> Call:
    """Returns one scaled product with a 16-bit result."""
    left = random_operand((case.m, case.k), "fp8", where)
    # Stored n x k: fp8 tensor cores want B contiguous along k.
    right = random_operand((case.n, case.k), "fp8", where).t()
    recipe = RECIPES[case.scale_recipe]
    scale_a, scale_b = recipe.scales(case.m, case.k, case.n, where)
    kind_a, kind_b = (getattr(functional.ScalingType, kind) for kind in recipe.kinds)
    order = getattr(functional.SwizzleType, recipe.order)
    out_dtype, fast = torch_dtype(case.dtype_out), case.scale_recipe in FAST
    return lambda: functional.scaled_mm(
        left,
        right,
        scale_a,
        kind_a,
        scale_b,
        kind_b,
        swizzle_a=order,
        swizzle_b=order,
        output_dtype=out_dtype,
        use_fast_accum=fast,
    )


def tensor_scales(m: int, k: int, n: int, where: torch.device) -> Scales:
    """Returns one scale for each operand."""
    return torch.ones((), device=where), torch.ones((), device=where)


def row_scales(m: int, k: int, n: int, where: torch.device) -> Scales:
    """Returns scales of m x 1 and 1 x n."""
    return torch.ones((m, 1), device=where), torch.ones((1, n), device=where)


def block_scales(m: int, k: int, n: int, where: torch.device) -> Scales:
    """Returns scales of A: m x k/128, m contiguous; of B: k/128 x n/128, k contiguous and padded to a multiple of
    four."""
    along = -(-k // 128)
    left = torch.ones((along, m), device=where).t()
    return left, torch.ones((-(-n // 128), -(-along // 4) * 4), device=where).t()


def mx_scales(m: int, k: int, n: int, where: torch.device) -> Scales:
    """Returns powers of two for 32 elements along k, in tiles of 128 rows by 4 scales (cuBLASLt documentation, "1D
    Block Scaling Factors Layout"); all are 1, so that their order in the tile does not matter."""
    # k / 32 scales, padded to whole tiles of 4.
    along = -(-k // 128) * 4
    left, right = (torch.ones(-(-rows // 128) * 128 * along, device=where).to(torch.float8_e8m0fnu) for rows in (m, n))
    return left, right


@dataclass(frozen=True, slots=True, kw_only=True)
class Fp8Scaling:
    """The ``scales`` of an m x k by k x n product, torch's names of A's and B's scaling (``kinds``,
    functional.ScalingType), and the ``order`` in which they are stored (functional.SwizzleType)."""

    scales: MakesScales
    kinds: tuple[str, str]
    order: str = "NO_SWIZZLE"


RECIPES: dict[str, Fp8Scaling] = {
    "tensor": Fp8Scaling(scales=tensor_scales, kinds=("TensorWise", "TensorWise")),
    "row": Fp8Scaling(scales=row_scales, kinds=("RowWise", "RowWise")),
    "block": Fp8Scaling(scales=block_scales, kinds=("BlockWise1x128", "BlockWise128x128")),
    "mx": Fp8Scaling(scales=mx_scales, kinds=("BlockWise1x32", "BlockWise1x32"), order="SWIZZLE_32_4_4"),
}


def launch_grouped_fp8(case: GroupedGemmCase, device: Device) -> Launched:
    """Returns the experts' products in one launch, scaled by row, the only recipe of torch's grouped kernel."""
    rows = case.m // case.groups
    if case.scale_recipe not in scale_recipes(device, grouped=True):
        raise UnsupportedCaseError("no such grouped fp8 products on this architecture")
    if case.layout != "NT" or case.scale_recipe != "row" or case.dtype_out != "bf16":
        raise UnsupportedCaseError("grouped fp8 products run as NT, scaled by row, into bf16")
    if rows % 16 or case.k % 16 or case.n % 16:
        raise UnsupportedCaseError("grouped fp8 products need rows of a group, k and n to be multiples of 16")
    moved = case.groups * case.k * case.n + case.m * case.k + 2 * case.m * case.n
    calls = rotating_calls(lambda: grouped_fp8_call(case, device.torch_device), moved, device, most=4)
    call_or_refuse(calls[0])
    return Launched(case=case, calls=calls, implementation="torch._scaled_grouped_mm, row scales")


def grouped_fp8_call(case: GroupedGemmCase, where: torch.device) -> Call:
    """Returns all groups in one launch: rows times (groups, k, n), each weight contiguous along k."""
    rows = case.m // case.groups
    # The end of each group's rows: all groups have equally many.
    ends = torch.arange(rows, case.m + 1, rows, dtype=torch.int32, device=where)
    left = random_operand((case.m, case.k), "fp8", where)
    right = random_operand((case.groups, case.n, case.k), "fp8", where).transpose(1, 2)
    scale_a = torch.ones(case.m, device=where)
    scale_b = torch.ones((case.groups, case.n), device=where)
    return lambda: torch._scaled_grouped_mm(
        left, right, scale_a, scale_b, offs=ends, out_dtype=torch.bfloat16, use_fast_accum=True
    )


def quantize_fp8(values: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Returns ``values`` times a known scale, saturated, in 8 bits (Transformer Engine, delayed scaling)."""
    return (values * scale).clamp(-LARGEST_E4M3, LARGEST_E4M3).to(torch.float8_e4m3fn)


def quantize_and_transpose(values: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Returns the same along rows, and a transposed copy for the gradient's product."""
    quantized = quantize_fp8(values, scale)
    # One result, so that a compiler may fuse both copies into one kernel.
    return torch.stack((quantized.view(torch.uint8).flatten(), quantized.view(torch.uint8).t().flatten()))


LARGEST_E4M3 = 448.0
"""Largest number of e4m3 (OCP 8-bit Floating Point Specification, table 1)."""


def with_scale(case: MemoryBoundCase, where: torch.device) -> tuple[torch.Tensor, ...]:
    """Returns rows x width, and one scale in their dtype."""
    values = random_operand((case.rows, case.width), case.dtype, where)
    return values, torch.ones((), dtype=values.dtype, device=where)


QUANTIZE_FUNCTIONS: dict[str, KernelFunction] = {
    "quantize": KernelFunction(operands=with_scale, forward=quantize_fp8),
    "quantize_transpose": KernelFunction(operands=with_scale, forward=quantize_and_transpose),
}
"""Casts to 8 bits, of ops.memory_bound; a compiler makes one kernel of each."""
