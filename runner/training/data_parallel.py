"""Copies of a stage kept equal: DistributedDataParallel, FSDP2, and what neither sees.

ZeRO (arXiv 1910.02054 sec. 5) stage 1 is the optimizer's (runner.training.optimizer); stages 2 and 3 are FSDP2 with
``reshard_after_forward`` off and on. Gradients are means over the dp x cp ranks, each of which has as many tokens.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from runner.reference.attention import SelfAttention
from runner.reference.experts import RoutedFeedForward
from runner.reference.transformer import Block, Stage
from runner.training.meshes import Group, Meshes
from solver.plans.plan_table import Plan
from spec.presets.registry import PRESETS

BUCKET_BYTES = 25 << 20
"""Of gradients reduced together: the size of DistributedDataParallel's buckets (its bucket_cap_mb)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sum:
    """Gradients to be added up over a group after the backward, and divided."""

    parameters: Sequence[nn.Parameter]
    group: Group | None
    divisor: int


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """Parameters whose optimizer state is cut over a group; None: each rank keeps its own."""

    parameters: Sequence[nn.Parameter]
    group: Group | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Copies:
    """How the stages of a plan are copied and sharded; formats in which FSDP2 computes and reduces. Where the plan's
    framework keeps the parameters of embedding and head between the passes, these do."""

    plan: Plan
    meshes: Meshes
    compute: torch.dtype
    reduce: torch.dtype

    @property
    def ranks(self) -> int:
        """Ranks with data of their own."""
        return self.plan.dp * self.plan.cp

    @property
    def sharded(self) -> bool:
        """Whether gradients, or parameters as well, lie in shards."""
        return self.plan.zero_stage >= 2

    @property
    def overlaps(self) -> bool:
        """Whether DistributedDataParallel reduces gradients beside the backward. It takes no layer that is cut by
        DTensor, and torch's schedules other than 1F1B let it reduce twice (its reducer then stops with an error)."""
        plain = self.plan.vpp == 1 and not self.plan.schedule.splits_backward
        return self.ranks > 1 and not self.sharded and self.plan.tp == 1 and plain

    def shard_parts(self, *parts: nn.Module) -> None:
        """Make a block, the embedding, or the norm with the head one unit of FSDP2 (torchtitan's,
        torchtitan/models/llama3/infra/parallelize.py, apply_fsdp), its experts one of their own."""
        if not self.sharded:
            return
        axes = ("shard",) if self.ranks == self.plan.zero_size else ("replicate", "shard")
        policy = MixedPrecisionPolicy(param_dtype=self.compute, reduce_dtype=self.reduce)
        reshard = self.plan.zero_stage == 3
        keeps_ends = PRESETS[self.plan.preset].data_parallel.gathers_every_forward
        copies = self.meshes.experts_data
        routed = [layer for part in parts for layer in _routed(part)] if copies is not None else []
        for layer in routed:
            experts = fully_shard(layer.experts, mesh=copies, reshard_after_forward=reshard, mp_policy=policy)
            if copies is not None and copies.size() > 1:
                experts.set_gradient_divide_factor(float(self.ranks))
                experts.set_force_sum_reduction_for_comms(True)  # gloo knows no sum with a factor
        lets_go = reshard and not (keeps_ends and not isinstance(parts[0], Block))
        mesh = self.meshes.axis(*axes)
        fully_shard(list(parts), mesh=mesh, reshard_after_forward=lets_go, mp_policy=policy)

    def wrap(self, stage: Stage) -> nn.Module:
        """The stage as a pipeline or a loop runs it."""
        if self.sharded:
            axes = ("shard",) if self.ranks == self.plan.zero_size else ("replicate", "shard")
            fully_shard(stage, mesh=self.meshes.axis(*axes), reshard_after_forward=False)
            return stage
        if not self.overlaps:
            return stage
        apart = {id(each) for each in self._experts(stage)}
        names = [name for name, each in stage.named_parameters() if id(each) in apart]
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(stage, names)  # type: ignore[no-untyped-call]
        return DistributedDataParallel(stage, process_group=self.meshes.data, init_sync=False)

    def sums(self, stage: Stage) -> list[Sum]:
        """What is left to add up after the backward.

        Experts' gradients hold their tokens of all ranks of ep already, so they are added up over the copies of the
        experts alone and divided by the same number as the others. Under tensor parallelism the router's hold
        each rank's share of the tokens, and those of norms of queries and keys its share of the heads.
        """
        experts = self._experts(stage)
        shared = [*self._routers(stage), *_head_norms(stage)] if self.plan.tp > 1 else []
        found = [Sum(parameters=shared, group=self.meshes.tp, divisor=1)] if shared else []
        copies = self.meshes.experts_data
        if experts and copies is not None and not (self.sharded and copies.size() > 1):
            group = copies.get_group() if copies.size() > 1 else None
            found.append(Sum(parameters=experts, group=group, divisor=self.ranks))
        if self.sharded:
            return found
        if self.ranks > 1 and not self.overlaps:
            apart = {id(each) for each in experts}
            dense = [each for each in stage.parameters() if id(each) not in apart]
            found.append(Sum(parameters=dense, group=self.meshes.data, divisor=self.ranks))
        return found

    def states(self, stage: Stage) -> list[State]:
        """What the optimizers hold: under ZeRO stage 1 cut over the ranks with the same parameters."""
        apart = {id(each) for each in self._experts(stage)}
        dense = [each for each in stage.parameters() if id(each) not in apart]
        experts = [each for each in stage.parameters() if id(each) in apart]
        if self.plan.zero_stage != 1:
            return [State(parameters=[*dense, *experts], group=None)]
        copies = self.meshes.experts_data
        edp = copies.get_group() if copies is not None and copies.size() > 1 else None
        return [State(parameters=dense, group=self.meshes.shard), State(parameters=experts, group=edp)]

    def _experts(self, stage: Stage) -> list[nn.Parameter]:
        if self.meshes.experts_data is None:
            return []
        return [each for layer in _routed(stage) for each in layer.experts.parameters()]

    def _routers(self, stage: Stage) -> list[nn.Parameter]:
        return [each for layer in _routed(stage) for each in layer.router.parameters()]


def place(parameters: Iterable[nn.Parameter]) -> None:
    """Cut gradients as their parameters are: a backward may leave them whole, or as parts to be added up."""
    for each in parameters:
        held, gradient = each.data, each.grad
        if not isinstance(held, DTensor) or not isinstance(gradient, DTensor):
            continue
        if gradient.placements != held.placements:
            each.grad = gradient.redistribute(placements=held.placements)


def add_up(sums: Sequence[Sum]) -> None:
    """Reduce gradients, in buckets."""
    for asked in sums:
        gradients = [local(each.grad) for each in asked.parameters if each.grad is not None]
        for bucket in buckets_of(gradients):
            flat = torch.cat([each.flatten() for each in bucket])
            if asked.group is not None:
                dist.all_reduce(flat, group=asked.group)
            flat /= asked.divisor
            parts = torch.split(flat, [each.numel() for each in bucket])
            for gradient, reduced in zip(bucket, parts, strict=True):
                gradient.copy_(reduced.view_as(gradient))


def buckets_of(gradients: Sequence[Tensor]) -> list[list[Tensor]]:
    """Neighbours together, up to BUCKET_BYTES or one alone."""
    buckets: list[list[Tensor]] = []
    filled = BUCKET_BYTES
    for gradient in gradients:
        if filled + gradient.nbytes > BUCKET_BYTES:
            buckets.append([])
            filled = 0
        buckets[-1].append(gradient)
        filled += gradient.nbytes
    return buckets


def local(tensor: Tensor) -> Tensor:
    """This rank's part of what may be cut."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _head_norms(stage: nn.Module) -> list[nn.Parameter]:
    norms = [
        norm
        for each in stage.modules()
        if isinstance(each, SelfAttention)
        for norm in (each.q_norm, each.k_norm)
    ]
    return [weight for norm in norms if norm is not None for weight in norm.parameters()]


def _routed(stage: nn.Module) -> list[RoutedFeedForward]:
    return [each for each in stage.modules() if isinstance(each, RoutedFeedForward)]
