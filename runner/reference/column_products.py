"""Products of the tokens of all ranks of tp that keep this rank's tokens alone and gather the rest again in the
backward, beside the input gradient (Korthikanti et al., arXiv 2205.05198 sec. 4.2.2)."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Function
from torch.distributed.tensor import DTensor

from profiler.benchmarks.torch_collectives import renamed

Group = dist.ProcessGroup
Project = Callable[[Tensor, Sequence[nn.Linear]], tuple[Tensor, ...]]
"""What several linears make of the same tokens."""


def one_by_one(states: Tensor, linears: Sequence[nn.Linear]) -> tuple[Tensor, ...]:
    """Each on what it is given."""
    return tuple(linear(states) for linear in linears)


def regathering(group: Group) -> Project:
    """Linears cut by column over ``group``, on [batch, own tokens, hidden] to [batch, all tokens, own columns]."""

    def project(states: Tensor, linears: Sequence[nn.Linear]) -> tuple[Tensor, ...]:
        weights = [_local(linear.weight) for linear in linears]
        outputs: tuple[Tensor, ...] = _Products.apply(_local(states), group, *weights)  # type: ignore[no-untyped-call]
        return tuple(
            output if linear.bias is None else output + _local(linear.bias)
            for output, linear in zip(outputs, linears, strict=True)
        )

    return project


class _Products(Function):
    @staticmethod
    def forward(ctx: Any, own: Tensor, group: Group, *weights: Tensor) -> tuple[Tensor, ...]:
        ctx.group = group
        ctx.save_for_backward(own, *weights)
        blocks, gathering = _gather(own, group)
        gathering.wait()
        states = _joined(blocks)
        return tuple(states @ weight.t() for weight in weights)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        own, *weights = ctx.saved_tensors
        blocks, gathering = _gather(own, ctx.group)
        entering = gradients[0] @ weights[0]
        for gradient, weight in zip(gradients[1:], weights[1:], strict=True):
            entering += gradient @ weight
        gathering.wait()
        ranks = dist.get_world_size(ctx.group)
        apart = torch.stack(entering.chunk(ranks, dim=1)).flatten(0, 1)
        own_gradient = torch.empty_like(own, memory_format=torch.contiguous_format)
        scatter = renamed("reduce_scatter_single", "reduce_scatter_tensor")
        scattering = scatter(own_gradient, apart, group=ctx.group, async_op=True)
        rows = _joined(blocks).flatten(0, 1)
        of_weights = [gradient.flatten(0, 1).t() @ rows for gradient in gradients]
        scattering.wait()
        return own_gradient, None, *of_weights


def _gather(own: Tensor, group: Group) -> tuple[Tensor, Any]:
    """[ranks, batch, tokens, hidden], there when the second is waited for."""
    blocks = own.new_empty((dist.get_world_size(group), *own.shape))
    gather = renamed("all_gather_single", "all_gather_into_tensor")
    return blocks, gather(blocks.flatten(0, 1), own.contiguous(), group=group, async_op=True)


def _joined(blocks: Tensor) -> Tensor:
    """[batch, tokens of all ranks, hidden]."""
    return blocks.transpose(0, 1).flatten(1, 2)


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
