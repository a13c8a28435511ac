"""What ops.memory_bound says that plain PyTorch moves is what it moves: every operation of the forward and of
autograd's backward is caught as it is dispatched, and the elements it reads and writes are counted."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ops.memory_bound import KERNELS, bytes_moved_per_element
from profdb.cases import MemoryBoundCase
from profiler.benchmarks.memory_bound import FUNCTIONS
from profiler.profiling_run import RunOptions, compiles

ROWS, WIDTH = 256, 1024
VIEWS = ("view", "expand", "transpose", "slice", "unsqueeze", "detach", "alias", "split", "t", "select")
# Operations that run as two kernels: zeros are written, then a part copied into them.
ZEROS_FIRST = ("slice_backward",)


class Moved(TorchDispatchMode):
    """Bytes per element that the operations inside read and write; parts below a fifth are negligible."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name not in VIEWS:
            # exp(x, out=x) names its output among its arguments.
            given = tensors_of([*args, *(kwargs or {}).values()]) if "out" not in (kwargs or {}) else args[:1]
            self.bytes += sum(touched(tensor) for tensor in (*given, *tensors_of([result])))
            if name in ZEROS_FIRST:
                self.bytes += touched(tensors_of(args)[0])
        return result


def tensors_of(values: Any) -> list[torch.Tensor]:
    if isinstance(values, torch.Tensor):
        return [values]
    if isinstance(values, list | tuple):
        return [tensor for value in values for tensor in tensors_of(value)]
    return []


def touched(tensor: torch.Tensor) -> float:
    sizes = [size for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride]
    elements = torch.Size(sizes).numel() / (ROWS * WIDTH)
    return elements * tensor.element_size() if elements > 0.2 else 0.0


@pytest.mark.parametrize(
    "kernel",
    [
        "cross_entropy",
        "rmsnorm_unfused",
        "rotary_unfused",
        "swiglu_unfused",
        "swiglu_halves_unfused",
        "masked_softmax_unfused",
    ],
)
def test_unfused_kernels_move_what_autograd_dispatches(kernel: str) -> None:
    case = MemoryBoundCase(kernel=kernel, direction="forward", rows=ROWS, width=WIDTH, dtype="bf16")
    function = FUNCTIONS[kernel]
    by_autograd = function.backward is None
    operands = tuple(
        one.requires_grad_(by_autograd and one.is_floating_point())
        for one in function.operands(case, torch.device("cpu"))
    )
    with Moved() as forward:
        output = function.forward(*operands)
    gradient = torch.randn_like(output) if by_autograd else torch.ones(ROWS, 1)
    wanted = [one for one in operands if one.requires_grad]
    with Moved() as backward:
        if function.backward:
            function.backward(operands, gradient)
        else:
            torch.autograd.grad(output, wanted, gradient, allow_unused=True)
    assert forward.bytes == pytest.approx(bytes_moved_per_element(kernel, backward=False, dtype="bf16"))
    assert backward.bytes == pytest.approx(bytes_moved_per_element(kernel, backward=True, dtype="bf16"))


def test_kernels_are_fused_on_a_gpu_unless_somebody_says_otherwise() -> None:
    options = RunOptions(output=Path("data.pt"), root=Path("."))
    assert compiles(options, "cuda")
    assert not compiles(options, "cpu")
    assert not compiles(replace(options, compiled=False), "cuda")
    assert compiles(replace(options, compiled=True), "cpu")


@pytest.mark.parametrize(("kernel", "kept"), [("rmsnorm_unfused", 6.0), ("masked_softmax_unfused", 4.0)])
def test_autograd_keeps_what_the_layers_count(kernel: str, kept: float) -> None:
    """A norm: its input in fp32 and the scaled one in 16 bits. A softmax: itself in fp32; what leaves it in
    16 bits is kept by the product that reads it."""
    assert kernel in KERNELS
    case = MemoryBoundCase(kernel=kernel, direction="forward", rows=ROWS, width=WIDTH, dtype="bf16")
    function = FUNCTIONS[kernel]
    operands = tuple(
        one.requires_grad_(one.is_floating_point()) for one in function.operands(case, torch.device("cpu"))
    )
    seen: dict[int, float] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        seen[tensor.untyped_storage().data_ptr()] = touched(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        output = function.forward(*operands)
    assert output.requires_grad
    assert sum(seen.values()) == kept


def test_a_table_is_as_large_as_the_vocabularies_measured_beside_it() -> None:
    # its backward fills a gradient of that size: 1,024 words of the tiny model on a processor, 32,000 of
    # Llama 2 on a GPU
    case = MemoryBoundCase(kernel="embedding", direction="backward", rows=8, width=4, dtype="bf16")
    for kind, words in (("cpu", 1024), ("meta", 32000)):
        table, _ = FUNCTIONS["embedding"].operands(case, torch.device(kind))
        assert table.shape == (words, 4)
