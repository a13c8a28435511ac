"""Collectives with a gradient, over plain torch.distributed, so that they run on gloo as on NCCL."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function

from profiler.benchmarks.torch_collectives import all_gather, reduce_scatter

Group = dist.ProcessGroup


class _AllToAll(Function):
    """Rows of dimension 0 to the ranks they are split for; the gradient goes back the same way."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, sent: list[int], received: list[int], group: Group) -> Tensor:
        ctx.splits = (sent, received, group)
        return _exchange(rows, sent, received, group)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        sent, received, group = ctx.splits
        return _exchange(gradients[0], received, sent, group), None, None, None


class _Gather(Function):
    """Every rank's block along a new dimension 0; the gradient is the sum of what all ranks make of one's block."""

    @staticmethod
    def forward(ctx: Any, block: Tensor, group: Group) -> Tensor:
        ctx.group = group
        gathered = block.new_empty((dist.get_world_size(group), *block.shape))
        all_gather(gathered.flatten(0, 1), block.contiguous(), group)
        return gathered

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        own = torch.empty_like(gradients[0][0], memory_format=torch.contiguous_format)
        reduce_scatter(own, gradients[0].contiguous().flatten(0, 1), ctx.group)
        return own, None


def all_to_all(rows: Tensor, sent: list[int], received: list[int], group: Group) -> Tensor:
    """``rows`` [sum(sent), ...], ``sent[r]`` of them to rank r of the group; [sum(received), ...] in rank order."""
    out: Tensor = _AllToAll.apply(rows, sent, received, group)  # type: ignore[no-untyped-call]
    return out


def all_to_all_equal(blocks: Tensor, group: Group) -> Tensor:
    """Block r of [ranks, ...] to rank r; gives [ranks, ...] in rank order."""
    ones = [1] * dist.get_world_size(group)
    return all_to_all(blocks, ones, ones, group)


def gathered(block: Tensor, group: Group) -> Tensor:
    """[...] of every rank as [ranks, ...]."""
    out: Tensor = _Gather.apply(block, group)  # type: ignore[no-untyped-call]
    return out


def _exchange(rows: Tensor, sent: list[int], received: list[int], group: Group) -> Tensor:
    arrived = rows.new_empty((sum(received), *rows.shape[1:]))
    dist.all_to_all_single(arrived, rows.contiguous(), received, sent, group=group)
    return arrived
