"""What searches ask of kernels that move bytes: their widest, narrowest and longest."""

from functools import cache

import pytest

from ops.memory_bound import KERNELS, bytes_moved_per_element
from profdb.cases import MemoryBoundCase, OptimizerCase
from profiler.cases.kernel_cases import gpu_kernel_cases, gpu_optimizer_cases


@cache
def held() -> frozenset[MemoryBoundCase]:
    return frozenset(plan.case for plan in gpu_kernel_cases() if isinstance(plan.case, MemoryBoundCase))


def shapes(kernel: str, dtype: str = "bf16") -> set[tuple[int, int]]:
    return {(case.rows, case.width) for case in held() if (case.kernel, case.dtype) == (kernel, dtype)}


def test_every_kernel_is_measured_in_both_directions_that_move_something() -> None:
    wanted = {
        (kernel, direction)
        for kernel in KERNELS
        for direction in ("forward", "backward")
        if bytes_moved_per_element(kernel, backward=direction == "backward", dtype="bf16")
    }
    assert {(case.kernel, case.direction) for case in held()} == wanted


@pytest.mark.parametrize(
    ("kernel", "narrowest", "widest"),
    [
        ("rotary", 640, 16384),  # Llama-3.1-8B on eight ranks: 4 heads of queries and one of keys; Llama-3.1-405B
        ("swiglu", 256, 53248),
        ("cross_entropy", 4000, 152064),  # Llama-2's words on eight ranks; Qwen2's
        ("rmsnorm", 512, 16384),  # DeepSeek-V3's low rank
    ],
)
def test_widths_go_from_a_cut_to_the_widest_model(kernel: str, narrowest: int, widest: int) -> None:
    widths = {width for _, width in shapes(kernel)}
    assert min(widths) <= narrowest
    assert max(widths) >= widest


@pytest.mark.parametrize("kernel", ["copy", "cast", "fill", "norm_reduce"])
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_passes_of_the_update_go_up_to_a_whole_model(kernel: str, dtype: str) -> None:
    """8.03 billion parameters of Llama 3 8B, all on one rank."""
    assert max(rows for rows, width in shapes(kernel, dtype) if width == 1) >= 8.03e9


def test_rows_go_up_to_32_sequences_and_the_optimizer_to_what_a_rank_owns() -> None:
    assert all(max(rows for rows, _ in shapes(kernel)) == 32 * 4096 for kernel in ("rmsnorm", "swiglu", "add"))
    sizes = {plan.case.elements for plan in gpu_optimizer_cases() if isinstance(plan.case, OptimizerCase)}
    assert (min(sizes), max(sizes)) == (1 << 20, 1 << 32)
