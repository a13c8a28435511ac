"""Watchdog of the ranks: when a run stands still, one line names who is gone or hangs before its time is up.

Every rank's thread writes beats to the store: a count that grows while the process lives, how far it came, and what it
does. A process that is gone or stopped beats no more; one that hangs beats, but is behind the others. A rank that
cannot go on says so in the store, and the others end without a word.
"""

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

import torch.distributed as dist

from profiler.distributed.rendezvous import RankFailedError, rank_names
from spec.program.command import WRONG_INPUT, print_error

BEAT_S = 0.5
LISTENS = 4
"""Beats between two readings: a count that did not grow meanwhile belongs to a process that does nothing."""

LISTEN_S = LISTENS * BEAT_S

ANSWER_S = 5.0
MOST_LETTERS = 120
MAX_RANKS_NAMED = 4
FAILED = "failed"
"""Key of the rank that has said why the run ends."""


@dataclass(frozen=True, slots=True)
class Beat:
    """Last beat of a rank. ``place`` is its progress in words of the run's own."""

    count: int
    steps: int
    place: str = ""
    doing: str = ""


def fewest_steps(beats: Mapping[int, Beat]) -> Sequence[int]:
    """The ranks that got least far."""
    least = min(beat.steps for beat in beats.values())
    return [rank for rank, beat in beats.items() if beat.steps == least]


@dataclass(slots=True, kw_only=True)
class Watchdog:
    """``store`` is this watch's own connection: a wait on another one must not hold up the beats."""

    store: dist.Store
    rank: int
    size: int
    timeout_s: float
    saved: str = ""
    """What is left of the run, for the line that ends it."""
    doing: str = "starting"
    place: str = ""
    inside: Callable[[], str] = lambda: ""
    """Which operation of that this rank is in, where somebody can tell."""
    steps: int = 0
    since: float = field(default_factory=time.monotonic)
    ends: Callable[[int], object] = os._exit
    behind: Callable[[Mapping[int, Beat]], Sequence[int]] = fewest_steps
    """Of living ranks those for which the others wait; all of them where none is to blame."""
    _count: int = 0
    _stop: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _last: threading.Lock = field(default_factory=threading.Lock)
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

    @property
    def stopped(self) -> bool:
        """True if it beats no more."""
        return self._stop.is_set()

    def step(self, doing: str) -> None:
        """The rank got as far as this."""
        self.doing, self.since = doing, time.monotonic()
        self.steps += 1

    def fail(self) -> None:
        """This rank cannot go on and says why: the others end without a word."""
        self.stop()
        try:
            self._claim()
            self._stay()
        except RuntimeError:
            return  # nobody is left who could read it

    def diagnose(self, cause: str = "", *, outside: str = "") -> RankFailedError:
        """The error that ends the run and names who is gone or hangs; takes LISTEN_S. The rank that knows first says it.
        ``outside`` is what ended the run where no rank is gone. Of two threads that ask, only the first gets an answer:
        it ends the process."""
        self._last.acquire()
        try:
            result = self._diagnosis(cause, outside)
            speaker = self._claim()
            self._stay()
        except RuntimeError:
            message = self._line("rank 0, which keeps the ranks together, is gone", cause)
            return RankFailedError(message, speaker=1)
        return RankFailedError(result, speaker=speaker)

    def _diagnosis(self, cause: str, outside: str) -> str:
        """The line that says who is gone or hangs; "" where another rank has said it."""
        first = self._beats()
        if self._failed_rank() is None:
            self._listen()
        second = self._beats()
        if self._failed_rank() is not None:
            return ""
        silent = [rank for rank in second if not is_alive(first.get(rank), second[rank])]
        if silent:
            return self._line(f"{rank_names(silent)} gone or stopped", cause)
        if outside:
            return self._line(outside, cause)
        living = {rank: beat for rank, beat in second.items() if beat is not None}
        late = list(self.behind(living))
        if len(late) == self.size:
            return self._line(f"all ranks stand still{differences(living)}", cause)
        return self._line(f"{rank_names(late)} behind the others", cause, living[late[0]].doing)

    def _line(self, what: str, cause: str, doing: str = "") -> str:
        """The line: ``doing`` is what this rank does unless given."""
        cause = f" (rank {self.rank}: {cause[:MOST_LETTERS]})" if cause else ""
        saved = f"; {self.saved}" if self.saved else ""
        return f"{what} in {doing or self.doing}{cause}{saved}"

    def _beats(self) -> dict[int, Beat | None]:
        """The last beat of every rank."""
        result: dict[int, Beat | None] = {}
        with self._lock:
            for rank in range(self.size):
                key = f"beat/{rank}"
                result[rank] = read_beat(self.store.get(key)) if self.store.check([key]) else None
        return result

    def _listen(self) -> None:
        """Wait for others' beats, and go on with this rank's."""
        for _ in range(LISTENS):
            time.sleep(BEAT_S)
            self._beat()

    def _claim(self) -> int:
        """The rank that says why the run ends: this one, where no other has claimed it."""
        with self._lock:
            return int(self.store.compare_set(FAILED, "", str(self.rank)))

    def _stay(self) -> None:
        """Rank 0 may keep the store: the others have to read it before it goes."""
        if self.rank == 0:
            self._listen()

    def _failed_rank(self) -> int | None:
        """The rank that has said that it cannot go on."""
        with self._lock:
            return int(self.store.get(FAILED)) if self.store.check([FAILED]) else None

    def _beat(self) -> None:
        self._count += 1
        with self._lock:
            inside = self.inside()[:MOST_LETTERS]
            doing = f"{self.doing}, in {inside}" if inside else self.doing
            beat = f"{self._count} {self.steps} {self.place or '-'} {doing}"
            self.store.set(f"beat/{self.rank}", beat)

    def _run(self) -> None:
        """Beat; end the process when another has failed, or this one has stood still for too long."""
        self.store.set_timeout(timedelta(seconds=ANSWER_S))
        while not self._stop.wait(BEAT_S):
            try:
                self._beat()
                if self._failed_rank() not in (None, self.rank) and not self._stop.is_set():
                    self._stay()
                    self.ends(WRONG_INPUT)
            except RuntimeError:
                if self._stop.is_set():
                    return
            if time.monotonic() - self.since > self.timeout_s - LISTEN_S:
                result = self.diagnose()
                if self._stop.is_set() or time.monotonic() - self.since < self.timeout_s - LISTEN_S:
                    self._last.release()
                    continue  # it went on meanwhile
                if result.speaker == self.rank:
                    print_error(f"error: {result}")
                self.ends(WRONG_INPUT)
                return


def read_beat(text: bytes) -> Beat:
    """A beat as written."""
    count, steps, place, doing = text.decode("utf-8", "replace").split(" ", 3)
    return Beat(int(count), int(steps), "" if place == "-" else place, doing)


def differences(beats: Mapping[int, Beat]) -> str:
    """Each rank and its operation, the first few, where they differ."""
    if len({beat.doing for beat in beats.values()}) == 1:
        return ""
    ranks = [f"rank {rank} in {beat.doing}" for rank, beat in list(beats.items())[:MAX_RANKS_NAMED]]
    return f" ({'; '.join([*ranks, '...'] if len(beats) > MAX_RANKS_NAMED else ranks)})"


def is_alive(first: Beat | None, second: Beat | None) -> bool:
    """True if a rank has beaten between two readings."""
    return first is not None and second is not None and second.count > first.count
