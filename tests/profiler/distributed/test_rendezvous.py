"""Ranks that come, come late or never, before there is any group."""

import socket
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch.distributed as dist

from profiler.device import choose_device
from profiler.distributed import rendezvous
from profiler.distributed import world as worlds
from profiler.distributed.rank_layout import RankLayout
from profiler.distributed.rendezvous import RankFailedError, connect, exchange_words, meet, port_of_start
from profiler.distributed.world import World, open_world
from spec.errors import ConfigError
from tests.profiler.fakes import FakeClock


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> dist.Store:
    """The store of a run, kept in this process."""
    kept = dist.HashStore()
    monkeypatch.setattr(rendezvous, "connect", lambda *_, **__: kept)
    monkeypatch.setattr(rendezvous, "POLL_S", 0.005)
    return kept


def test_all_ranks_are_waited_for(store: dist.Store) -> None:
    store.set("here/1", "1")
    store.add("arrived", 1)
    assert meet(RankLayout(rank=0, size=2, local_size=2), 0.0) is store


def test_who_has_not_come_is_named_within_the_timeout(store: dist.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.set("here/0", "1")
    store.set("here/2", "1")
    clock = FakeClock()

    def sleep(seconds: float) -> None:
        clock.now_s += seconds

    monkeypatch.setattr(rendezvous, "time", SimpleNamespace(monotonic=lambda: clock.now_s, sleep=sleep))
    with pytest.raises(RankFailedError) as missed:
        meet(RankLayout(rank=2, size=14, local_rank=2, local_size=14), 0.05)
    assert 0.05 <= clock.now_s <= 0.05 + 2 * rendezvous.POLL_S
    # eight by name; the first that knows says it
    assert str(missed.value) == (
        "ranks 1, 3, 4, 5, 6, 7, 8, 9 and 4 more of 14 did not join within 0.05 s (--timeout_s)"
    )
    assert missed.value.speaker == 2


def test_a_rank_without_its_first_says_where_it_looked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)
    with socket.socket() as probe:  # bound, but nobody listens
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        layout = RankLayout(rank=1, size=2, local_rank=1, local_size=2, master_addr="127.0.0.1", master_port=port)
        with pytest.raises(RankFailedError, match=f"rank 1 finds no rank 0 at 127.0.0.1:{port} within 0.2 s") as found:
            connect(layout, 0.2)
    assert found.value.speaker == 1


def test_every_rank_hears_every_word(store: dist.Store) -> None:
    def one(rank: int) -> list[list[str] | None]:
        layout = RankLayout(rank=rank, size=3, local_rank=rank, local_size=3)
        return [exchange_words(store, layout, about, f"{about} of {rank}", 20.0) for about in ("first", "second")]

    with ThreadPoolExecutor(3) as ranks:
        heard = list(ranks.map(one, range(3)))
    assert heard == [[[f"{about} of {rank}" for rank in range(3)] for about in ("first", "second")]] * 3


class CountingStore(dist.HashStore):
    """A store that counts requests."""

    requests = 0

    def check(self, keys: list[str]) -> bool:
        self.requests += 1
        return super().check(keys)

    def get(self, key: str) -> bytes:
        self.requests += 1
        return super().get(key)


def test_requests_grow_with_the_ranks_and_not_with_their_square(monkeypatch: pytest.MonkeyPatch) -> None:
    """2,048 ranks: rank 0 asks twice for each, any other rank twice in all."""
    size, kept = 2048, CountingStore()
    for rank in range(1, size):
        kept.set(f"it/{rank}", "broken" if rank == 7 else "well")
    kept.add("it/read", size - 1)
    first = exchange_words(kept, RankLayout(rank=0, size=size, local_size=8), "it", "well", 5.0)
    assert 2 * size <= kept.requests <= 2 * size + 8
    kept.requests = 0
    assert exchange_words(kept, RankLayout(rank=7, size=size, local_rank=7, local_size=8), "it", "broken", 5.0) == first
    assert kept.requests <= 4
    assert first == ["well"] * 7 + ["broken"] + ["well"] * (size - 8)
    assert len(kept.get("it/all")) < 100
    kept.add("arrived", size - 1)
    monkeypatch.setattr(rendezvous, "connect", lambda *_, **__: kept)
    kept.requests = 0
    meet(RankLayout(rank=7, size=size, local_rank=7, local_size=8), 5.0)
    assert kept.requests == 1


def test_a_rank_that_says_nothing_is_not_waited_for_for_ever(store: dist.Store) -> None:
    assert exchange_words(store, RankLayout(rank=1, size=2, local_rank=1, local_size=2), "it", "yes", 0.01) is None


def test_what_cannot_be_run_is_refused_before_there_is_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    kept = dist.HashStore()
    kept.set("said/1/1", "rank 1 cannot")
    kept.add("said/1/read", 1)
    beats = SimpleNamespace(start=lambda: None, stop=lambda: done.append("stopped"), step=lambda _: None, doing="")
    for name, stands_in in (("meet", kept), ("connect", kept), ("Watchdog", beats)):
        monkeypatch.setattr(worlds, name, lambda *_, given=stands_in, **__: given)
    monkeypatch.setattr(World, "join", lambda *_: done.append("joined"))

    def refuses(world: World) -> None:
        raise ConfigError(where="run", key="it", value=world.gather("rank 0 can"), allowed="another")

    layout = RankLayout(rank=0, size=2, local_size=2)
    with pytest.raises(ConfigError, match=r"rank 0 can.*rank 1 cannot"):
        open_world(layout, choose_device("cpu", layout), first=refuses)
    assert done == ["stopped"]
    one: list[World] = []
    assert open_world(RankLayout(), choose_device("cpu", RankLayout()), first=one.append) is one[0]


def test_each_start_meets_at_a_port_of_its_own() -> None:
    ports = [port_of_start(RankLayout(master_port=65533), start) for start in range(5)]
    assert ports == [65533, 65534, 65535, 65530, 65529]
