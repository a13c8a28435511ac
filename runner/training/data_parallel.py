"""Data parallelism of a training run: the groups of its ranks, replicated and sharded stages, and the optimizer.

Ranks are in the order tp, cp, dp, pp from the fastest. torch's own APIs get device meshes, the rest process groups.
"""

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

from runner.reference.layers import SelfAttention, local
from runner.reference.transformer import Block, RoutedFeedForward, Stage
from solver.plans.plan_table import Plan
from spec.frameworks import framework_preset

Group = dist.ProcessGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class Meshes:
    """Device meshes and groups of this rank. ``whole`` has the axes pp, replicate, shard and tp; ``replicate`` x
    ``shard`` are the dp x cp data ranks, and the ranks of ``shard`` share one copy of what ZeRO shards.
    ``experts_data`` are the ranks with the same experts (a mesh of its own, of one axis). A group of one rank is None.
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
        """The submesh along these axes."""
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
        device_type, (plan.pp, data // shard, shard, plan.tp), mesh_dim_names=("pp", "replicate", "shard", "tp")
    )
    # Ranks as [pp, dp, cp, tp]. Each group below moves its own axes last and flattens the others: one row per group.
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
    """The group of this rank; None for groups of one."""
    if len(groups[0]) == 1:
        return None
    # Every rank creates all groups, also those that it is not in, in the same order (torch.distributed.new_group).
    own_group = None
    for ranks in groups:
        group = dist.new_group(list(ranks), group_desc=name)
        own_group = group if dist.get_rank() in ranks else own_group
    return own_group


def _experts_data(experts: torch.Tensor, device_type: str) -> DeviceMesh:
    """The mesh of the ranks with this rank's experts; ``experts`` are all ranks, [stage, ranks with the same experts, ep]."""
    by_copy = experts.permute(0, 2, 1).reshape(-1, experts.shape[1])
    mesh = DeviceMesh(device_type, by_copy, mesh_dim_names=("experts", "experts_data"))
    return mesh["experts_data"]


# Replicas of a stage: DistributedDataParallel, FSDP2, and gradients that neither reduces.
#
# ZeRO (arXiv 1910.02054 sec. 5) stage 1 is the optimizer's (below); stages 2 and 3 are FSDP2 with
# ``reshard_after_forward`` off and on. Gradients are means over the dp x cp ranks, which all have as many tokens.

BUCKET_BYTES = 25 << 20
"""Bytes of gradients reduced together: the size of DistributedDataParallel's buckets (its bucket_cap_mb)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientSum:
    """Gradients to all-reduce over a group after the backward, and to divide."""

    parameters: Sequence[nn.Parameter]
    group: Group | None
    divisor: int


OptimizerShard = tuple[Sequence[nn.Parameter], Group | None]
"""Parameters, and the group over which their optimizer state is sharded; None: every rank has all of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataParallelism:
    """Replicates or shards the stages of a plan; ``compute`` and ``reduce`` are the formats in which FSDP2 computes and
    reduces. Embedding and head stay gathered between the passes if they do in the plan's framework."""

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
    def mesh(self) -> DeviceMesh:
        """The data ranks over which FSDP2 shards, and between whose groups it reduces."""
        axes = ("shard",) if self.ranks == self.plan.zero_size else ("replicate", "shard")
        return self.meshes.axis(*axes)

    @property
    def overlaps(self) -> bool:
        """True if DistributedDataParallel overlaps the reduction with the backward. It does not support DTensor
        parameters, and torch's schedules other than 1F1B make it reduce twice, which its reducer refuses."""
        plain = self.plan.vpp == 1 and not self.plan.schedule.traits.splits_backward
        return self.ranks > 1 and not self.sharded and self.plan.tp == 1 and plain

    def shard_parts(self, *parts: nn.Module) -> None:
        """Make a block, the embedding, or norm and head, one unit of FSDP2 (as in torchtitan,
        torchtitan/models/llama3/infra/parallelize.py, apply_fsdp); experts are a unit of their own."""
        if not self.sharded:
            return
        policy = MixedPrecisionPolicy(param_dtype=self.compute, reduce_dtype=self.reduce)
        reshard = self.plan.zero_stage == 3
        keeps_ends = framework_preset(self.plan.preset).data_parallel.gathers_every_forward
        mesh_of_experts = self.meshes.experts_data
        routed = [layer for part in parts for layer in _routed(part)] if mesh_of_experts is not None else []
        # Experts first: fully_shard of the block then leaves them alone. Their mesh has fewer ranks than the block's,
        # but their gradients hold all ranks' tokens, so these are divided by as many ranks as the block's.
        for layer in routed:
            experts = fully_shard(layer.experts, mesh=mesh_of_experts, reshard_after_forward=reshard, mp_policy=policy)
            if mesh_of_experts is not None and mesh_of_experts.size() > 1:
                experts.set_gradient_divide_factor(float(self.ranks))
                experts.set_force_sum_reduction_for_comms(True)  # gloo knows no sum with a factor
        reshard_part = reshard and not (keeps_ends and not isinstance(parts[0], Block))
        fully_shard(list(parts), mesh=self.mesh, reshard_after_forward=reshard_part, mp_policy=policy)

    def wrap(self, stage: Stage) -> nn.Module:
        """The stage as it is run: under FSDP2, under DistributedDataParallel, or as it is."""
        if self.sharded:
            fully_shard(stage, mesh=self.mesh, reshard_after_forward=False)
            return stage
        if not self.overlaps:
            return stage
        expert_ids = {id(each) for each in self._experts(stage)}
        names = [name for name, each in stage.named_parameters() if id(each) in expert_ids]
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(stage, names)  # type: ignore[no-untyped-call]
        return DistributedDataParallel(stage, process_group=self.meshes.data, init_sync=False)

    def gradient_sums(self, stage: Stage) -> list[GradientSum]:
        """The reductions that are left after the backward.

        Experts' gradients already hold the tokens of all ranks of ep, so they are summed over the ranks with the same
        experts alone, and divided by the same number as the others. Under tensor parallelism a router's gradient holds
        this rank's tokens, and that of the norms of queries and keys this rank's heads.
        """
        experts = self._experts(stage)
        shared = [*self._routers(stage), *_head_norms(stage)] if self.plan.tp > 1 else []
        result = [GradientSum(parameters=shared, group=self.meshes.tp, divisor=1)] if shared else []
        mesh = self.meshes.experts_data
        if experts and mesh is not None and not (self.sharded and mesh.size() > 1):
            group = mesh.get_group() if mesh.size() > 1 else None
            result.append(GradientSum(parameters=experts, group=group, divisor=self.ranks))
        if self.sharded:
            return result
        if self.ranks > 1 and not self.overlaps:
            expert_ids = {id(parameter) for parameter in experts}
            dense = [parameter for parameter in stage.parameters() if id(parameter) not in expert_ids]
            result.append(GradientSum(parameters=dense, group=self.meshes.data, divisor=self.ranks))
        return result

    def optimizer_shards(self, stage: Stage) -> list[OptimizerShard]:
        """Parameters of the optimizers; under ZeRO stage 1 their state is sharded over the ranks with the same ones."""
        experts = self._experts(stage)
        expert_ids = {id(parameter) for parameter in experts}
        dense = [parameter for parameter in stage.parameters() if id(parameter) not in expert_ids]
        if self.plan.zero_stage != 1:
            return [([*dense, *experts], None)]
        mesh = self.meshes.experts_data
        edp = mesh.get_group() if mesh is not None and mesh.size() > 1 else None
        return [(dense, self.meshes.shard), (experts, edp)]

    def _experts(self, stage: Stage) -> list[nn.Parameter]:
        if self.meshes.experts_data is None:
            return []
        return [each for layer in _routed(stage) for each in layer.experts.parameters()]

    def _routers(self, stage: Stage) -> list[nn.Parameter]:
        return [each for layer in _routed(stage) for each in layer.router.parameters()]


def match_placements(parameters: Iterable[nn.Parameter]) -> None:
    """Give gradients the placements of their parameters: a backward may leave them replicated or as partial sums."""
    for each in parameters:
        parameter, gradient = each.data, each.grad
        if not isinstance(parameter, DTensor) or not isinstance(gradient, DTensor):
            continue
        if gradient.placements != parameter.placements:
            each.grad = gradient.redistribute(placements=parameter.placements)


def reduce_gradients(gradient_sums: Sequence[GradientSum]) -> None:
    """All-reduce gradients in buckets, and divide them."""
    for each in gradient_sums:
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
    """Gradients in their order, in buckets of up to BUCKET_BYTES; a larger gradient is a bucket of its own."""
    buckets: list[list[Tensor]] = []
    filled = BUCKET_BYTES
    for gradient in gradients:
        if filled + gradient.nbytes > BUCKET_BYTES:
            buckets.append([])
            filled = 0
        buckets[-1].append(gradient)
        filled += gradient.nbytes
    return buckets


def _head_norms(stage: nn.Module) -> list[nn.Parameter]:
    norms = [norm for each in stage.modules() if isinstance(each, SelfAttention) for norm in (each.q_norm, each.k_norm)]
    return [weight for norm in norms if norm is not None for weight in norm.parameters()]


def _routed(stage: nn.Module) -> list[RoutedFeedForward]:
    return [each for each in stage.modules() if isinstance(each, RoutedFeedForward)]


# AdamW over this rank's parameters, with or without its state sharded (ZeRO stage 1).

LEARNING_RATE = 3e-4
"""Of Llama 2 7B (arXiv 2307.09288 sec. 2.2), as the betas and the weight decay. No time depends on them."""
BETAS = (0.9, 0.95)
WEIGHT_DECAY = 0.1


class MasterWeightAdamW(AdamW):
    """AdamW with fp32 master weights of low-precision parameters (mixed precision training, arXiv 1710.03740 sec. 3.1).
    It is fused, one kernel per tensor, as in frameworks and as profiled (profiler.benchmarks.optimizer); torch's default
    runs a dozen kernels per tensor on a CPU."""

    def __init__(self, params: Iterable[Any], **settings: Any) -> None:
        groups = list(params)
        parameters = [each for group in groups for each in (group["params"] if isinstance(group, dict) else [group])]
        masters = [each if each.dtype is torch.float32 else nn.Parameter(each.detach().float()) for each in parameters]
        self.pairs = list(zip(parameters, masters, strict=True))
        super().__init__(masters, fused=True, **settings)

    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """One update."""
        # An fp32 parameter is its own master weight.
        low_precision = [(parameter, master) for parameter, master in self.pairs if parameter is not master]
        for parameter, master in low_precision:
            master.grad = None if parameter.grad is None else parameter.grad.float()
        result = super().step(closure)
        for parameter, master in low_precision:
            parameter.data.copy_(master)
            master.grad = None
        return result


class LocalOptimizer:
    """An optimizer over this rank's parts of ``parameters``: plain tensors, also where these are DTensors. ZeRO stage 1
    shards its state over ``shard``."""

    def __init__(self, parameters: Iterable[nn.Parameter], shard: Group | None) -> None:
        self.pairs = [(each, _part(each)) for each in parameters]
        parts = [part for _, part in self.pairs]
        settings: dict[str, Any] = {"lr": LEARNING_RATE, "betas": BETAS, "weight_decay": WEIGHT_DECAY}
        self.optimizer: Optimizer
        if shard is None:
            self.optimizer = MasterWeightAdamW(parts, **settings)
        else:
            self.optimizer = ZeroRedundancyOptimizer(
                parts, optimizer_class=MasterWeightAdamW, process_group=shard, **settings
            )

    def step(self) -> None:
        """Update the parameters by their gradients, and drop these."""
        for parameter, part in self.pairs:
            if part is not parameter:
                part.grad = None if parameter.grad is None else local(parameter.grad)
        self.optimizer.step()
        for parameter, part in self.pairs:
            parameter.grad = part.grad = None


def _part(parameter: nn.Parameter) -> nn.Parameter:
    """A parameter that shares the memory of this rank's part."""
    return nn.Parameter(local(parameter.data)) if isinstance(parameter, DTensor) else parameter
