"""Benchmark: one AdamW step over parameters in ``tensors`` equal pieces."""

import contextlib

import torch

from profdb.cases import OptimizerCase
from profiler.benchmarks.launched import Launched, UnsupportedCaseError
from profiler.benchmarks.optional_packages import optional_package
from profiler.benchmarks.torch_dtypes import torch_dtype
from profiler.device import Device


def launch_optimizer(case: OptimizerCase, device: Device) -> Launched:
    """Returns the step of a fused optimizer over parameters with gradients: apex's FusedAdam where it is installed,
    else torch's fused AdamW. Moments have the parameters' dtype."""
    if case.kernel != "adamw":
        raise UnsupportedCaseError(f"optimizer {case.kernel!r} is not measured; adamw is")
    if case.gradient_dtype != case.parameter_dtype:
        raise UnsupportedCaseError("torch steps parameters with gradients of the same dtype only")
    size = case.elements // case.tensors
    if size * case.tensors != case.elements:
        raise UnsupportedCaseError(f"{case.elements} elements do not split into {case.tensors} tensors")
    dtype = torch_dtype(case.parameter_dtype)
    parameters = [
        torch.nn.Parameter(torch.randn(size, dtype=dtype, device=device.torch_device)) for _ in range(case.tensors)
    ]
    for parameter in parameters:
        # Small gradients keep the parameters finite over many steps.
        parameter.grad = torch.randn_like(parameter) * 1e-3
    optimizer, name = fused_adamw(parameters, device)
    return Launched(case=case, calls=(optimizer.step,), implementation=name)


def fused_adamw(parameters: list[torch.nn.Parameter], device: Device) -> tuple[torch.optim.Optimizer, str]:
    """Returns the fastest AdamW available, and its name. apex has fp32 moments whatever the parameters are, and
    refuses where it was installed without its CUDA extensions (apex/optimizers/fused_adam.py)."""
    whole = parameters[0].dtype is torch.float32
    apex = optional_package("apex.optimizers") if device.kind == "cuda" and whole else None
    if apex is not None:
        with contextlib.suppress(RuntimeError, ImportError):
            return apex.FusedAdam(parameters, lr=1e-5, weight_decay=0.1), "apex FusedAdam"
    return torch.optim.AdamW(parameters, lr=1e-5, weight_decay=0.1, fused=True), "torch AdamW fused"
