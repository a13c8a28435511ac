"""Benchmark: one AdamW step over parameters in ``tensors`` equal pieces."""

import torch

from profdb.cases import OptimizerCase
from profiler.benchmarks.launched import Launched, UnsupportedCaseError
from profiler.benchmarks.optional_packages import apex_optimizers
from profiler.benchmarks.torch_dtypes import torch_dtype
from profiler.device import Device


def launch_optimizer(case: OptimizerCase, device: Device) -> Launched:
    """Parameters with gradients and the step of a fused optimizer: apex's FusedAdam where it is
    installed, else torch's fused AdamW. Moments have the parameters' dtype, as both keep them."""
    if case.kernel != "adamw":
        raise UnsupportedCaseError(f"optimizer {case.kernel!r} is not measured; adamw is")
    if case.gradient_dtype != case.parameter_dtype:
        raise UnsupportedCaseError("torch steps parameters with gradients of the same dtype only")
    size = case.elements // case.tensors
    if size * case.tensors != case.elements:
        raise UnsupportedCaseError(f"{case.elements} elements do not split into {case.tensors} tensors")
    dtype = torch_dtype(case.parameter_dtype)
    parameters = [
        torch.nn.Parameter(torch.randn(size, dtype=dtype, device=device.torch_device))
        for _ in range(case.tensors)
    ]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter) * 1e-3
    optimizer, name = fused_adamw(parameters, device)
    return Launched(case=case, calls=(optimizer.step,), implementation=name)


def fused_adamw(parameters: list[torch.nn.Parameter], device: Device) -> tuple[torch.optim.Optimizer, str]:
    """The fastest AdamW there is here, and its name."""
    apex = apex_optimizers() if device.kind == "cuda" else None
    if apex is not None:
        return apex.FusedAdam(parameters, lr=1e-5, weight_decay=0.1), "apex FusedAdam"
    return torch.optim.AdamW(parameters, lr=1e-5, weight_decay=0.1, fused=True), "torch AdamW fused"
