"""Collectives over all ranks in nccl-tests' own table: times out of place and in place, bandwidths, wrong values.

Columns, factors and the average below them as NVIDIA/nccl-tests prints them (src/common.cu, writeBenchmarkLineBody;
doc/PERFORMANCE.md); ``size`` is the whole array on one rank, ``count`` a rank's elements. A release of torch has no
out-of-place all-reduce or broadcast: N/A.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist

from profiler.benchmarks import torch_collectives
from profiler.benchmarks.launched import Call, Stopwatch
from profiler.benchmarks.torch_dtypes import torch_dtype
from profiler.distributed.world import World
from spec.collectives import Collective, busbw_factor
from spec.dtypes import dtype_bytes
from spec.units import GIGA, US

NAMES = {
    Collective.ALL_REDUCE: ("all_reduce_perf", "sum", -1),
    Collective.ALL_GATHER: ("all_gather_perf", "none", -1),
    Collective.REDUCE_SCATTER: ("reduce_scatter_perf", "sum", -1),
    Collective.ALL_TO_ALL: ("alltoall_perf", "none", -1),
    Collective.BROADCAST: ("broadcast_perf", "none", 0),
}
"""Program, operator and root."""
TYPES = {"bf16": "bfloat16", "fp16": "half", "fp32": "float"}
PERIOD = 5
"""Values repeat after so many elements and stay small: sums of addends are exact in bfloat16 for any number of ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRequest:
    """What to run: sizes from ``least_bytes`` to ``most_bytes`` by ``factor``, ``iterations`` after ``warmup``; ``symmetric``
    adds torch's collectives in symmetric memory."""

    collectives: tuple[Collective, ...] = tuple(NAMES)
    least_bytes: int = 1024
    most_bytes: int = 128 << 20
    factor: int = 2
    iterations: int = 20
    warmup: int = 5
    dtype: str = "bf16"
    symmetric: bool = False

    def sizes(self, ranks: int) -> Iterator[int]:
        """Bytes of each row, rounded up to equal parts."""
        unit, size = ranks * int(dtype_bytes(self.dtype)), self.least_bytes
        while size <= self.most_bytes:
            yield -(-size // unit) * unit
            size *= self.factor


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedCollective:
    """A collective on buffers of its own: the call, what a rank starts from, where the result lies, and what it should be."""

    call: Call
    fill: Call
    result: torch.Tensor
    expected: torch.Tensor

    def wrong(self) -> int:
        """Wrong values on this rank after one call."""
        self.fill()
        self.call()
        return int((self.result != self.expected).sum())


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """Seconds of one call (the slowest rank's) and wrong values of all ranks; None where torch has no such call."""

    seconds: float
    wrong: int


def values(rank: int, elements: int, dtype: torch.dtype, where: torch.device) -> torch.Tensor:
    """What a rank starts from: small whole numbers that differ from rank to rank."""
    return ((torch.arange(elements, device=where) + rank) % PERIOD).to(dtype)


def addends(rank: int, ranks: int, elements: int, dtype: torch.dtype, where: torch.device) -> torch.Tensor:
    """Returns what a rank adds to a sum: 1 on as many of the ranks as the sum is to be, other ranks for each element."""
    place = torch.arange(elements, device=where)
    return ((place + rank) % ranks <= place % PERIOD).to(dtype)


def total(ranks: int, elements: int, dtype: torch.dtype, where: torch.device) -> torch.Tensor:
    """Returns the sum of all ranks' addends: 1 to PERIOD, at most the number of ranks."""
    return (torch.arange(elements, device=where) % PERIOD + 1).clamp(max=ranks).to(dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class Party:
    """This rank among all."""

    rank: int
    ranks: int
    dtype: torch.dtype
    where: torch.device

    def own(self, elements: int, rank: int | None = None) -> torch.Tensor:
        """This rank's values, or another's."""
        return values(self.rank if rank is None else rank, elements, self.dtype, self.where)

    def addends(self, elements: int) -> torch.Tensor:
        """This rank's part of a sum."""
        return addends(self.rank, self.ranks, elements, self.dtype, self.where)

    def everyone(self, part: int) -> torch.Tensor:
        """The parts of all ranks end to end."""
        return torch.cat([self.own(part, rank) for rank in range(self.ranks)])

    def sums(self, elements: int) -> torch.Tensor:
        """The sum over all ranks."""
        return total(self.ranks, elements, self.dtype, self.where)

    def slice_of(self, whole: torch.Tensor) -> torch.Tensor:
        """This rank's part."""
        part = whole.numel() // self.ranks
        return whole[self.rank * part : (self.rank + 1) * part]


def all_reduce(party: Party, elements: int, in_place: bool) -> CheckedCollective | None:
    """The sum in place."""
    if not in_place:
        return None
    start = party.addends(elements)
    buffer = torch.empty_like(start)
    return CheckedCollective(
        call=lambda: torch_collectives.all_reduce(buffer, None),
        fill=lambda: buffer.copy_(start),
        result=buffer,
        expected=party.sums(elements),
    )


def all_gather(party: Party, elements: int, in_place: bool) -> CheckedCollective:
    """All parts; in place a rank's own lies where it belongs."""
    whole, start = torch.empty(elements, dtype=party.dtype, device=party.where), party.own(elements // party.ranks)
    part = party.slice_of(whole) if in_place else start.clone()

    def fill() -> None:
        whole.zero_()
        part.copy_(start)

    return CheckedCollective(
        call=lambda: torch_collectives.all_gather(whole, part, None),
        fill=fill,
        result=whole,
        expected=party.everyone(start.numel()),
    )


def reduce_scatter(party: Party, elements: int, in_place: bool) -> CheckedCollective:
    """A part of the sum; in place it replaces what it was made of."""
    start = party.addends(elements)
    whole = torch.empty_like(start)
    part = party.slice_of(whole) if in_place else torch.empty_like(party.slice_of(whole))

    def fill() -> None:
        part.zero_()
        whole.copy_(start)

    return CheckedCollective(
        call=lambda: torch_collectives.reduce_scatter(part, whole, None),
        fill=fill,
        result=part,
        expected=party.slice_of(party.sums(elements)),
    )


def all_to_all(party: Party, elements: int, in_place: bool) -> CheckedCollective | None:
    """A part from and to every rank."""
    if in_place:
        return None
    sent = party.own(elements)
    received = torch.empty_like(sent)
    parts = [party.slice_of(party.own(elements, rank)) for rank in range(party.ranks)]
    return CheckedCollective(
        call=lambda: torch_collectives.all_to_all(received, sent, None),
        fill=received.zero_,
        result=received,
        expected=torch.cat(parts),
    )


def broadcast(party: Party, elements: int, in_place: bool) -> CheckedCollective | None:
    """The first rank's values."""
    if not in_place:
        return None
    buffer, start = torch.empty_like(party.own(elements)), party.own(elements)
    return CheckedCollective(
        call=lambda: torch_collectives.broadcast(buffer, 0, None),
        fill=lambda: buffer.copy_(start),
        result=buffer,
        expected=party.own(elements, 0),
    )


EXCHANGES: dict[Collective, Callable[[Party, int, bool], CheckedCollective | None]] = {
    Collective.ALL_REDUCE: all_reduce,
    Collective.ALL_GATHER: all_gather,
    Collective.REDUCE_SCATTER: reduce_scatter,
    Collective.ALL_TO_ALL: all_to_all,
    Collective.BROADCAST: broadcast,
}


# The same in symmetric memory (torch.distributed._symmetric_memory), inside an NVLink domain.


def symmetric_all_reduce(operation: str) -> Callable[[Party, int, bool], CheckedCollective | None]:
    """The sum in place by an operation of torch.ops.symm_mem."""

    def exchange(party: Party, elements: int, in_place: bool) -> CheckedCollective | None:
        if not in_place:
            return None
        buffer, group = symmetric_buffer(elements, party)
        start = party.addends(elements)
        run = getattr(torch.ops.symm_mem, operation)
        return CheckedCollective(
            call=lambda: run(buffer, "sum", group),
            fill=lambda: buffer.copy_(start),
            result=buffer,
            expected=party.sums(elements),
        )

    return exchange


def symmetric_all_gather(party: Party, elements: int, in_place: bool) -> CheckedCollective | None:
    """All parts, by multicast stores into every rank's buffer."""
    if in_place:
        return None
    start = party.own(elements // party.ranks)
    whole, group = symmetric_buffer(elements, party)
    return CheckedCollective(
        call=lambda: torch.ops.symm_mem.multimem_all_gather_out(start, group, whole),
        fill=whole.zero_,
        result=whole,
        expected=party.everyone(start.numel()),
    )


def symmetric_buffer(elements: int, party: Party) -> tuple[torch.Tensor, str]:
    """A buffer at the same place on every rank, and the name of the group of all ranks."""
    from torch.distributed import _symmetric_memory as symmetric_memory

    group = dist.distributed_c10d._get_default_group()
    buffer = symmetric_memory.empty(elements, dtype=party.dtype, device=party.where)
    symmetric_memory.rendezvous(buffer, group.group_name)
    return buffer, group.group_name


SYMMETRIC: dict[str, tuple[Collective, Callable[[Party, int, bool], CheckedCollective | None]]] = {
    "multimem_all_reduce_": (Collective.ALL_REDUCE, symmetric_all_reduce("multimem_all_reduce_")),
    "two_shot_all_reduce_": (Collective.ALL_REDUCE, symmetric_all_reduce("two_shot_all_reduce_")),
    "multimem_all_gather_out": (Collective.ALL_GATHER, symmetric_all_gather),
}


# The table.

HEADING = """#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)"""


def tables(request: TableRequest, world: World, clock: Stopwatch, hosts: Sequence[str]) -> Iterator[str]:
    """The lines of a table for each collective, the same on every rank; those of symmetric memory on a GPU that can."""
    party = Party(rank=world.rank, ranks=world.size, dtype=torch_dtype(request.dtype), where=world.device.torch_device)
    for kind in request.collectives:
        yield from table(request, world, clock, hosts, (NAMES[kind][0], kind, partial(EXCHANGES[kind], party)))
    for operation, (kind, exchange) in SYMMETRIC.items() if request.symmetric else ():
        yield f"# torch.ops.symm_mem.{operation}"
        yield from table(request, world, clock, hosts, (NAMES[kind][0], kind, partial(exchange, party)))


MakesCollective = Callable[[int, bool], CheckedCollective | None]


def table(
    request: TableRequest,
    world: World,
    clock: Stopwatch,
    hosts: Sequence[str],
    what: tuple[str, Collective, MakesCollective],
) -> Iterator[str]:
    """The lines of one collective: heading, ranks, a row for each size, wrong values and the average bus bandwidth."""
    program, kind, make = what
    width = int(dtype_bytes(request.dtype))
    yield f"# Collective test starting: {program}"
    yield (
        f"# nThread 1 nGpus 1 minBytes {request.least_bytes} maxBytes {request.most_bytes} step: {request.factor}(factor) "
        f"warmup iters: {request.warmup} iters: {request.iterations} agg iters: 1 validation: 1 graph: 0"
    )
    yield "#\n# Using devices"
    for rank, host in enumerate(hosts):
        device = f"device {rank % world.layout.local_size:2} [0x00] {world.device.name}"
        yield f"#  Rank {rank:2} Group  0 Pid {rank:6} on {host:>10} {device}"
    yield HEADING
    busbws, wrong = [], 0
    for size in request.sizes(world.size):
        world.begin(f"{program} of {size} bytes")
        cells = [measured_cell(make(size // width, in_place), request, world, clock) for in_place in (False, True)]
        shown = [cell for cell in cells if cell is not None]
        busbws += [float(busbw_factor(kind, world.size)) * size / cell.seconds / GIGA for cell in shown]
        wrong += sum(cell.wrong for cell in shown)
        yield row(request, kind, size, world.size, cells)
    yield f"# Out of bounds values : {wrong} {'FAILED' if wrong else 'OK'}"
    yield f"# Avg bus bandwidth    : {sum(busbws) / len(busbws):g}\n#"


def measured_cell(
    exchange: CheckedCollective | None, request: TableRequest, world: World, clock: Stopwatch
) -> Cell | None:
    """The mean over ranks of the seconds of a call, and the wrong values of all."""
    if exchange is None:
        return None
    clock.burst((exchange.call,), max(request.warmup, 1), world.align)
    seconds = clock.burst((exchange.call,), request.iterations, world.align)
    rows = world.gather_rows([(seconds, float(exchange.wrong()))])
    return Cell(seconds=sum(one_s for one_s, _ in rows) / len(rows), wrong=int(sum(count for _, count in rows)))


def row(request: TableRequest, kind: Collective, size: int, ranks: int, cells: Sequence[Cell | None]) -> str:
    """One row."""
    parts = 1 if kind in (Collective.ALL_REDUCE, Collective.BROADCAST) else ranks
    _, operator, root = NAMES[kind]
    count = size // int(dtype_bytes(request.dtype)) // parts
    text = f"{size:12} {count:13} {TYPES[request.dtype]:>9} {operator:>7} {root:7}"
    for cell in cells:
        if cell is None:
            text += f"  {'N/A':>7} {'N/A':>7} {'N/A':>7} {'N/A':>7}"
            continue
        algbw = size / cell.seconds / GIGA
        busbw = float(busbw_factor(kind, ranks)) * algbw
        text += f"  {cell.seconds / US:7.{digits(cell.seconds / US)}f} {algbw:7.2f} {busbw:7.2f} {cell.wrong:7}"
    return text


def digits(microseconds: float) -> int:
    """Decimals of a time, as nccl-tests: four figures."""
    return 2 if microseconds < 100.0 else 1 if microseconds < 10000.0 else 0
