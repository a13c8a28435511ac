"""Benchmark: collectives in every group of a tiling at the same time, and messages between neighbours.

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
    """This rank in its group: the global ranks of the group, its own global rank, and the torch handle."""

    ranks: tuple[int, ...]
    rank: int
    handle: Any
    where: torch.device


def launch_collective(case: CollectiveCase, world: World) -> Launched:
    """Returns the collective on buffers of the case's real size on this rank, in every group at once.

    Raises UnsupportedCaseError when this world cannot form the case's groups, or the backend lacks the operation.
    """
    dtype = torch_dtype(case.dtype)
    tiling = tiling_for(case, world)
    ranks = tiling.group_of(world.rank)
    member = GroupMember(ranks=ranks, rank=world.rank, handle=world.group_for(tiling), where=world.device.torch_device)
    elements = whole_elements(case)
    # With fewer siblings than fit, only the first groups of each domain communicate.
    works = tiling.slot_of(world.rank) < case.siblings
    call = CALLS[case.collective](member, elements, dtype) if works else rest
    name = f"torch {world.backend} {case.collective.value}"
    # ``message_call`` sends a message and receives one, so a call is two messages.
    operations = 2 if case.collective is Collective.P2P else 1
    return Launched(case=case, calls=(call,), implementation=name, collective=True, operations=operations)


def rest() -> None:
    """Does nothing, on a rank outside the active groups; the slowest rank's time counts."""


def tiling_for(case: GroupedCase, world: World) -> GroupTiling:
    """Returns the groups of the case on this world; raises UnsupportedCaseError when they do not tile it."""
    domains = world.size // world.domain_ranks
    reason = why_untiled(case, world.domain_ranks, domains)
    if reason:
        raise UnsupportedCaseError(reason)
    return tile(case.intra, case.inter, world.domain_ranks, domains)


def tilings_of(cases: Sequence[Case], world: World) -> list[GroupTiling]:
    """Returns the tilings that the collectives among ``cases`` need, each once. Cases that this world cannot form are
    left out; launching them reports the reason."""
    result: dict[GroupTiling, None] = {}
    for case in cases:
        if isinstance(case, GroupedCase):
            with contextlib.suppress(UnsupportedCaseError):
                result[tiling_for(case, world)] = None
    return list(result)


def whole_elements(case: CollectiveCase | OverlapCase) -> int:
    """Returns the elements of the whole array; raises UnsupportedCaseError when the bytes do not divide evenly.

    Sizes are multiples of the group's ranks x dtype (profiler.cases.collective_cases rounds them up), so that the
    launched size is the stored size.
    """
    width = int(dtype_bytes(case.dtype))
    ranks = case.intra * case.inter
    # A message is one part, whatever the group; the others are divided by the ranks.
    parts = 1 if case.collective is Collective.P2P else ranks
    if case.size_bytes < 1 or case.size_bytes % (width * parts):
        raise UnsupportedCaseError(f"{case.size_bytes} bytes do not split over {parts} ranks of {case.dtype}")
    return case.size_bytes // width


def random_buffer(elements: int, member: GroupMember, dtype: torch.dtype) -> torch.Tensor:
    """Returns a buffer of random numbers: compression on a link, and power, distinguish zeros from data."""
    return torch.rand(elements, device=member.where).to(dtype)


def all_reduce_call(member: GroupMember, elements: int, dtype: torch.dtype) -> Call:
    """Returns the sum of one buffer, in place; that sums of sums overflow does not change the time."""
    buffer = random_buffer(elements, member, dtype)
    return lambda: torch_collectives.all_reduce(buffer, member.handle)


def all_gather_call(member: GroupMember, elements: int, dtype: torch.dtype) -> Call:
    """Returns the gathering of the whole array from the members' parts."""
    whole = random_buffer(elements, member, dtype)
    part = random_buffer(elements // len(member.ranks), member, dtype)
    return lambda: torch_collectives.all_gather(whole, part, member.handle)


def reduce_scatter_call(member: GroupMember, elements: int, dtype: torch.dtype) -> Call:
    """Returns the reduction of the members' whole arrays to this member's part of the sum."""
    whole = random_buffer(elements, member, dtype)
    part = random_buffer(elements // len(member.ranks), member, dtype)
    return lambda: torch_collectives.reduce_scatter(part, whole, member.handle)


def all_to_all_call(member: GroupMember, elements: int, dtype: torch.dtype) -> Call:
    """Returns the exchange of equal parts of one buffer with every member."""
    sent, received = random_buffer(elements, member, dtype), random_buffer(elements, member, dtype)
    return lambda: torch_collectives.all_to_all(received, sent, member.handle)


def broadcast_call(member: GroupMember, elements: int, dtype: torch.dtype) -> Call:
    """Returns the broadcast of the group's first rank's buffer."""
    buffer = random_buffer(elements, member, dtype)
    source = member.ranks[0]
    return lambda: torch_collectives.broadcast(buffer, source, member.handle)


def message_call(member: GroupMember, elements: int, dtype: torch.dtype) -> Call:
    """Returns a message from the first rank of a pair to the second, and one back: neither side can run ahead, as it
    could with messages in one direction, which wait in buffers."""
    if len(member.ranks) != 2:
        raise UnsupportedCaseError(f"a message joins two ranks, not {len(member.ranks)}")
    buffer = random_buffer(elements, member, dtype)
    first, second = member.ranks

    # One rank sends first and the other receives first: a pair of sends would deadlock without buffers.
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
