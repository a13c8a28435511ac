"""AdamW over what this rank holds, alone or with its state cut by ZeRO stage 1."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor
from torch.optim import AdamW, Optimizer

from runner.training.data_parallel import local
from runner.training.meshes import Group

LEARNING_RATE = 3e-4
"""Llama 2 7B's (arXiv 2307.09288 sec. 2.2), as its betas and weight decay below. No time depends on them."""
BETAS = (0.9, 0.95)
WEIGHT_DECAY = 0.1


class WideAdamW(AdamW):
    """AdamW that keeps an fp32 copy of narrower parameters and updates them through it (mixed precision training,
    arXiv 1710.03740 sec. 3.1). One kernel updates a tensor, as frameworks' optimizers do and as is profiled and priced
    (profiler.benchmarks.optimizer); torch's default runs a dozen over each on a processor."""

    def __init__(self, params: Iterable[Any], **settings: Any) -> None:
        groups = list(params)
        narrow = [
            each for group in groups for each in (group["params"] if isinstance(group, dict) else [group])
        ]
        wide = [
            each if each.dtype is torch.float32 else nn.Parameter(each.detach().float()) for each in narrow
        ]
        self.pairs = list(zip(narrow, wide, strict=True))
        super().__init__(wide, fused=True, **settings)

    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """One update."""
        apart = [(narrow, wide) for narrow, wide in self.pairs if narrow is not wide]
        for narrow, wide in apart:
            wide.grad = None if narrow.grad is None else narrow.grad.float()
        done = super().step(closure)
        for narrow, wide in apart:
            narrow.data.copy_(wide)
            wide.grad = None
        return done


class LocalOptimizer:
    """An optimizer of this rank's parts of ``parameters``, so that it never sees how they are cut. ``shard`` are the
    ranks over which ZeRO stage 1 cuts its state."""

    def __init__(self, parameters: Iterable[nn.Parameter], shard: Group | None) -> None:
        self.pairs = [(each, _part(each)) for each in parameters]
        parts = [part for _, part in self.pairs]
        settings: dict[str, Any] = {"lr": LEARNING_RATE, "betas": BETAS, "weight_decay": WEIGHT_DECAY}
        self.optimizer: Optimizer
        if shard is None:
            self.optimizer = WideAdamW(parts, **settings)
        else:
            self.optimizer = ZeroRedundancyOptimizer(
                parts, optimizer_class=WideAdamW, process_group=shard, **settings
            )

    def step(self) -> None:
        """Update the parameters by their gradients, and forget these."""
        for parameter, part in self.pairs:
            if part is not parameter:
                part.grad = None if parameter.grad is None else local(parameter.grad)
        self.optimizer.step()
        for parameter, part in self.pairs:
            parameter.grad = part.grad = None


def _part(parameter: nn.Parameter) -> nn.Parameter:
    """A parameter that shares the memory of this rank's part."""
    return nn.Parameter(local(parameter.data)) if isinstance(parameter, DTensor) else parameter
