"""Launches as calls on this rank's device and groups: collectives, messages, matrix products, sleep; and torch's process
groups for the groups that a workload uses."""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from math import prod
from typing import Any

import torch
import torch.distributed as dist

from profdb.cases import AttentionCase, GemmCase
from profiler.benchmarks import torch_collectives
from profiler.benchmarks.attention import launch_attention
from profiler.benchmarks.launched import Call
from profiler.benchmarks.linear import launch_gemm
from profiler.device import Device
from profiler.distributed.world import World
from profiler.outcome import OOM, error_status
from runner.groups.degrees import Degrees
from runner.groups.group_ranks import RankGroups, ranks_of_group
from runner.replay.program import ReplayLaunch
from workload.aicb.csv_workload import COMPUTATION
from workload.diagnostics import WorkloadError

HALF_BYTES = 2
ATTENTION_SIDES = 4
ATTENTION_WORDS = ("mask", "direction", "kernel", "window")
CHANNEL = "pp_"
"""Prefix of the names of message channels, whose ranks are those of the pipeline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankGroup:
    """This rank's group of a kind: torch's handle and the global ranks in it."""

    handle: Any
    ranks: tuple[int, ...]


def open_groups(world: World, names: Iterable[tuple[str, int]], degrees: Degrees) -> dict[tuple[str, int], RankGroup]:
    """This rank's group for each name and size that it belongs to.

    All ranks call this with the same names. Two names of the same ranks have handles of their own, as in a training
    framework: their operations do not queue behind each other.
    """
    handles = {}
    for name, ranks in names:
        world.begin(f"making the groups {name} of {ranks}")
        groups: RankGroups = ranks_of_group("pp_group" if name.startswith(CHANNEL) else name, ranks, degrees)
        handle = world.make_groups(groups)
        own = [one for one in groups if world.rank in one]
        if own:
            handles[name, ranks] = RankGroup(handle=handle, ranks=own[0])
    return handles


def close_groups(groups: Iterable[RankGroup]) -> None:
    """Destroy the groups, which frees their buffers."""
    for own in groups:
        dist.destroy_process_group(own.handle)


class ComputeMode(StrEnum):
    """How computation is replayed: as products of its shapes, as a sleep of the file's time, or not at all."""

    REAL = "real"
    SLEEP = "sleep"
    SKIP = "skip"


@dataclass(slots=True, kw_only=True)
class Operations:
    """The calls of one rank. All collectives share two bf16 buffers of the size of the largest message: ``sent`` and
    ``received``. ``pending`` are sends that may still be in flight."""

    device: Device
    groups: Mapping[tuple[str, int], RankGroup]
    compute: ComputeMode
    dtype: str
    sent: torch.Tensor
    received: torch.Tensor
    rank: int = 0
    pending: list[Any] = field(default_factory=list)
    _calls: dict[object, Call | None] = field(default_factory=dict)

    def call(self, launch: ReplayLaunch) -> Call | None:
        """The call of a launch; None for computation that is skipped. Equal launches share one call.

        Raises torch's out of memory when operands do not fit, UnsupportedCaseError for a product that torch refuses.
        """
        # All that the call depends on. Times enter because a sleep is one of them; a stage's name does not.
        item = launch.item
        shape = (item.comm_type, item.msg_size, item.shapes, item.additional, item.elapsed_ms)
        key = (*shape, launch.group, item.dst, item.src, launch.peer, launch.channel)
        if key not in self._calls:
            self._calls[key] = (
                self._computation(launch) if item.comm_type == COMPUTATION else self._communication(launch)
            )
        return self._calls[key]

    def finish(self) -> None:
        """Wait for every send."""
        for work in self.pending:
            work.wait()
        self.pending.clear()

    def _computation(self, launch: ReplayLaunch) -> Call | None:
        item = launch.item
        if self.compute is ComputeMode.REAL and item.shapes is not None:
            if len(item.shapes[0]) == ATTENTION_SIDES:
                return launch_attention(attention_case(launch, self.dtype), self.device).calls[0]
            return launch_gemm(product_case(item.shapes, self.dtype), self.device).calls[0]
        seconds = sleep_s(launch)
        if self.compute is ComputeMode.SLEEP and seconds > 0:
            return lambda: time.sleep(seconds)
        return None

    def _communication(self, launch: ReplayLaunch) -> Call:
        """A collective or a message."""
        if launch.channel is not None:
            return self._message(launch, self.groups[launch.channel.group, launch.ranks])
        assert launch.group is not None
        own = self.groups[launch.group]
        item = launch.item
        sent, received = (whole(buffer, item.msg_size, launch.ranks) for buffer in (self.sent, self.received))
        # Sizes are of the whole array: an all-gather sends, and a reduce-scatter receives, one part of it.
        part = sent.numel() // launch.ranks
        handle = own.handle
        first, last = own.ranks[item.src or 0], own.ranks[item.dst or 0]
        calls: dict[str, Call] = {
            "all_reduce": lambda: torch_collectives.all_reduce(sent, handle),
            "all_gather": lambda: torch_collectives.all_gather(received, sent[:part], handle),
            "reduce_scatter": lambda: torch_collectives.reduce_scatter(received[:part], sent, handle),
            "all_to_all": lambda: torch_collectives.all_to_all(received, sent, handle),
            "broadcast": lambda: torch_collectives.broadcast(received, first, handle),
            "reduce": lambda: dist.reduce(received, dst=last, group=handle),
            "barrier": lambda: dist.barrier(group=handle),
            "isend": lambda: self._shift(own, item.msg_size),
        }
        same = {"all_gather_into_tensor": "all_gather", "reduce_scatter_tensor": "reduce_scatter"}
        return calls[same.get(item.comm_type, item.comm_type)]

    def _shift(self, own: RankGroup, size_bytes: int) -> None:
        """Send to the next rank of a ring and receive from the previous one, both at once."""
        here = own.ranks.index(self.rank)
        after, before = own.ranks[(here + 1) % len(own.ranks)], own.ranks[here - 1]
        sent, received = whole(self.sent, size_bytes, 1), whole(self.received, size_bytes, 1)
        # Both at once: blocking sends around a ring would wait for each other.
        both = [
            dist.P2POp(dist.isend, sent, after, group=own.handle),
            dist.P2POp(dist.irecv, received, before, group=own.handle),
        ]
        for work in dist.batch_isend_irecv(both):
            work.wait()

    def _message(self, launch: ReplayLaunch, own: RankGroup) -> Call:
        peer = own.ranks[launch.peer]
        sends = launch.item.comm_type == "isend"
        buffer = whole(self.sent if sends else self.received, launch.item.msg_size, 1)
        operation = dist.P2POp(dist.isend if sends else dist.irecv, buffer, peer, group=own.handle)
        # A receive waits for its message; a send goes on in the background until the pass ends (``finish``).
        if not sends:
            return lambda: torch_collectives.wait_for(operation)
        return lambda: self.pending.extend(dist.batch_isend_irecv([operation]))


def product_case(shapes: tuple[tuple[int, ...], tuple[int, ...]], dtype: str) -> GemmCase:
    """The matrix product of two shapes: (s, b, k) or (s, k) by (k, n); all dimensions but the last make up m."""
    first, second = shapes
    return GemmCase(m=prod(first[:-1]), k=first[-1], n=second[-1], layout="NN", dtype_in=dtype, dtype_out=dtype)


def attention_case(launch: ReplayLaunch, dtype: str) -> AttentionCase:
    """The attention of a row: shapes (batch, heads, tokens, dim) of queries and of keys and values; mask, direction,
    kernel and window in ``additional``. Raises WorkloadError for a row that does not say them."""
    assert launch.item.shapes is not None
    (batch, heads, q_len, qk_dim), (_, kv_heads, kv_len, v_dim) = launch.item.shapes
    words = launch.item.additional.split()
    if len(words) != len(ATTENTION_WORDS) or not words[-1].isdecimal():
        raise WorkloadError(f"{launch.label()}: additional = {launch.item.additional!r}: {' '.join(ATTENTION_WORDS)}")
    mask, direction, kernel, window = words
    return AttentionCase(
        batch=batch,
        q_len=q_len,
        kv_len=kv_len,
        heads=heads,
        kv_heads=kv_heads,
        qk_dim=qk_dim,
        v_dim=v_dim,
        mask=mask,
        window=int(window),
        direction=direction,
        kernel=kernel,
        dtype=dtype,
    )


def sleep_s(launch: ReplayLaunch) -> float:
    """Seconds of a computation by the file: its time, or its size in ns as in AICB's own files."""
    item = launch.item
    if item.elapsed_ms is not None:
        return item.elapsed_ms * 1e-3
    return 0.0 if item.shapes is not None else item.msg_size * 1e-9


def whole(buffer: torch.Tensor, size_bytes: int, ranks: int) -> torch.Tensor:
    """The first ``size_bytes`` of a buffer, rounded up to an equal part for every rank: bf16 elements, or bytes if
    the size is odd."""
    if size_bytes % HALF_BYTES:
        return buffer.view(torch.uint8)[: -(-size_bytes // ranks) * ranks]
    elements = max(size_bytes // HALF_BYTES, 1)
    return buffer[: -(-elements // ranks) * ranks]


def buffer_elements(launches: Sequence[ReplayLaunch]) -> int:
    """bf16 elements of the largest message of the launches, rounded up for every rank."""
    largest = max((one.item.msg_size + HALF_BYTES * one.ranks for one in launches if one.ranks), default=0)
    return -(-largest // HALF_BYTES) + 1


def operations_for(
    launches: Sequence[ReplayLaunch],
    device: Device,
    groups: Mapping[tuple[str, int], RankGroup],
    compute: ComputeMode,
    dtype: str,
) -> Operations:
    """The calls of a rank with buffers for all launches. Buffers hold random numbers: zeros would draw less power and
    travel faster over links that compress.

    Raises WorkloadError where the largest message has no room.
    """
    elements = buffer_elements(launches)
    try:
        sent, received = (
            torch.rand(elements, device=device.torch_device, dtype=torch.bfloat16) for _ in ("sent", "received")
        )
    except (RuntimeError, MemoryError) as error:
        if error_status(error) != OOM:
            raise
        largest = max((one for one in launches if one.ranks), key=lambda one: one.item.msg_size)
        raise WorkloadError(f"out of memory: no room for two buffers of {largest.label()}") from error
    return Operations(device=device, groups=groups, compute=compute, dtype=dtype, sent=sent, received=received)
