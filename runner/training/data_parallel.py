"""The groups of a plan's ranks, in the order tp, cp, dp, pp from the fastest: device meshes for what torch's own
APIs cut, process groups for the rest."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW, Optimizer

from runner.reference.layers import SelfAttention
from runner.reference.transformer import Block, RoutedFeedForward, Stage
from solver.plans.plan_table import Plan
from spec.frameworks import framework_preset

Group = dist.ProcessGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class Meshes:
    """Device meshes of this rank. ``whole`` has the axes pp, replicate, shard and tp; ``replicate`` x ``shard``
    are the data ranks, dp x cp of them, and ``shard`` those that share one copy of what ZeRO cuts. A group is
    None where it would hold one rank; ``experts_data`` are the ranks with the same experts (a mesh of its
    own, of one axis).
    """

    whole: DeviceMesh | None
    data: Group | None
    cp: Group | None
    shard: Group | None
    experts: Group | None
    experts_data: DeviceMesh | None
    data_rank: int = 0
    stage: int = 0

    def axis(self, *names: str) -> DeviceMesh:
        """The part of the mesh along these axes."""
        assert self.whole is not None, "one process has no mesh"
        return self.whole[names]

    @property
    def tp(self) -> Group | None:
        """Ranks that share each layer."""
        return self._group("tp")

    @property
    def pp(self) -> Group | None:
        """Ranks that hold the stages of one pipeline."""
        return self._group("pp")

    def _group(self, name: str) -> Group | None:
        if self.whole is None or self.axis(name).size() == 1:
            return None
        return self.axis(name).get_group()


ALONE = Meshes(whole=None, data=None, cp=None, shard=None, experts=None, experts_data=None)


def meshes_of(plan: Plan, device_type: str) -> Meshes:
    """The groups of a plan; every rank of the world calls this."""
    if plan.world_size == 1:
        return ALONE
    data = plan.dp * plan.cp
    shard = plan.zero_size if plan.zero_stage >= 1 else 1
    whole = init_device_mesh(
        device_type,
        (plan.pp, data // shard, shard, plan.tp),
        mesh_dim_names=("pp", "replicate", "shard", "tp"),
    )
    # [pp, dp, cp, tp]
    ranks = torch.arange(plan.world_size).view(plan.pp, plan.dp, plan.cp, plan.tp)
    rank = dist.get_rank()
    stage_ranks = plan.world_size // plan.pp
    experts = ranks.view(plan.pp, stage_ranks // plan.ep, plan.ep)
    return Meshes(
        whole=whole,
        data=_own(ranks.permute(0, 3, 1, 2).reshape(-1, data).tolist(), "dp-cp"),
        cp=_own(ranks.permute(0, 1, 3, 2).reshape(-1, plan.cp).tolist(), "cp"),
        shard=_own(ranks.permute(0, 3, 1, 2).reshape(-1, shard).tolist(), "zero-shard"),
        experts=_own(experts.reshape(-1, plan.ep).tolist(), "ep"),
        experts_data=_experts_data(experts, device_type) if plan.ep > 1 or plan.tp > 1 else None,
        data_rank=rank // (plan.tp * plan.cp) % plan.dp,
        stage=rank // stage_ranks,
    )


def _own(groups: Sequence[Sequence[int]], name: str) -> Group | None:
    """The group of this rank, all made by every rank in the same order; None for groups of one."""
    if len(groups[0]) == 1:
        return None
    own = None
    for ranks in groups:
        made = dist.new_group(list(ranks), group_desc=name)
        own = made if dist.get_rank() in ranks else own
    return own


def _experts_data(experts: torch.Tensor, device_type: str) -> DeviceMesh:
    """``experts`` are ranks by [stage, ranks with the same experts, ep]."""
    by_copy = experts.permute(0, 2, 1).reshape(-1, experts.shape[1])
    mesh = DeviceMesh(device_type, by_copy, mesh_dim_names=("experts", "experts_data"))
    return mesh["experts_data"]


# Copies of a stage kept equal: DistributedDataParallel, FSDP2, and what neither sees.
#
# ZeRO (arXiv 1910.02054 sec. 5) stage 1 is the optimizer's (below); stages 2 and 3 are FSDP2 with
# ``reshard_after_forward`` off and on. Gradients are means over the dp x cp ranks, each of which has as many tokens.

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
    """Replication and sharding of the stages of a plan; formats in which FSDP2 computes and reduces. Where the plan's
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
        """True if gradients, or parameters as well, are sharded."""
        return self.plan.zero_stage >= 2

    @property
    def overlaps(self) -> bool:
        """True if DistributedDataParallel reduces gradients beside the backward. It takes no layer that is cut by
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
        keeps_ends = framework_preset(self.plan.preset).data_parallel.gathers_every_forward
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
        """Returns what is left to add up after the backward.

        Experts' gradients hold their tokens of all ranks of ep already, so they are added up over the copies of the
        experts alone and divided by the same number as the others. Under tensor parallelism the router's hold
        each rank's share of the tokens, and those of norms of queries and keys its share of the heads.
        """
        experts = self._experts(stage)
        shared = [*self._routers(stage), *_head_norms(stage)] if self.plan.tp > 1 else []
        result = [Sum(parameters=shared, group=self.meshes.tp, divisor=1)] if shared else []
        copies = self.meshes.experts_data
        if experts and copies is not None and not (self.sharded and copies.size() > 1):
            group = copies.get_group() if copies.size() > 1 else None
            result.append(Sum(parameters=experts, group=group, divisor=self.ranks))
        if self.sharded:
            return result
        if self.ranks > 1 and not self.overlaps:
            apart = {id(each) for each in experts}
            dense = [each for each in stage.parameters() if id(each) not in apart]
            result.append(Sum(parameters=dense, group=self.meshes.data, divisor=self.ranks))
        return result

    def states(self, stage: Stage) -> list[State]:
        """Parameters of the optimizers: under ZeRO stage 1 cut over the ranks with the same parameters."""
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
    for each in sums:
        gradients = [local(each.grad) for each in each.parameters if each.grad is not None]
        for bucket in buckets_of(gradients):
            flat = torch.cat([each.flatten() for each in bucket])
            if each.group is not None:
                dist.all_reduce(flat, group=each.group)
            flat /= each.divisor
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
    norms = [norm for each in stage.modules() if isinstance(each, SelfAttention) for norm in (each.q_norm, each.k_norm)]
    return [weight for norm in norms if norm is not None for weight in norm.parameters()]


def _routed(stage: nn.Module) -> list[RoutedFeedForward]:
    return [each for each in stage.modules() if isinstance(each, RoutedFeedForward)]


# AdamW over what this rank holds, alone or with its state cut by ZeRO stage 1.

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
        narrow = [each for group in groups for each in (group["params"] if isinstance(group, dict) else [group])]
        wide = [each if each.dtype is torch.float32 else nn.Parameter(each.detach().float()) for each in narrow]
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
            self.optimizer = ZeroRedundancyOptimizer(parts, optimizer_class=WideAdamW, process_group=shard, **settings)

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
