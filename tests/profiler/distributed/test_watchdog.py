"""Watches of ranks that share one store in this process."""

import threading
from collections.abc import Callable, Iterator, Mapping

import pytest
import torch.distributed as dist

from profiler.distributed import watchdog
from profiler.distributed.watchdog import Beat, Watchdog, fewest_steps, read_beat


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> dist.Store:
    """A store, and beats quick enough for a test."""
    monkeypatch.setattr(watchdog, "BEAT_S", 0.1)
    return dist.HashStore()


Watch = Callable[..., Watchdog]


@pytest.fixture
def watch(store: dist.Store) -> Iterator[Watch]:
    """Makes the watch of a rank of three, and stops it in the end."""
    made: list[Watchdog] = []

    def of(rank: int, ends: Callable[[int], object] = lambda status: None) -> Watchdog:
        made.append(Watchdog(store=store, rank=rank, size=3, timeout_s=60.0, ends=ends))
        return made[-1]

    yield of
    for one in made:
        one.stop()


def beating(*watches: Watchdog) -> None:
    for one in watches:
        one.start()


def test_a_rank_that_beats_no_more_is_named_by_the_first_who_knows(watch: Watch) -> None:
    first, second, third = (watch(rank) for rank in range(3))
    beating(first, second, third)
    second.step("all_reduce over tp_group")
    third.stop()
    found = second.diagnose("connection closed")
    assert str(found) == "rank 2 exited or stopped in all_reduce over tp_group (rank 1: connection closed)"
    assert found.speaker == 1
    assert first.diagnose().speaker == 1


def test_a_rank_that_is_behind_is_named_with_what_it_does(watch: Watch) -> None:
    watches = [watch(rank) for rank in range(3)]
    for one in watches[:2]:
        one.step("all_reduce")
    watches[2].doing = "a long product, row 7"
    beating(*watches)
    assert str(watches[0].diagnose()) == "rank 2 behind the others in a long product, row 7"


def test_a_run_ended_from_outside_blames_nobody(watch: Watch) -> None:
    watches = [watch(rank) for rank in range(3)]
    watches[1].step("all_reduce")
    beating(*watches)
    assert str(watches[1].diagnose(outside="ended from outside (SIGTERM)")) == (
        "ended from outside (SIGTERM) in all_reduce"
    )


class Ended:
    """How a watch ends its process: the status, when it came."""

    def __init__(self) -> None:
        self.statuses: list[int] = []
        self.came = threading.Event()

    def __call__(self, status: int) -> None:
        self.statuses.append(status)
        self.came.set()


def test_the_others_of_a_rank_that_fails_end_when_it_has_spoken(
    watch: Watch, capfd: pytest.CaptureFixture[str]
) -> None:
    ends = Ended()
    other, failing = watch(1, ends), watch(2)
    beating(other, failing)
    failing.fail()
    assert not ends.came.wait(1.0)
    failing.tell_spoken()
    assert ends.came.wait(5.0)
    other.stop()
    assert (set(ends.statuses), failing.stopped, capfd.readouterr().err) == ({2}, True, "")
    assert other.diagnose().speaker == 2


def test_a_rank_that_fails_without_a_word_is_named_by_the_others(
    watch: Watch, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(watchdog, "SPEAK_S", 0.2)
    ends = Ended()
    other, failing = watch(1, ends), watch(2)
    other.speaks_alone, other.doing = True, "all_reduce"
    beating(other, failing)
    failing.fail()
    assert ends.came.wait(5.0)
    other.stop()
    assert capfd.readouterr().err.splitlines()[0] == "error: rank 2 failed without a word in all_reduce"


@pytest.mark.nightly
def test_a_rank_that_goes_on_after_all_takes_its_word_back(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 1 stands still for its time, and moves while it looks who is to blame: nobody may end."""
    monkeypatch.setattr(watchdog, "LISTEN_S", 0.4)
    ends = Ended()
    late, other = watch(1, ends), watch(2, ends)
    late.timeout_s = 0.8
    looked = threading.Event()

    def behind(beats: Mapping[int, Beat]) -> list[int]:
        looked.set()
        late.step("the next case")
        return [1]

    late.behind = behind
    beating(watch(0), late, other)
    assert looked.wait(10.0)
    late.timeout_s = 60.0
    assert not ends.came.wait(1.5)
    assert late.word.speaker is None


@pytest.mark.nightly
def test_ranks_that_wait_for_a_compiler_do_not_stand_still(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "LISTEN_S", 0.2)
    ends = Ended()
    watches = [watch(rank, ends) for rank in range(3)]
    for one in watches:
        one.timeout_s = 1.2
    beating(*watches)
    with watches[2].compiling():
        assert not ends.came.wait(3.0)
    assert ends.came.wait(10.0)


def test_a_rank_that_beats_no_more_ends_a_run_whose_others_may_still_wait(
    store: dist.Store, watch: Watch, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for name, seconds in (("PULSE_S", 0.5), ("SILENT_S", 3.0)):
        monkeypatch.setattr(watchdog, name, seconds)
    ends = Ended()
    watches = [watch(rank, ends) for rank in range(3)]
    for rank, host in enumerate(("node-1", "node-1", "node-2")):
        store.set(f"here/{rank}", host)
    watches[0].doing = "all_reduce"
    beating(*watches)
    watches[2].stop()
    assert ends.came.wait(20.0)
    # A watch of the test before may still print the line with which it ends.
    assert "error: rank 2 on node-2 exited or stopped in all_reduce" in capfd.readouterr().err.splitlines()


class Gone(dist.HashStore):
    """A store whose host has lost its network: a request never returns."""

    lost = threading.Event()

    def set(self, key: str, value: str) -> None:
        if self.lost.is_set():
            threading.Event().wait(30.0)
        super().set(key, value)


@pytest.mark.parametrize("speaks", [True, False])
def test_a_store_that_does_not_answer_ends_the_run(
    speaks: bool, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for name, seconds in (("BEAT_S", 0.1), ("SILENT_S", 0.5)):
        monkeypatch.setattr(watchdog, name, seconds)
    ends, lost = Ended(), Gone()
    lost.lost = threading.Event()
    one = Watchdog(store=lost, rank=1, size=3, timeout_s=60.0, ends=ends)
    one.speaks_alone = speaks
    one.start()
    lost.lost.set()
    assert ends.came.wait(10.0)
    said = "error: the host of rank 0, which keeps the ranks together, is gone in starting\n"
    assert capfd.readouterr().err == (said if speaks else "")


def test_a_beat_is_read_as_written() -> None:
    assert read_beat(b"3 7 - making groups of 2") == Beat(3, 7, "", "making groups of 2")
    assert read_beat(b"3 7 1:2:3:0 all_reduce over tp_group") == Beat(3, 7, "1:2:3:0", "all_reduce over tp_group")


def test_who_has_done_least_is_behind() -> None:
    assert fewest_steps({0: Beat(1, 5), 1: Beat(1, 4), 2: Beat(9, 4)}) == [1, 2]


@pytest.mark.parametrize("late", [0, 2])
def test_a_rank_that_stands_still_ends_the_run_before_the_timeout(
    late: int, watch: Watch, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Nobody asks: rank 1's own watch says who is behind, in which case, and what is kept, and ends its process."""
    monkeypatch.setattr(watchdog, "LISTEN_S", 0.4)
    ends = Ended()
    watches = [watch(rank) for rank in range(3)]
    watches[1].ends, watches[1].timeout_s = ends, 0.8
    for rank, one in enumerate(watches):
        one.doing = "linear(m=8)"
        if rank != late:
            one.step("all_reduce(8 ranks)")
            one.saved = "212 samples of this run are kept, go on with --resume"
    beating(*watches)
    assert ends.came.wait(60.0)
    assert ends.statuses[0] == 2
    assert capfd.readouterr().err == (
        f"error: rank {late} behind the others in linear(m=8); 212 samples of this run are kept, go on with --resume\n"
    )
