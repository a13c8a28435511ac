"""Benchmark: norms, activations, residual adds, losses, casts and copies, forward and backward."""

import contextlib
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

import torch
from torch.nn import functional

from ops.memory_bound import KERNELS, bytes_moved_per_element
from profdb.cases import MemoryBoundCase, WarmKernelCase
from profiler.benchmarks.fp8 import QUANTIZE_FUNCTIONS
from profiler.benchmarks.kernel_functions import (
    KERNEL_FUNCTIONS,
    KernelFunction,
    Operands,
    two_halves,
    with_channel_weight,
)
from profiler.benchmarks.launched import Call, Launched, UnsupportedCaseError, call_or_refuse
from profiler.benchmarks.torch_dtypes import rotating_calls
from profiler.benchmarks.transformer_engine import norm_function, release
from profiler.device import Device

STRIDED_FUNCTIONS = {
    "strided_copy": KernelFunction(
        operands=two_halves,
        forward=lambda x, into: into.copy_(x),
        backward=lambda operands, gradient: operands[1].copy_(operands[0]),
        one_kernel=True,
    ),
    "swiglu_halves_unfused": KernelFunction(operands=two_halves, forward=lambda gate, up: functional.silu(gate) * up),
    "spread_unfused": KernelFunction(
        operands=with_channel_weight,
        forward=lambda into, row: torch.linalg.vector_norm(into.copy_(row)),
        stand_in="torch copy and norm: the write of torch.baddbmm, and the read of the product that adds to it",
    ),
}
FUNCTIONS: dict[str, KernelFunction] = KERNEL_FUNCTIONS | QUANTIZE_FUNCTIONS | STRIDED_FUNCTIONS


def launch_memory_bound(case: MemoryBoundCase, device: Device, *, compiled: bool = False) -> Launched:
    """Returns the call of a kernel on its operands; ``compiled`` fuses by torch.compile those that torch itself runs
    as several kernels, except norms where Transformer Engine has them. Without it they are refused."""
    if case.kernel not in KERNELS or case.kernel not in FUNCTIONS:
        raise UnsupportedCaseError(f"no benchmark for kernel {case.kernel!r}")
    if case.direction not in ("forward", "backward"):
        raise UnsupportedCaseError(f"direction {case.direction!r} is neither forward nor backward")
    function = FUNCTIONS[case.kernel]
    library = norm_function(case.kernel, device)
    # Kernels that are one by name must run as one (``compiled_kernels``).
    fuse = case.kernel in compiled_kernels()
    if fuse and not compiled and library is None:
        raise UnsupportedCaseError("torch runs it as several kernels; a compiler fuses them (--compile)")
    moved = moved_bytes(case)
    if moved <= 0.0:
        raise UnsupportedCaseError(f"{case.kernel} moves nothing in the {case.direction}")
    where = device.torch_device

    def calls_of(function: KernelFunction) -> tuple[Call, ...]:
        return rotating_calls(lambda: kernel_call(case, function, where), moved, device)

    if library is not None:
        # Another release may have other functions: the compiler's kernel runs then.
        with contextlib.suppress(UnsupportedCaseError):
            calls = call_or_refuse(lambda: tried(calls_of(library)))
            return Launched(case=case, calls=calls, implementation=f"{release()} {case.kernel}")
    if fuse:
        calls, shapes = compiled_calls(replace(function, forward=compile_forward(case.kernel)), calls_of)
        return Launched(case=case, calls=calls, implementation=f"torch.compile for {shapes}")
    # A stand-in's name is its description, which is stored with the sample.
    name = "torch" if function.one_kernel else "torch, several kernels"
    return Launched(case=case, calls=calls_of(function), implementation=function.stand_in or name)


def tried(calls: tuple[Call, ...]) -> tuple[Call, ...]:
    """Returns the calls after the first has run."""
    calls[0]()
    return calls


def moved_bytes(case: MemoryBoundCase | WarmKernelCase) -> float:
    """Returns the bytes that one launch reads and writes."""
    backward = case.direction == "backward"
    return bytes_moved_per_element(case.kernel, backward=backward, dtype=case.dtype) * case.rows * case.width


def compiled_calls(
    function: KernelFunction, calls_of: Callable[[KernelFunction], tuple[Call, ...]]
) -> tuple[tuple[Call, ...], str]:
    """Returns calls of the compiled kernel, and for which shapes: for any number of rows of this width, as a framework's
    batches differ and its widths do not, or for this shape alone where the compiler fails with unknown sizes (torch
    2.11 in the backward of rotary: torch/_inductor/tiling_utils.py, get_pw_red_splits)."""
    from torch._inductor.exc import InductorError

    try:
        calls = calls_of(replace(function, operands=lambda case, where: any_rows(function.operands(case, where))))
        calls[0]()
    except InductorError:
        return calls_of(function), "this shape"
    return calls, "any rows of this width"


def any_rows(operands: Operands) -> Operands:
    """Returns the operands, their rows marked as a number that the compiler must not rely on."""
    from torch._dynamo import mark_dynamic

    for operand in operands:
        # Weights and masks have one number for each column, targets (of int64) one for each row.
        if operand.ndim > 1 or operand.dtype == torch.int64:
            mark_dynamic(operand, 0)
    return operands


def launch_warm(case: WarmKernelCase, device: Device, *, compiled: bool = False) -> Launched:
    """Returns the kernel on one set of operands, over and over: each launch finds in the cache what the previous one
    touched.

    Raises UnsupportedCaseError as launch_memory_bound does, and for more bytes than the cache has.
    """
    cold = MemoryBoundCase(
        kernel=case.kernel, direction=case.direction, rows=case.rows, width=case.width, dtype=case.dtype
    )
    if case.kernel in KERNELS and device.cache_bytes:
        moved = moved_bytes(case)
        # A kernel that does not fit would be timed from memory under the name of a warm one.
        if moved > device.cache_bytes:
            raise UnsupportedCaseError(f"moves {moved:.0f} bytes, the cache holds {device.cache_bytes}")
    launched = launch_memory_bound(cold, device, compiled=compiled)
    name = f"{launched.implementation}, operands in the cache"
    return replace(launched, case=case, calls=launched.calls[:1], implementation=name)


def compiled_kernels() -> frozenset[str]:
    """Returns the kernels that are one by name and several in torch, unless a compiler fuses them: the time of the
    several would be stored under the wrong name."""
    return frozenset(
        name
        for name, function in FUNCTIONS.items()
        if name in KERNELS and KERNELS[name].fused and not function.one_kernel
    )


MOST_GRAPHS = 64
"""Graphs of one kernel; a sweep needs 4 to 16, where the rows cannot be left open 50."""


@lru_cache
def compile_forward(kernel: str) -> Callable[..., torch.Tensor]:
    """Returns a kernel's forward through torch.compile, for the sizes of its operands that are not marked as unknown.

    A compiled backward reuses the buffers of its forward, and refuses to run again, unless this process sets
    otherwise for as long as it runs. Widths, formats, gradients and arrays of 2^31 elements each need a graph of their
    own. Beyond torch's limit of 8 a function silently runs as several kernels again, unless it has to be whole
    (torch/_dynamo/convert_frame.py, RUN_ONLY); then it refuses.
    """
    from torch._dynamo import config as graphs
    from torch._functorch import config

    # The backward is timed again and again on one forward's buffers.
    config.donated_buffer = False
    graphs.recompile_limit = MOST_GRAPHS
    compile_for: Callable[..., torch.Tensor] = torch.compile(FUNCTIONS[kernel].forward, dynamic=False, fullgraph=True)
    return compile_for


def kernel_call(case: MemoryBoundCase, function: KernelFunction, where: torch.device) -> Call:
    """Returns one kernel on its own operands."""
    operands = function.operands(case, where)
    if case.direction == "forward":

        def run_forward() -> None:
            with torch.no_grad():
                function.forward(*operands)

        return run_forward
    if function.backward is not None:
        with torch.no_grad():
            # Only the shape and format of the output matter here.
            gradient = torch.randn_like(function.forward(*operands))
        backward = function.backward
        return lambda: backward(operands, gradient)
    return autograd_backward(operands, function.forward)


def autograd_backward(operands: Operands, forward: Callable[..., torch.Tensor]) -> Call:
    """Returns the backward that autograd runs for ``forward``, alone, again and again."""
    inputs = [operand.requires_grad_(True) for operand in operands if operand.is_floating_point()]
    output = forward(*operands)
    gradient = torch.randn_like(output)
    return lambda: torch.autograd.grad(output, inputs, gradient, retain_graph=True, allow_unused=True)
