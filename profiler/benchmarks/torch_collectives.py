"""Collectives by the names that this release of torch has for them.

torch 2.13 renames ``all_gather_into_tensor`` and ``reduce_scatter_tensor`` to ``all_gather_single``
and ``reduce_scatter_single`` and warns about the old names; earlier releases know only those.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from profiler.benchmarks.launched import UnsupportedCaseError

Group = Any
"""torch.distributed.ProcessGroup: an opaque handle."""


def collective_by_name(successor: str, predecessor: str) -> Callable[..., Any]:
    """Returns the collective under whichever of its two names this torch has."""
    result: Callable[..., Any] | None = getattr(dist, successor, None) or getattr(dist, predecessor, None)
    if result is None:
        raise UnsupportedCaseError(f"torch {torch.__version__} has neither {successor} nor {predecessor}")
    return result


def all_reduce(buffer: torch.Tensor, group: Group) -> None:
    """Sums in place over the group."""
    dist.all_reduce(buffer, group=group)


def all_gather(whole: torch.Tensor, part: torch.Tensor, group: Group) -> None:
    """Gathers ``whole`` [n * p] from every member's ``part`` [p]."""
    collective_by_name("all_gather_single", "all_gather_into_tensor")(whole, part, group=group)


def reduce_scatter(part: torch.Tensor, whole: torch.Tensor, group: Group) -> None:
    """Reduces every member's ``whole`` [n * p] to this member's ``part`` [p] of the sum."""
    collective_by_name("reduce_scatter_single", "reduce_scatter_tensor")(part, whole, group=group)


def all_to_all(received: torch.Tensor, sent: torch.Tensor, group: Group) -> None:
    """Sends equal parts of ``sent`` [n * p] to every member."""
    dist.all_to_all_single(received, sent, group=group)


def all_to_all_rows(
    received: torch.Tensor, sent: torch.Tensor, received_rows: list[int], sent_rows: list[int], group: Group
) -> None:
    """Sends unequal parts of ``sent`` to the members: so many rows to and from each."""
    dist.all_to_all_single(received, sent, received_rows, sent_rows, group=group)


def broadcast(buffer: torch.Tensor, source: int, group: Group) -> None:
    """Sends ``buffer`` of global rank ``source`` to the group."""
    dist.broadcast(buffer, src=source, group=group)


def send(buffer: torch.Tensor, destination: int, group: Group) -> None:
    """Sends one message to global rank ``destination``, queued on the device."""
    wait_for(dist.P2POp(dist.isend, buffer, destination, group=group))


def receive(buffer: torch.Tensor, source: int, group: Group) -> None:
    """Receives one message from global rank ``source``, queued on the device."""
    wait_for(dist.P2POp(dist.irecv, buffer, source, group=group))


def wait_for(operation: dist.P2POp) -> None:
    """Launches one side of a message as pipeline schedules do and waits for it on the stream."""
    for work in dist.batch_isend_irecv([operation]):
        work.wait()
