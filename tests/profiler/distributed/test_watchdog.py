"""Watches of ranks that share one store in this process."""

import threading
from collections.abc import Callable

import pytest
import torch.distributed as dist

from profiler.distributed import watchdog
from profiler.distributed.watchdog import Beat, Watchdog, fewest_steps, read_beat


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> dist.Store:
    """A store, and beats quick enough for a test."""
    monkeypatch.setattr(watchdog, "BEAT_S", 0.1)
    return dist.HashStore()


def watch(store: dist.Store, rank: int, ends: Callable[[int], object] = lambda status: None) -> Watchdog:
    return Watchdog(store=store, rank=rank, size=3, timeout_s=60.0, ends=ends)


def beating(*watches: Watchdog) -> None:
    for one in watches:
        one.start()


def test_a_rank_that_beats_no_more_is_named_by_the_first_who_knows(store: dist.Store) -> None:
    first, second, third = (watch(store, rank) for rank in range(3))
    beating(first, second, third)
    second.step("all_reduce over tp_group")
    third.stop()
    found = second.diagnose("connection closed")
    assert str(found) == "rank 2 gone or stopped in all_reduce over tp_group (rank 1: connection closed)"
    assert found.speaker == 1
    assert first.diagnose().speaker == 1
    first.stop()
    second.stop()


def test_a_rank_that_is_behind_is_named_with_what_it_does(store: dist.Store) -> None:
    watches = [watch(store, rank) for rank in range(3)]
    for one in watches[:2]:
        one.step("all_reduce")
    watches[2].doing = "a long product, row 7"
    beating(*watches)
    assert str(watches[0].diagnose()) == "rank 2 behind the others in a long product, row 7"
    for one in watches:
        one.stop()


def test_a_run_ended_from_outside_blames_nobody(store: dist.Store) -> None:
    watches = [watch(store, rank) for rank in range(3)]
    watches[1].step("all_reduce")
    beating(*watches)
    assert str(watches[1].diagnose(outside="ended from outside (SIGTERM)")) == (
        "ended from outside (SIGTERM) in all_reduce"
    )
    for one in watches:
        one.stop()


def test_the_others_of_a_rank_that_fails_end_without_a_word(
    store: dist.Store, capfd: pytest.CaptureFixture[str]
) -> None:
    ended = threading.Event()
    statuses: list[int] = []

    def ends(status: int) -> None:
        statuses.append(status)
        ended.set()

    other, failing = watch(store, 1, ends), watch(store, 2)
    beating(other, failing)
    failing.fail()
    assert ended.wait(5.0)
    other.stop()
    assert (set(statuses), failing.stopped, capfd.readouterr().err) == ({2}, True, "")
    assert other.diagnose().speaker == 2


def test_a_beat_is_read_as_written() -> None:
    assert read_beat(b"3 7 - making groups of 2") == Beat(3, 7, "", "making groups of 2")
    assert read_beat(b"3 7 1:2:3:0 all_reduce over tp_group") == Beat(3, 7, "1:2:3:0", "all_reduce over tp_group")


def test_who_has_done_least_is_behind() -> None:
    assert fewest_steps({0: Beat(1, 5), 1: Beat(1, 4), 2: Beat(9, 4)}) == [1, 2]


@pytest.mark.parametrize("late", [0, 2])
def test_a_rank_that_stands_still_ends_the_run_before_the_timeout(
    late: int, store: dist.Store, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Nobody asks: rank 1's own watch says who is behind, in which case, and what is kept, and ends its process."""
    monkeypatch.setattr(watchdog, "LISTEN_S", 0.4)
    ended = threading.Event()
    statuses: list[int] = []

    def ends(status: int) -> None:
        statuses.append(status)
        ended.set()

    watches = [watch(store, rank) for rank in range(3)]
    watches[1].ends, watches[1].timeout_s = ends, 0.8
    for rank, one in enumerate(watches):
        one.doing = "linear(m=8)"
        if rank != late:
            one.step("all_reduce(8 ranks)")
            one.saved = "212 samples of this run are kept, go on with --resume"
    beating(*watches)
    assert ended.wait(60.0)
    assert statuses == [2]
    assert capfd.readouterr().err == (
        f"error: rank {late} behind the others in linear(m=8); 212 samples of this run are kept, go on with --resume\n"
    )
    for one in watches:
        one.stop()
