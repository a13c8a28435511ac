"""Which elementwise operations of plain PyTorch read strided or broadcast operands: every one is caught as it is
dispatched and compared with what profdb.modelled.slow_kernels counts."""

from collections import defaultdict
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from profdb.cases import MemoryBoundCase
from profdb.modelled.slow_kernels import STRIDED
from profiler.benchmarks.memory_bound import FUNCTIONS
from spec.dtypes import dtype_bytes

ROWS, WIDTH = 256, 1024
ELEMENTWISE = (
    *("clamp", "clamp_max", "mul", "add", "where", "le", "ge", "logical_and_"),
    *("neg", "div", "masked_fill", "copy_", "silu", "silu_backward"),
    *("sub_", "mul_", "div_"),
)
IN_PLACE = ("sub_", "mul_", "div_")
WIDENED = "_to_copy"
# A part is copied into zeros: the copy is strided.
PART_OF_ZEROS = "slice_backward"


class Strided(TorchDispatchMode):
    """By the result's bytes an element: launches over rows x width with such operands, and the bytes per element that
    they move."""

    def __init__(self) -> None:
        super().__init__()
        self.passes: dict[int, float] = defaultdict(float)
        self.bytes: dict[int, float] = defaultdict(float)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        given = [one for one in args if isinstance(one, torch.Tensor) and one.dim()]
        if name == PART_OF_ZEROS:
            self.count(given[0], [given[0], given[0]])
        elif name == WIDENED and result.element_size() > given[0].element_size():
            self.count(result, [given[0], result])
        elif name in ELEMENTWISE and any(one.shape != result.shape or not one.is_contiguous() for one in given):
            into = [] if name.endswith("_") and name not in IN_PLACE else [result]
            whole = [one for one in (*given, *into) if one.shape == result.shape and 0 not in one.stride()]
            self.count(result, whole)
        return result

    def count(self, result: torch.Tensor, moved: list[torch.Tensor]) -> None:
        elements = result.numel() / (ROWS * WIDTH)
        if elements > 0.2:
            self.passes[result.element_size()] += elements
            self.bytes[result.element_size()] += sum(one.numel() / (ROWS * WIDTH) * one.element_size() for one in moved)


@pytest.mark.parametrize("kernel", sorted({kernel for kernel, _ in STRIDED}))
def test_strided_passes_are_those_that_autograd_dispatches(kernel: str) -> None:
    case = MemoryBoundCase(kernel=kernel, direction="forward", rows=ROWS, width=WIDTH, dtype="bf16")
    function = FUNCTIONS[kernel]
    operands = function.operands(case, torch.device("cpu"))
    back = "backward" in {way for name, way in STRIDED if name == kernel}
    trained = (back and function.backward is None) and tuple(
        one.requires_grad_() for one in operands if one.is_floating_point()
    )
    with Strided() as forward:
        output = function.forward(*operands)
    agree(kernel, "forward", forward)
    if trained:
        with Strided() as backward:
            torch.autograd.grad(output, trained, torch.randn_like(output), allow_unused=True)
        agree(kernel, "backward", backward)
    if back and function.backward is not None:
        with Strided() as backward:
            function.backward(operands, operands[0])
        agree(kernel, "backward", backward)


def agree(kernel: str, direction: str, seen: Strided) -> None:
    """Passes and bytes of each width, comparisons and their masks among those of the activation."""
    passes, moved = defaultdict(float), defaultdict(float)
    for one in STRIDED[kernel, direction]:
        size = dtype_bytes(one.dtype or "bf16")
        passes[size] += one.passes
        moved[size] += one.tensors * size
    for found in (seen.passes, seen.bytes):
        found[2] += found.pop(1, 0.0)
    assert {size: count for size, count in seen.passes.items() if count} == passes, direction
    assert {size: count for size, count in seen.bytes.items() if count} == moved, direction
