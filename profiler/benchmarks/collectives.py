"""Benchmark: collectives over every group of a tiling at once, and messages between neighbours.

``size_bytes`` is the whole array on one rank, as spec.collectives defines it: the output of an
all-gather, the input of a reduce-scatter, the buffer of the others, the message of a p2p.
"""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from profdb.cases import Case, CollectiveCase, GroupedCase, OverlapCase
from profiler.benchmarks import torch_collectives
from profiler.benchmarks.launched import Call, Launched, UnsupportedCaseError
from profiler.benchmarks.torch_dtypes import torch_dtype
from profiler.cases.group_tilings import GroupTiling, tile, why_untiled
from profiler.distributed.world import World
from spec.collectives import Collective
from spec.dtypes import dtype_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMember:
    """This rank in its group: global ``ranks`` of the group, its own, and the torch handle."""

    ranks: tuple[int, ...]
    rank: int
    handle: Any
    where: torch.device


def launch_collective(case: CollectiveCase, world: World) -> Launched:
    """Buffers of the case's real size on this rank and the collective on them, in every group at once.

    Raises UnsupportedCaseError when this world cannot form the case's groups, or the backend lacks
    the operation.
    """
    dtype = torch_dtype(case.dtype)
    tiling = tiling_for(case, world)
    ranks = tiling.group_of(world.rank)
    member = GroupMember(ranks=ranks, rank=world.rank, handle=world.group_for(tiling), where=world.device.torch_device)
    elements = whole_elements(case)
    works = tiling.slot_of(world.rank) < case.siblings
    call = CALLS[case.collective](member, elements, dtype) if works else rest
    name = f"torch {world.backend} {case.collective.value}"
    operations = 2 if case.collective is Collective.P2P else 1
    return Launched(case=case, calls=(call,), implementation=name, collective=True, operations=operations)


def rest() -> None:
    """Do nothing, on a rank outside the groups at work; the slowest rank's time counts."""


def tiling_for(case: GroupedCase, world: World) -> GroupTiling:
    """The groups of the case on this world; UnsupportedCaseError when they do not tile it."""
    domains = world.size // world.domain_ranks
    reason = why_untiled(case, world.domain_ranks, domains)
    if reason:
        raise UnsupportedCaseError(reason)
    return tile(case.intra, case.inter, world.domain_ranks, domains)


def tilings_of(cases: Sequence[Case], world: World) -> list[GroupTiling]:
    """The tilings that the collectives among ``cases`` need, each once; those that this world cannot form are
    left to the cases' own refusal."""
    result: dict[GroupTiling, None] = {}
    for case in cases:
        if isinstance(case, GroupedCase):
            with contextlib.suppress(UnsupportedCaseError):
                result[tiling_for(case, world)] = None
    return list(result)


def whole_elements(case: CollectiveCase | OverlapCase) -> int:
    """Elements of the whole array; UnsupportedCaseError when the bytes do not divide evenly.

    Sizes are multiples of the group's ranks x dtype (profiler.cases.collective_cases rounds them up), so
    that the launched size is the stored size.
    """
    width = int(dtype_bytes(case.dtype))
    ranks = case.intra * case.inter
    parts = 1 if case.collective is Collective.P2P else ranks
    if case.size_bytes < 1 or case.size_bytes % (width * parts):
        raise UnsupportedCaseError(f"{case.size_bytes} bytes do not split over {parts} ranks of {case.dtype}")
    return case.size_bytes // width


def random_buffer(elements: int, member: GroupMember, dtype: torch.dtype) -> torch.Tensor:
    """A buffer of random numbers: links that compress, and power, tell zeros from data."""
    return torch.rand(elements, device=member.where).to(dtype)


def all_reduce_call(member: GroupMember, elements: int, dtype: torch.dtype) -> Call:
    """Sum of one buffer, in place; that sums of sums leave the range of numbers changes no time."""
    buffer = random_buffer(elements, member, dtype)
    return lambda: torch_collectives.all_reduce(buffer, member.handle)


def all_gather_call(member: GroupMember, elements: int, dtype: torch.dtype) -> Call:
    """Whole array from the members' parts."""
    whole = random_buffer(elements, member, dtype)
    part = random_buffer(elements // len(member.ranks), member, dtype)
    return lambda: torch_collectives.all_gather(whole, part, member.handle)


def reduce_scatter_call(member: GroupMember, elements: int, dtype: torch.dtype) -> Call:
    """Part of the sum of the members' whole arrays."""
    whole = random_buffer(elements, member, dtype)
    part = random_buffer(elements // len(member.ranks), member, dtype)
    return lambda: torch_collectives.reduce_scatter(part, whole, member.handle)


def all_to_all_call(member: GroupMember, elements: int, dtype: torch.dtype) -> Call:
    """Equal parts of one buffer to every member."""
    sent, received = random_buffer(elements, member, dtype), random_buffer(elements, member, dtype)
    return lambda: torch_collectives.all_to_all(received, sent, member.handle)


def broadcast_call(member: GroupMember, elements: int, dtype: torch.dtype) -> Call:
    """One buffer of the group's first rank to the others."""
    buffer = random_buffer(elements, member, dtype)
    source = member.ranks[0]
    return lambda: torch_collectives.broadcast(buffer, source, member.handle)


def message_call(member: GroupMember, elements: int, dtype: torch.dtype) -> Call:
    """A message from the first rank of a pair to the second, and one back: neither side can run ahead, as it could
    with messages one way, which wait in buffers."""
    if len(member.ranks) != 2:
        raise UnsupportedCaseError(f"a message joins two ranks, not {len(member.ranks)}")
    buffer = random_buffer(elements, member, dtype)
    first, second = member.ranks

    def there() -> None:
        torch_collectives.send(buffer, second, member.handle)
        torch_collectives.receive(buffer, second, member.handle)

    def back() -> None:
        torch_collectives.receive(buffer, first, member.handle)
        torch_collectives.send(buffer, first, member.handle)

    return there if member.rank == first else back


CALLS: dict[Collective, Callable[[GroupMember, int, torch.dtype], Call]] = {
    Collective.ALL_REDUCE: all_reduce_call,
    Collective.ALL_GATHER: all_gather_call,
    Collective.REDUCE_SCATTER: reduce_scatter_call,
    Collective.ALL_TO_ALL: all_to_all_call,
    Collective.BROADCAST: broadcast_call,
    Collective.P2P: message_call,
}
