"""How ranks end: where there are others, without Python's taking itself down, and when the error is said."""

import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch.distributed as dist

from profiler.distributed import rank_exit
from profiler.distributed.rank_exit import OrderlyEnd, status_in_ranks
from profiler.distributed.rank_layout import RankLayout
from profiler.distributed.rendezvous import LastWord, RankFailedError
from spec.errors import ProfileError
from tests.profiler.distributed.ending import run
from tests.solver.questions import ROOT

# Every ending in a fork: torch is imported once.
SAY_WHEN_TAKEN_DOWN = """
import atexit, os, sys
from profiler.distributed.rank_exit import rank_exit
from profiler.distributed.rank_layout import RankLayout

for ending in sys.argv[1:]:
    size, status = map(int, ending.split(","))
    if not (child := os.fork()):
        atexit.register(print, "taken down")
        with rank_exit(RankLayout(size=size)) as leave:
            print("answer", end=" ")
            status = leave(status)
        sys.exit(status)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.mark.nightly
def test_a_rank_among_others_ends_at_once_with_all_it_said() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", SAY_WHEN_TAKEN_DOWN, "1,2", "2,2", "1,0", "2,0"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    said = "answer taken down\n2\nanswer 2\nanswer taken down\n0\nanswer 0\n"
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, said, "")


SAID = {
    "alike": "error: data.pt: of another GPU\n",
    "early": "error: environment: GPU = 1: one that works\n",
    "named": "error: rank 2: out of memory\n",
}


@pytest.mark.parametrize("ways", [["named"], pytest.param(["alike", "early", "mute"], marks=pytest.mark.nightly)])
def test_an_error_is_said_once_before_a_launcher_can_end_the_rank_that_says_it(ways: list[str]) -> None:
    ends = {way: run(way) for way in ways}
    for way in ways:
        # The rank that is named in "mute" was killed first: each of the others says it, or one of them.
        assert set(ends[way]["said"].splitlines()) == {SAID.get(way, "error: rank 2 failed").strip()}
        assert ends[way]["said"] == SAID.get(way, ends[way]["said"])
        assert 2 in ends[way]["statuses"]


class EndOfRun:
    """The store of a run and the clock of its end: ``at_poll`` happens when a rank looks for the n-th time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.store = dist.HashStore()
        self.now_s = 0.0
        self.sleeps: list[float] = []
        self.at_poll: dict[int, Callable[[], None]] = {}
        monkeypatch.setattr(rank_exit, "connect", lambda *_, **__: self.store)
        monkeypatch.setattr(rank_exit, "time", SimpleNamespace(monotonic=lambda: self.now_s, sleep=self.sleep))

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        self.sleeps.append(seconds)
        self.at_poll.get(len(self.sleeps), lambda: None)()


@pytest.fixture
def run_end(monkeypatch: pytest.MonkeyPatch) -> EndOfRun:
    return EndOfRun(monkeypatch)


def rank_of_three(rank: int) -> RankLayout:
    return RankLayout(rank=rank, size=3, local_rank=rank, local_size=3)


@pytest.mark.parametrize("error", [ProfileError("of another GPU"), RankFailedError("rank 1 failed", speaker=1)])
@pytest.mark.parametrize("rank", [0, 2])
def test_a_rank_with_the_same_error_stays_until_the_speaker_has_spoken(
    error: ProfileError | RankFailedError, rank: int, run_end: EndOfRun
) -> None:
    """Ranks that ended at once had the launcher end the speaker: one run of four printed nothing."""
    speaker, other = OrderlyEnd(rank_of_three(1)), OrderlyEnd(rank_of_three(rank))
    assert speaker.speaks(error)
    assert run_end.sleeps == []  # the speaker waits for nobody
    run_end.at_poll[7] = speaker.close
    assert not other.speaks(error)
    assert run_end.sleeps == [rank_exit.POLL_S] * 7
    other.close()
    # Rank 0, whose process may host the store, stays for the other readers.
    assert run_end.sleeps[7:] == [rank_exit.LISTEN_S] * (rank == 0)


@pytest.mark.parametrize("rank", [0, 1])
def test_the_speaker_prints_before_it_lets_others_end_and_ends_last_of_all(
    rank: int, run_end: EndOfRun, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    events: list[tuple[str, object]] = []

    def tell(word: LastWord) -> None:
        events.append(("told", capsys.readouterr().err))

    monkeypatch.setattr(LastWord, "tell_spoken", tell)
    monkeypatch.setattr(rank_exit, "read_rank_layout", lambda _: rank_of_three(rank))
    monkeypatch.setattr(rank_exit.os, "_exit", lambda status: events.append(("ended", status)))

    def work(layout: RankLayout) -> int:
        raise ProfileError("data.pt: of another GPU")

    status_in_ranks(work, interrupted=lambda _: "")
    assert events == [("told", "error: data.pt: of another GPU\n"), ("ended", 2)]
    assert run_end.sleeps == [rank_exit.LISTEN_S] * (rank == 0)


def test_a_speaker_that_never_speaks_is_replaced(run_end: EndOfRun) -> None:
    waiting = OrderlyEnd(rank_of_three(2))
    assert waiting.speaks(RankFailedError("rank 1 failed", speaker=1))
    assert sum(run_end.sleeps) == pytest.approx(rank_exit.SPEAK_S, abs=2 * rank_exit.POLL_S)


def test_every_rank_may_speak_before_there_is_a_store(run_end: EndOfRun, monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(*_: object, **__: object) -> None:
        raise RankFailedError("finds no rank 0")

    monkeypatch.setattr(rank_exit, "connect", nobody)
    early = OrderlyEnd(rank_of_three(2))
    assert early.speaks(ProfileError("no such file"))
    assert not early.speaks(RankFailedError("rank 1 failed", speaker=1))  # its host has printed that line
    early.close()
    assert run_end.sleeps == []
