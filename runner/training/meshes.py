"""The groups of a plan's ranks, in the order tp, cp, dp, pp from the fastest: device meshes for what torch's own
APIs cut, process groups for the rest."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from solver.plans.plan_table import Plan

Group = dist.ProcessGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class Meshes:
    """Where this rank stands. ``whole`` has the axes pp, replicate, shard and tp; ``replicate`` x ``shard``
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
