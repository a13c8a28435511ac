"""Running launches one after another, each with its time."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import torch

from profiler.attempt import OOM, word_for, words_of
from profiler.benchmarks.launched import Call, UnsupportedCaseError
from profiler.device import Device
from profiler.ranks.meeting import RankFailedError
from profiler.ranks.world import World
from runner.replay.blame import Place
from runner.replay.operations import Operations
from runner.replay.program import Launch
from workload.aicb.csv_workload import COMPUTATION

Found = TypeVar("Found")

Clock = Callable[[Call], float]
"""Runs a call and waits for it; its seconds."""


@dataclass(slots=True, kw_only=True)
class Played:
    """One pass: its launches, the seconds of those that are through, and of all once it has ended."""

    launches: Sequence[Launch]
    times_s: list[float] = field(default_factory=list)
    elapsed_s: float = 0.0

    def computing_s(self) -> float:
        """Seconds in computation."""
        pairs = zip(self.launches, self.times_s, strict=False)
        return sum(seconds for launch, seconds in pairs if launch.item.comm_type == COMPUTATION)

    def communicating_s(self) -> float:
        """Seconds in collectives and messages, waiting for other ranks included."""
        return sum(self.times_s) - self.computing_s()


@dataclass(slots=True, kw_only=True)
class Player:
    """This rank's side of a run."""

    world: World
    operations: Operations
    clock: Clock
    passes: int = 0

    def prepare(self, launches: Sequence[Launch]) -> list[Launch]:
        """Make every call before anything is timed; the launches that run here.

        Raises RankFailedError naming the operation whose operands do not fit or that torch refuses.
        """
        kept = []
        for launch in launches:
            doing = self._begin(launch, "making its operands")
            if self._guarded(launch, doing, partial(self.operations.call, launch)) is not None:
                kept.append(launch)
        return kept

    def play(self, played: Played, name: str, part: int) -> None:
        """Run the launches of a pass, after all ranks have come to it; fills ``played`` as it goes. ``part`` 0 is
        initialisation."""
        self.world.begin(f"the start of {name}")
        self.world.gather(name)
        self.passes += 1
        begun = 0
        began = time.perf_counter()
        for launch in played.launches:
            call = self.operations.call(launch)
            assert call is not None, "prepare left it out"
            begun += launch.ranks > 0
            place = Place(passes=self.passes, part=part, begun=begun, computes=not launch.ranks)
            doing = self._begin(launch, name, place.text())
            played.times_s.append(self._guarded(launch, doing, partial(self.clock, call)))
        self.world.begin(f"the end of {name}")
        self._guarded(None, f"the end of {name}", self._finish)
        played.elapsed_s = time.perf_counter() - began

    def _finish(self) -> None:
        self.operations.finish()
        self.operations.device.synchronize()

    def _begin(self, launch: Launch, name: str, place: str = "") -> str:
        doing = f"{launch.label()}, {name}"
        self.world.begin(doing, place=place)
        return doing

    def _guarded(self, launch: Launch | None, doing: str, action: Callable[[], Found]) -> Found:
        """The result of one action; what goes wrong in it as the error that ends the run."""
        try:
            return action()
        except (RuntimeError, MemoryError, UnsupportedCaseError) as problem:
            full = word_for(problem) == OOM
            alone = launch is not None and launch.item.comm_type == COMPUTATION
            if not (full or alone or self.world.size == 1):
                raise self.world.lost(str(problem)) from problem
            what = "out of memory" if full else words_of(problem)
            rank = self.world.rank
            raise RankFailedError(f"rank {rank}: {what} in {doing}", speaker=rank) from problem


def clock_for(device: Device) -> Clock:
    """CUDA events around a call and a wait for the second; on a CPU the processor's clock."""
    if device.kind == "cuda":
        return cuda_seconds
    return host_seconds


def host_seconds(call: Call) -> float:
    """Seconds of a call that ends when it returns."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def cuda_seconds(call: Call) -> float:
    """Device seconds of what a call queues; the host's where it queues nothing (sleep)."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in ("begin", "end"))  # type: ignore[no-untyped-call]
    begin.record()
    call()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) * 1e-3
