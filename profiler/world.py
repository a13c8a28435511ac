"""All processes of a profiling run: the groups they measure and how they agree with each other."""

import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from profiler.cases.group_tilings import GroupTiling
from profiler.device import Device
from profiler.rank_layout import RankLayout
from spec.errors import ConfigError, UserError


class RankFailedError(UserError):
    """A rank could not go on; every rank stops with the same message."""


@dataclass(slots=True, kw_only=True)
class World:
    """The processes of this run.

    ``backend`` is nccl, gloo, or "" for one process. Decisions and timings travel over ``control``,
    a gloo group of its own, so that talking never disturbs what is measured. ``domain_ranks`` is the
    number of ranks of one scale-up domain (a node, unless said otherwise).
    """

    layout: RankLayout
    device: Device
    backend: str = ""
    domain_ranks: int = 1
    control: Any = None
    handles: dict[tuple[int, int], Any] = field(default_factory=dict)

    @property
    def rank(self) -> int:
        """Global rank."""
        return self.layout.rank

    @property
    def size(self) -> int:
        """Number of processes."""
        return self.layout.size

    @property
    def leads(self) -> bool:
        """Whether this rank decides, writes and prints."""
        return self.rank == 0

    def group_for(self, tiling: GroupTiling) -> Any:
        """The process group of this rank in a tiling; every rank asks for it at the same time."""
        key = (tiling.intra, tiling.inter)
        if key not in self.handles:
            for ranks in tiling.groups:
                handle = dist.new_group(list(ranks), backend=self.backend)
                if self.rank in ranks:
                    self.handles[key] = handle
        return self.handles[key]

    def decide(self, value: int) -> int:
        """Rank 0's ``value``, the same on every rank."""
        if self.size == 1:
            return value
        buffer = torch.tensor([value], dtype=torch.int64)
        dist.broadcast(buffer, src=0, group=self.control)
        return int(buffer.item())

    def slowest(self, seconds: list[float]) -> list[float]:
        """Maximum over ranks of each entry; every rank passes as many."""
        if self.size == 1:
            return seconds
        buffer = torch.tensor(seconds, dtype=torch.float64)
        dist.all_reduce(buffer, op=dist.ReduceOp.MAX, group=self.control)
        return [float(value) for value in buffer]

    def gather(self, word: str) -> list[str]:
        """Every rank's ``word``, by rank."""
        if self.size == 1:
            return [word]
        labels: list[Any] = [None] * self.size
        dist.all_gather_object(labels, word, group=self.control)
        return [str(item) for item in labels]

    def align(self) -> None:
        """Queue a barrier over the whole world on the device."""
        if self.backend == "nccl":
            dist.all_reduce(torch.zeros(1, device=self.device.torch_device))
        elif self.size > 1:
            dist.barrier()

    def close(self) -> None:
        """Take the groups down."""
        if self.size > 1 and dist.is_initialized():
            dist.destroy_process_group()


@contextmanager
def leaving_on_failure(layout: RankLayout) -> Iterator[Callable[[int], int]]:
    """For the body of a script: gives a function that returns an exit status, or, when that is no
    success and there are other ranks, ends this process at once. After a failure the groups cannot be
    taken down in order: their ends would wait for ranks that are gone, or abort."""

    def leave(status: int) -> int:
        if status != 0 and layout.size > 1:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
        return status

    try:
        yield leave
    except BaseException:
        if layout.size > 1:
            traceback.print_exc()
            leave(1)
        raise


def open_world(
    layout: RankLayout, device: Device, *, domain_ranks: int = 0, timeout_s: float = 120.0
) -> World:
    """Join the other processes of the run: NCCL on GPUs, else gloo; one process joins nobody.

    ``domain_ranks`` 0 means a node. ``timeout_s``: longest that a rank waits for another before the run
    ends with an error. Raises ConfigError when domains do not tile the world.
    """
    domain = domain_ranks or layout.local_size
    if layout.size % domain:
        raise ConfigError(
            where="command line",
            key="--ranks_per_domain",
            value=domain,
            allowed=f"a divisor of the {layout.size} processes",
        )
    if layout.size == 1:
        return World(layout=layout, device=device)
    backend = "nccl" if device.kind == "cuda" else "gloo"
    os.environ.setdefault("MASTER_ADDR", layout.master_addr)
    os.environ.setdefault("MASTER_PORT", str(layout.master_port))
    limit = timedelta(seconds=timeout_s)
    dist.init_process_group(
        backend,
        rank=layout.rank,
        world_size=layout.size,
        timeout=limit,
        device_id=device.torch_device if device.kind == "cuda" else None,
    )
    control = dist.new_group(backend="gloo", timeout=limit)
    world = World(layout=layout, device=device, backend=backend, domain_ranks=domain, control=control)
    check_same_machines(world)
    return world


def check_same_machines(world: World) -> None:
    """Every rank has the same kind of device; RankFailedError names the first that differs."""
    names = world.gather(world.device.name)
    for rank, name in enumerate(names):
        if name != names[0]:
            raise RankFailedError(
                f"rank {rank} runs on {name!r}, rank 0 on {names[0]!r}: a profile describes one kind of "
                "machine; profile the kinds in separate runs"
            )
