"""All processes of a profiling run: their groups, and agreement between them."""

import json
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from profiler.cases.group_tilings import GroupTiling
from profiler.device import Device
from profiler.distributed.rank_layout import RankLayout
from profiler.distributed.rendezvous import RankFailedError, connect, exchange_words, meet
from profiler.distributed.watchdog import MOST_COMPILE_S, Watchdog
from spec.errors import ConfigError, UserError

Result = TypeVar("Result")

WATCHDOG_LEAD_S = 20.0 + MOST_COMPILE_S
"""Additional timeout of torch's groups over the watchdog's, which also waits while a rank compiles: the watchdog names the
rank and so has to come first."""

NCCL_LEAVES_ENDING_TO_US = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0", "TORCH_NCCL_RETHROW_CUDA_ERRORS": "0"}
"""NCCL's thread would abort the process at a device error or a timeout, before anything is reported or stored
(torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp)."""


@dataclass(slots=True, kw_only=True)
class World:
    """The processes of this run.

    ``backend`` is nccl, gloo, or "" for one process. Decisions and timings use ``control``, a gloo group of its own,
    so that agreement never disturbs the measured operations. ``domain_ranks`` is the number of ranks of one scale-up
    domain (a node, unless given). Before there is a group, words are exchanged over ``store``.
    """

    layout: RankLayout
    device: Device
    backend: str = ""
    domain_ranks: int = 1
    control: Any = None
    store: dist.Store | None = None
    exchanges: int = 0
    watch: Watchdog | None = None
    limit: timedelta = timedelta(seconds=120)
    handles: dict[tuple[int, int], Any] = field(default_factory=dict)

    @property
    def rank(self) -> int:
        """Returns the global rank."""
        return self.layout.rank

    @property
    def size(self) -> int:
        """Returns the number of processes."""
        return self.layout.size

    @property
    def leads(self) -> bool:
        """Returns whether this rank decides, writes and prints."""
        return self.rank == 0

    def join(self, store: dist.Store) -> None:
        """Forms the group of all ranks, which have met at ``store``."""

        def form() -> None:
            dist.init_process_group(
                self.backend,
                store=store,
                rank=self.rank,
                world_size=self.size,
                timeout=self.limit,
                # With a device NCCL connects at once, and later groups are split from this one instead of a
                # rendezvous each.
                device_id=self.device.torch_device if self.device.kind == "cuda" else None,
            )
            # Decisions over gloo on the host: they neither wait for the device nor use its links.
            self.control = dist.new_group(backend="gloo", timeout=self.limit)

        self._together(form)

    def open_groups(self, tilings: Sequence[GroupTiling]) -> None:
        """Makes the groups of ``tilings`` before anything is measured; every rank calls this with the same ones."""
        # NCCL allocates the groups' buffers outside torch's cache.
        if tilings:
            self.device.release_memory()
        for tiling in tilings:
            self.group_for(tiling)

    def group_for(self, tiling: GroupTiling) -> Any:
        """Returns the process group of this rank in a tiling; every rank calls this at the same time."""
        key = (tiling.intra, tiling.inter)
        if key not in self.handles:
            self.handles[key] = self.make_groups(tiling.groups)
        return self.handles[key]

    def make_groups(self, groups: Sequence[Sequence[int]]) -> Any:
        """Returns the handle of this rank's new process group, None if it is in none. ``groups`` are lists of global
        ranks without a common one. Every rank calls this with the same groups at the same time."""
        return self._together(lambda: self._make(groups))

    def _make(self, groups: Sequence[Sequence[int]]) -> Any:
        """Returns this rank's handle; all groups come from one split of the world where torch can, else one after
        another."""
        if self.backend == "nccl" and hasattr(dist, "split_group"):
            return dist.split_group(split_ranks=[list(ranks) for ranks in groups], timeout=self.limit)
        own = None
        # torch requires every rank to create every group, in the same order.
        for ranks in groups:
            handle = dist.new_group(list(ranks), backend=self.backend, timeout=self.limit)
            own = handle if self.rank in ranks else own
        return own

    def begin(self, doing: str, *, saved: str = "", place: str = "") -> None:
        """Notes the ranks' operation from here on, and what is stored if it fails, for the line of a failure;
        ``place`` tells the watchdog who is behind."""
        if self.watch is not None:
            self.watch.place = place
            self.watch.step(doing)
            self.watch.saved = f"{saved} are kept, go on with --resume" if saved else ""

    def compiling(self) -> AbstractContextManager[None]:
        """Returns a context for what may compile kernels on this rank, which takes as long as it takes."""
        return nullcontext() if self.watch is None else self.watch.compiling()

    def _together(self, action: Callable[[], Result]) -> Result:
        """Returns the result of an action that needs every rank; raises RankFailedError, naming the rank that is
        gone, instead of torch's report of sockets."""
        if self.watch is not None:
            # The same operation, one step further: the watchdog sees which ranks have arrived here.
            self.watch.step(self.watch.doing)
        try:
            return action()
        except RuntimeError as broken:
            raise self.failure(str(broken)) from broken

    def failure(self, cause: str) -> RankFailedError:
        """Returns the error of a run whose ranks have lost each other."""
        reason = cause.partition("\n")[0]
        if self.watch is None:
            return RankFailedError(f"rank {self.rank} lost the others ({reason})", speaker=self.rank)
        return self.watch.diagnose(reason)

    def decide(self, value: int) -> int:
        """Returns rank 0's ``value``, the same on every rank."""
        if self.size == 1:
            return value
        # On the host, since ``control`` is a gloo group.
        buffer = torch.tensor([value], dtype=torch.int64)
        self._together(lambda: dist.broadcast(buffer, src=0, group=self.control))
        return int(buffer.item())

    def slowest(self, seconds: list[float]) -> list[float]:
        """Returns the maximum over ranks of each entry; every rank passes equally many."""
        if self.size == 1:
            return seconds
        buffer = torch.tensor(seconds, dtype=torch.float64)
        self._together(lambda: dist.all_reduce(buffer, op=dist.ReduceOp.MAX, group=self.control))
        return [float(value) for value in buffer]

    def gather(self, word: str) -> list[str]:
        """Returns every rank's ``word``, by rank."""
        if self.size == 1:
            return [word]
        if self.control is None and self.store is not None:
            return self._together(partial(self._exchange_words, self.store, word))
        # all_gather_object pickles words of any length.
        labels: list[Any] = [None] * self.size
        self._together(lambda: dist.all_gather_object(labels, word, group=self.control))
        return [str(item) for item in labels]

    def _exchange_words(self, store: dist.Store, word: str) -> list[str]:
        # Every exchange has its own keys: a word of an earlier one must not be read again.
        self.exchanges += 1
        words = exchange_words(store, self.layout, f"said/{self.exchanges}", word, self.limit.total_seconds())
        if words is None:
            raise self.failure("no word of it")
        return words

    def gather_rows(self, rows: Sequence[Sequence[float]]) -> list[list[float]]:
        """The rows of all ranks, by rank."""
        return [row for word in self.gather(json.dumps(rows)) for row in json.loads(word)]

    def align(self) -> None:
        """Queues a barrier over the whole world on the device."""
        if self.backend == "nccl":
            # An all-reduce on the stream aligns the devices; NCCL's own barrier also blocks the host.
            dist.all_reduce(torch.zeros(1, device=self.device.torch_device))
        elif self.size > 1:
            dist.barrier()

    def close(self) -> None:
        """Destroys the groups."""
        if self.size > 1 and dist.is_initialized():
            # All ranks first: destroying a group that another rank still uses would fail there.
            self._together(lambda: dist.barrier(group=self.control))
            if self.watch is not None:
                self.watch.stop()
            dist.destroy_process_group()


def open_world(
    layout: RankLayout,
    device: Device,
    *,
    domain_ranks: int = 0,
    timeout_s: float = 120.0,
    first: Callable[[World], object] = lambda world: None,
) -> World:
    """Returns the world of this run: NCCL on GPUs, else gloo; a single process joins nobody.

    ``first`` is called on all ranks when they have met and before any group is made, so that a run that cannot work
    makes no groups; its errors are raised on all ranks.

    ``domain_ranks`` 0 means a node. ``timeout_s``: longest that a rank waits for another before the run ends with an
    error. Raises ConfigError when domains do not tile the world.
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
        # No groups, no store and no watchdog: there is nobody to wait for.
        alone = World(layout=layout, device=device)
        first(alone)
        return alone
    # A user's own settings stay.
    for name, value in NCCL_LEAVES_ENDING_TO_US.items():
        os.environ.setdefault(name, value)
    store = meet(layout, timeout_s)
    # The watchdog has its own connection and starts before the groups, whose making may hang too.
    watch = Watchdog(
        store=connect(layout, timeout_s),
        rank=layout.rank,
        size=layout.size,
        timeout_s=timeout_s,
        speaks_alone=layout.local_rank == 0,
    )
    watch.start()
    world = World(
        layout=layout,
        device=device,
        backend="nccl" if device.kind == "cuda" else "gloo",
        domain_ranks=domain,
        watch=watch,
        limit=timedelta(seconds=timeout_s + WATCHDOG_LEAD_S),
    )
    world.store = store
    try:
        first(world)
    except UserError:
        watch.stop()
        raise
    world.join(store)
    check_same_machines(world)
    return world


def check_same_machines(world: World) -> None:
    """Raises RankFailedError, naming the first rank that differs, unless every rank has the same kind of device."""
    names = world.gather(world.device.name)
    for rank, name in enumerate(names):
        if name != names[0]:
            raise RankFailedError(
                f"rank {rank} runs on {name!r}, rank 0 on {names[0]!r}: a profile describes one kind of "
                "machine; profile the kinds in separate runs"
            )
    owners: dict[str, int] = {}
    for rank, identity in enumerate(world.gather(world.device.identity)):
        # Two ranks on one GPU would share its memory bandwidth, and NCCL refuses them.
        if identity and owners.setdefault(identity, rank) != rank:
            raise RankFailedError(
                f"ranks {owners[identity]} and {rank} share one GPU, {identity}; start one rank a GPU"
            )
