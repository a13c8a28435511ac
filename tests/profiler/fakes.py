"""A launcher whose operations take a time that only their case decides, and the clock they move."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from profdb.cases import Case
from profiler.benchmarks.launched import Call, Launched
from profiler.cases.group_tilings import GroupTiling
from profiler.device import Device
from profiler.distributed.rank_layout import RankLayout
from profiler.distributed.world import World
from profiler.measurement import Bench
from spec.cluster.cluster import ArchitectureSpec


def seconds_of(case: Case) -> float:
    """A time between 1 and 2 ms that differs from case to case."""
    digest = hashlib.sha256(repr(case).encode()).digest()
    return 1e-3 * (1.0 + int.from_bytes(digest[:6], "big") / 2**48)


@dataclass
class FakeClock:
    """Time that only launched calls move."""

    now_s: float = 0.0

    def burst(self, calls: Sequence[Call], count: int, align: Call | None) -> float:
        """Seconds of one launch."""
        start = self.now_s
        for index in range(count):
            calls[index % len(calls)]()
        return (self.now_s - start) / count


@dataclass
class FakeLauncher:
    """Launches nothing: moves the clock by seconds_of(case). ``before`` may raise for a case."""

    clock: FakeClock
    launched: list[Case] = field(default_factory=list)
    before: Callable[[Case], None] = lambda case: None

    def launch(self, case: Case) -> Launched:
        """As profiler.benchmarks.launched.Launcher."""
        self.before(case)
        self.launched.append(case)

        def call() -> None:
            self.clock.now_s += seconds_of(case)

        return Launched(case=case, calls=(call,), implementation="fake")


def device_like(kind: str = "cuda", architecture: ArchitectureSpec | None = None, **properties: object) -> Device:
    """A device that only says what it is: properties (and methods) of Device by name."""
    fake: Callable[..., Device] = type("Fake", (Device,), properties)
    return fake(kind=kind, architecture=architecture)


class FakeWorld(World):
    """A rank among others without processes: a group's handle is its ranks."""

    def group_for(self, tiling: GroupTiling) -> tuple[int, ...]:
        """The ranks of this rank's group."""
        return tiling.group_of(self.rank)


def fake_world(rank: int, size: int) -> World:
    """One rank of nodes of two over gloo."""
    layout = RankLayout(rank=rank, size=size, local_rank=rank % 2, local_size=2)
    return FakeWorld(layout=layout, device=Device(kind="cpu"), backend="gloo", domain_ranks=2)


def raising(problem: BaseException) -> Callable[[object], None]:
    """A function of anything that raises ``problem``."""

    def refuse(_: object) -> None:
        raise problem

    return refuse


def single_world() -> World:
    """One process on the CPU."""
    return World(layout=RankLayout(), device=Device(kind="cpu"))


def fake_bench() -> Bench:
    """A bench around a fake launcher and its clock."""
    clock = FakeClock()
    return Bench(world=single_world(), launcher=FakeLauncher(clock=clock), device_clock=clock, host_clock=clock)


class Recorder(TorchDispatchMode):
    """Every operation that reaches torch's kernels, with its tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, list[torch.Tensor]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        tensors = [item for item in tree_leaves(args) if isinstance(item, torch.Tensor)]
        self.seen.append((func._schema.name.removeprefix("aten::"), tensors))
        return func(*args, **(kwargs or {}))

    def of(self, *names: str) -> list[list[torch.Tensor]]:
        """Tensors of the operations with these names, in order."""
        return [tensors for name, tensors in self.seen if name in names]

    def shapes(self) -> list[tuple[str, list[tuple[int, ...]]]]:
        """Names and shapes of all operations, in order."""
        return [(name, [tuple(one.shape) for one in tensors]) for name, tensors in self.seen]
