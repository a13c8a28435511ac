"""The groups of a run, made by a torch.distributed that only notes what it is asked: how many calls, when,
how long each waits.
"""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed

from profdb.cases import Case, ExpertExchangeCase, GemmCase, OverlapCase
from profiler import profiling_run
from profiler.benchmarks.collectives import tilings_of
from profiler.cases.group_tilings import GroupTiling, all_tilings, tile
from profiler.device import Device
from profiler.distributed import world as worlds
from profiler.distributed.rank_layout import RankLayout
from profiler.distributed.world import World, open_world
from profiler.profiling_run import RunOptions, run_in
from spec.collectives import Collective
from tests.profiler.fakes import FakeClock, FakeLauncher, single_world

ROOT = Path(__file__).resolve().parents[3]
NODES, GPUS = 32, 8
WAIT_S = 7.0


@dataclass
class WithoutSplits:
    """torch.distributed as far as a world asks it; ``asked`` holds what was called and its timeout, ``waits`` those of
    the meeting before."""

    asked: list[tuple[str, timedelta]] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)

    def init_process_group(self, backend: str, *, timeout: timedelta, **_: Any) -> None:
        self.asked.append((f"init {backend}", timeout))

    def new_group(self, ranks: Sequence[int] = (), *, backend: str, timeout: timedelta) -> tuple[int, ...]:
        self.asked.append((f"new {backend}", timeout))
        return tuple(ranks)

    def all_gather_object(self, labels: list[str], word: str, group: object) -> None:
        labels[:] = [word] * len(labels)


class WithSplits(WithoutSplits):
    """A release that splits the world into all groups of a tiling at once."""

    def split_group(self, split_ranks: list[list[int]], timeout: timedelta) -> list[int]:
        assert sorted(rank for ranks in split_ranks for rank in ranks) == list(range(NODES * GPUS))
        self.asked.append(("split", timeout))
        return split_ranks[0]


def open_fake_world(dist: WithoutSplits, kind: str, monkeypatch: pytest.MonkeyPatch) -> World:
    """Rank 0 of 32 nodes of 8, every group of its sweep made."""

    def store(_: RankLayout, timeout_s: float) -> object:
        dist.waits.append(timeout_s)
        return object()

    def watch(timeout_s: float, **_: object) -> SimpleNamespace:
        dist.waits.append(timeout_s)
        return SimpleNamespace(doing="", place="", saved="", start=lambda: None, step=lambda doing: None)

    monkeypatch.setattr(worlds, "dist", dist)
    monkeypatch.setattr(worlds, "meet", store)
    monkeypatch.setattr(worlds, "connect", store)
    monkeypatch.setattr(worlds, "Watchdog", watch)
    monkeypatch.setattr(Device, "name", "H200")
    monkeypatch.setattr(Device, "identity", "")
    monkeypatch.setattr(Device, "release_memory", lambda _: dist.asked.append(("cache emptied", timedelta(0))))
    for name in worlds.NCCL_LEAVES_ENDING_TO_US:
        monkeypatch.delenv(name, raising=False)
    world = open_world(RankLayout(size=NODES * GPUS, local_size=GPUS), Device(kind=kind), timeout_s=WAIT_S)
    world.open_groups(all_tilings(GPUS, NODES))
    return world


def test_a_split_makes_all_groups_of_a_tiling_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """23 calls where one after another takes 689: sum of (8 / i) (32 / j) over powers of two i <= 8 and j <= 32, less
    the 256 groups of one rank."""
    dist = WithSplits()
    world = open_fake_world(dist, "cuda", monkeypatch)
    names = [name for name, _ in dist.asked]
    assert names == ["init nccl", "new gloo", "cache emptied", *["split"] * 23]
    assert len(world.handles) == 23
    world.open_groups(all_tilings(GPUS, NODES))
    assert dist.asked[26:] == [("cache emptied", timedelta(0))]


@pytest.mark.parametrize("kind", ["cuda", "cpu"])
def test_without_a_split_every_group_is_made_by_itself(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    dist = WithoutSplits() if kind == "cuda" else WithSplits()
    world = open_fake_world(dist, kind, monkeypatch)
    backend = {"cuda": "nccl", "cpu": "gloo"}[kind]
    names = [name for name, _ in dist.asked]
    assert names == [f"init {backend}", "new gloo", "cache emptied", *[f"new {backend}"] * 689]
    assert world.handles[4, 1] == (0, 1, 2, 3)


@pytest.mark.parametrize("kind", [WithSplits, WithoutSplits])
def test_the_timeout_reaches_every_group(kind: type[WithoutSplits], monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's own groups wait longer than the watch, which names the rank, also while a kernel compiles."""
    dist = kind()
    open_fake_world(dist, "cuda", monkeypatch)
    made = [timeout for name, timeout in dist.asked if name != "cache emptied"]
    assert set(made) == {timedelta(seconds=WAIT_S + 920.0)}
    assert dist.waits == [WAIT_S] * 3  # the meeting, the watch's own connection, the watch


def test_nothing_is_emptied_for_no_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    world = single_world()
    monkeypatch.setattr(Device, "release_memory", lambda _: pytest.fail("emptied"))
    world.open_groups([])


def test_what_overlaps_and_exchanges_need_is_among_the_groups() -> None:
    world = World(layout=RankLayout(size=16, local_size=8), device=Device(kind="cpu"), domain_ranks=8)
    overlap = OverlapCase(
        collective=Collective.ALL_GATHER, size_bytes=1 << 20, intra=8, inter=1, m=8, k=8, n=8, products=1, collectives=1
    )
    exchange = ExpertExchangeCase(
        direction="dispatch", tokens=64, hidden=64, experts=8, topk=2, intra=4, inter=2, siblings=2
    )
    cases: list[Case] = [GemmCase(m=8, k=8, n=8), overlap, exchange, overlap]
    assert tilings_of(cases, world) == [tile(8, 1, 8, 2), tile(4, 2, 8, 2)]


def test_groups_are_made_before_anything_is_launched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A group made later would take memory that cases have filled, and wait for ranks that are busy."""
    events: list[str] = []

    def make(_: World, tiling: GroupTiling) -> None:
        events.append(f"groups of {tiling.intra}")

    monkeypatch.setattr(profiling_run, "tilings_of", lambda cases, world: all_tilings(4, 1))
    monkeypatch.setattr(World, "group_for", make)
    monkeypatch.setattr("profiler.sweep.noisy_cases", lambda samples: [])
    launcher = FakeLauncher(clock=FakeClock(), before=lambda case: events.append("launch"))
    options = RunOptions(output=tmp_path / "data.pt", root=ROOT, device="cpu")
    run_in(single_world(), options, [GemmCase(m=8, k=8, n=8)] * 2, launcher)
    assert events == ["groups of 4", "groups of 2", "launch", "launch"]


def test_the_fake_takes_what_torch_takes() -> None:
    """The real functions have the parameters that the worlds of this file are asked with."""
    for name, wanted in (
        ("init_process_group", {"timeout", "store", "rank", "world_size", "device_id"}),
        ("new_group", {"ranks", "backend", "timeout"}),
        ("split_group", {"split_ranks", "timeout"}),
    ):
        assert wanted <= set(inspect.signature(getattr(torch.distributed, name)).parameters)
