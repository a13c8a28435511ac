"""Which elementwise operations of plain PyTorch read strided or broadcast operands: every one is caught as it is
dispatched and compared with what profdb.modelled.strided_passes counts."""

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from profdb.cases import MemoryBoundCase
from profdb.modelled.strided_passes import STRIDED
from profiler.benchmarks.kernel_functions import KERNEL_FUNCTIONS
from spec.dtypes import dtype_bytes

ROWS, WIDTH = 256, 1024
ELEMENTWISE = ("clamp", "clamp_max", "mul", "add", "where", "le", "ge", "logical_and_")


class Strided(TorchDispatchMode):
    """Launches over rows x width with such operands, and the bytes per element that they move."""

    def __init__(self) -> None:
        super().__init__()
        self.passes = 0.0
        self.bytes = 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        given = [one for one in args if isinstance(one, torch.Tensor) and one.dim()]
        if func.overloadpacket.__name__ in ELEMENTWISE and any(
            one.shape != result.shape or not one.is_contiguous() for one in given
        ):
            self.passes += result.numel() / (ROWS * WIDTH)
            whole = [one for one in (*given, result) if one.shape == result.shape]
            self.bytes += sum(one.numel() * one.element_size() for one in whole) / (ROWS * WIDTH)
        return result


@pytest.mark.parametrize("kernel", sorted({kernel for kernel, _ in STRIDED}))
def test_strided_passes_are_those_that_autograd_dispatches(kernel: str) -> None:
    case = MemoryBoundCase(kernel=kernel, direction="forward", rows=ROWS, width=WIDTH, dtype="bf16")
    function = KERNEL_FUNCTIONS[kernel]
    operands = tuple(one.requires_grad_() for one in function.operands(case, torch.device("cpu")))
    with Strided() as forward:
        output = function.forward(*operands)
    with Strided() as backward:
        torch.autograd.grad(output, operands, torch.randn_like(output))
    for direction, seen in (("forward", forward), ("backward", backward)):
        predicted = STRIDED[kernel, direction]
        assert seen.passes == predicted.passes, direction
        assert seen.bytes == predicted.tensors * dtype_bytes(predicted.dtype or "bf16"), direction
