"""Ranks that watch each other: who is gone or stands still when a run does, said in one line before its time is up.

Every rank's thread writes beats to the store: a count that grows while the process lives, and how far it came. A
process that is gone or stopped beats no more; one that hangs beats, but is behind the others.
"""

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta

import torch.distributed as dist

from profiler.ranks.meeting import RankFailedError, ranks_named
from spec.program.ending import WRONG_INPUT, complain

BEAT_S = 0.5
LISTENS = 4
"""Beats between two readings: a count that did not grow meanwhile belongs to a process that does nothing."""

LISTEN_S = LISTENS * BEAT_S

ANSWER_S = 5.0
MOST_LETTERS = 120


@dataclass(frozen=True, slots=True)
class Beat:
    """What one rank last wrote."""

    count: int
    steps: int


@dataclass(slots=True, kw_only=True)
class Watch:
    """``store`` is this watch's own connection: a wait on another one must not hold up the beats."""

    store: dist.Store
    rank: int
    size: int
    timeout_s: float
    kept: str = ""
    """What is left of the run, for the line that ends it."""
    doing: str = "starting"
    steps: int = 0
    since: float = field(default_factory=time.monotonic)
    ends: Callable[[int], object] = os._exit
    _count: int = 0
    _stop: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to beat."""
        self._beat()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Beat no more."""
        self._stop.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def step(self, doing: str) -> None:
        """The rank got as far as this."""
        self.doing, self.since = doing, time.monotonic()
        self.steps += 1

    def account(self, cause: str = "") -> RankFailedError:
        """Who is gone or hangs, as the error that ends the run; takes LISTEN_S."""
        try:
            first = self._beats()
            self._listen()
            second = self._beats()
            if self.rank == 0:
                self._listen()  # the others may still read what this rank keeps
        except RuntimeError:
            return self._error("rank 0, which keeps the ranks together, is gone", cause, {self.rank: None})
        silent = [rank for rank in second if not lives(first.get(rank), second[rank])]
        if silent:
            return self._error(f"{ranks_named(silent)} gone or stopped", cause, second, silent)
        behind = min(beat.steps for beat in second.values() if beat is not None)
        late = [rank for rank, beat in second.items() if beat is not None and beat.steps == behind]
        if len(late) == self.size:
            return self._error("all ranks stand still", cause, second)
        return self._error(f"{ranks_named(late)} behind the others", cause, second)

    def _error(
        self, what: str, cause: str, beats: dict[int, Beat | None], silent: list[int] | None = None
    ) -> RankFailedError:
        """The line, said by the first rank that can; all ranks are at the same case."""
        cause = f" (rank {self.rank}: {cause[:MOST_LETTERS]})" if cause else ""
        kept = f"; {self.kept}" if self.kept else ""
        speaker = min((rank for rank in beats if rank not in (silent or ())), default=self.rank)
        return RankFailedError(f"{what} in {self.doing}{cause}{kept}", speaker=speaker)

    def _beats(self) -> dict[int, Beat | None]:
        """The last beat of every rank."""
        found: dict[int, Beat | None] = {}
        with self._lock:
            for rank in range(self.size):
                key = f"beat/{rank}"
                found[rank] = read_beat(self.store.get(key)) if self.store.check([key]) else None
        return found

    def _listen(self) -> None:
        """Wait for others' beats, and go on with this rank's."""
        for _ in range(LISTENS):
            time.sleep(BEAT_S)
            self._beat()

    def _beat(self) -> None:
        self._count += 1
        with self._lock:
            self.store.set(f"beat/{self.rank}", f"{self._count} {self.steps}")

    def _run(self) -> None:
        """Beat; end the process when it has stood still for too long."""
        self.store.set_timeout(timedelta(seconds=ANSWER_S))
        while not self._stop.wait(BEAT_S):
            try:
                self._beat()
            except RuntimeError:
                if self._stop.is_set():
                    return
            if time.monotonic() - self.since > self.timeout_s - LISTEN_S:
                found = self.account()
                if self._stop.is_set() or time.monotonic() - self.since < self.timeout_s - LISTEN_S:
                    continue  # it went on meanwhile
                if found.speaker == self.rank:
                    complain(f"error: {found}")
                self.ends(WRONG_INPUT)
                return


def read_beat(text: bytes) -> Beat:
    """A beat as written."""
    count, steps = text.split()
    return Beat(int(count), int(steps))


def lives(first: Beat | None, second: Beat | None) -> bool:
    """Whether a rank has beaten between two readings."""
    return first is not None and second is not None and second.count > first.count
