"""Watchdog of the ranks: when a run makes no progress, one line names the ranks that are gone or hang.

A thread of every rank writes heartbeats to the store: a count that grows while the process lives, the number of its
steps, and its current operation. A process that is exited or stopped sends no heartbeats. One that hangs sends them, but is
behind the others. A rank that cannot go on claims the report in the store, and the others end without a message once it
has reported. A rank that compiles kernels counts as making progress, and so do those that wait for it.
"""

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta

import torch.distributed as dist

from profiler.distributed.rendezvous import LastWord, RankFailedError, rank_names
from spec.program.command import WRONG_INPUT, print_error

BEAT_S = 0.5
LISTENS = 4
"""Beats between two readings: a process whose count did not grow in between is exited or stopped."""

LISTEN_S = LISTENS * BEAT_S

PULSE_S = 10.0
SILENT_S = 30.0
"""Rank 0 reads all heartbeats every PULSE_S: a rank without any for SILENT_S is gone, however long the others may still
wait. So is the host of the store, if it has not answered for as long. Both count this rank's beats, not the clock, which
goes on while a machine is suspended."""

ANSWER_S = 5.0
SPEAK_S = 10.0
"""Longest that a rank waits for the report of the one that claimed it; then it ends with a line of its own."""
MOST_COMPILE_S = 900.0
"""Longest compilation of a kernel: FlashAttention-4's and DeepGEMM's take up to some minutes."""
MOST_LETTERS = 120
MAX_RANKS_NAMED = 4
COMPILES = "compiles"
"""Key of the last rank that compiled, and its beat."""


@dataclass(frozen=True, slots=True)
class Beat:
    """Last heartbeat of a rank. ``place`` is its progress in words of the run's own."""

    count: int
    steps: int
    place: str = ""
    doing: str = ""


def fewest_steps(beats: Mapping[int, Beat]) -> Sequence[int]:
    """Returns the ranks with the fewest steps."""
    least = min(beat.steps for beat in beats.values())
    return [rank for rank, beat in beats.items() if beat.steps == least]


@dataclass(slots=True, kw_only=True)
class Watchdog:
    """Heartbeat of this rank and diagnosis of the others. ``store`` is a connection of its own: a wait on another
    connection must not delay the beats."""

    store: dist.Store
    rank: int
    size: int
    timeout_s: float
    speaks_alone: bool = False
    saved: str = ""
    """What is stored of the run, for the line that ends it."""
    doing: str = "starting"
    place: str = ""
    inside: Callable[[], str] = lambda: ""
    """Operation of that step in which this rank is, where the run can tell."""
    steps: int = 0
    since: float = field(default_factory=time.monotonic)
    ends: Callable[[int], object] = os._exit
    behind: Callable[[Mapping[int, Beat]], Sequence[int]] = fewest_steps
    """Selects from the living ranks those that the others wait for; all of them if none is behind."""
    _compiles_since: float | None = None
    _compiled: bytes = b""
    _unanswered: int = 0
    _heard: dict[int, tuple[int, int]] = field(default_factory=dict)
    _count: int = 0
    _stop: threading.Event = field(default_factory=threading.Event)
    # A connection to the store serves one thread at a time: the heartbeats, or a diagnosis.
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _last: threading.Lock = field(default_factory=threading.Lock)
    _thread: threading.Thread | None = None

    @property
    def word(self) -> LastWord:
        """Returns the agreement on who reports why the run ends."""
        return LastWord(self.store, self.rank)

    def start(self) -> None:
        """Starts the heartbeats."""
        self._beat()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._thread.start()
        threading.Thread(target=self._guard, name="guard", daemon=True).start()

    def stop(self) -> None:
        """Stops the heartbeats."""
        self._stop.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(ANSWER_S)

    @property
    def stopped(self) -> bool:
        """Returns whether the heartbeats have stopped."""
        return self._stop.is_set()

    def step(self, doing: str) -> None:
        """Notes that the rank has reached this operation."""
        self.doing, self.since = doing, time.monotonic()
        self.steps += 1

    @contextmanager
    def compiling(self) -> Iterator[None]:
        """Returns a context for what may compile kernels: neither this rank nor those that wait for it count as
        hanging."""
        self._compiles_since = time.monotonic()
        try:
            yield
        finally:
            self._compiles_since, self.since = None, time.monotonic()

    def fail(self) -> None:
        """Claims the report of why this rank cannot go on: the others end without a message."""
        self.stop()
        try:
            self.word.claim()
        except RuntimeError:
            return  # the store is gone, and with it all readers

    def diagnose(self, cause: str = "", *, outside: str = "") -> RankFailedError:
        """Returns the error that ends the run; takes LISTEN_S. The first rank to call this reports it, and its error
        names the ranks that are gone or hang. ``outside`` is the cause if no rank is gone. If two threads of a rank
        call this, only the first gets a result: it ends the process."""
        # Not released if this succeeds: a second thread then waits here until the process ends.
        self._last.acquire()
        try:
            with self._lock:
                speaker = self.word.claim()
            result = self._diagnosis(cause, outside) if speaker == self.rank else self._line(f"rank {speaker} failed")
        except RuntimeError:
            return self._store_gone(cause)
        return RankFailedError(result, speaker=speaker)

    def _store_gone(self, cause: str) -> RankFailedError:
        message = self._line("the host of rank 0, which keeps the ranks together, is gone", cause)
        return RankFailedError(message, speaker=self.rank if self.speaks_alone else -1)

    def _diagnosis(self, cause: str, outside: str) -> str:
        """Returns the line that names the ranks that are gone or hang."""
        first = self._beats()
        self._listen()
        second = self._beats()
        # The order of the questions: who sends no heartbeats, was the cause outside, who is behind, or nobody.
        silent = [rank for rank in second if not is_alive(first.get(rank), second[rank])]
        if silent:
            return self._gone(silent, cause)
        if outside:
            return self._line(outside, cause)
        living = {rank: beat for rank, beat in second.items() if beat is not None}
        # If all ranks are equally far, none is to blame: a deadlock, or a collective of different operations.
        late = list(self.behind(living))
        if len(late) == self.size:
            return self._line(f"no rank makes progress{differences(living)}", cause)
        return self._line(f"{self._names(late)} behind the others", cause, living[late[0]].doing)

    def _gone(self, ranks: Sequence[int], cause: str = "") -> str:
        return self._line(f"{self._names(ranks)} exited or stopped", cause)

    def _names(self, ranks: Sequence[int]) -> str:
        """Returns the ranks by number, with their hosts if the run has several."""
        with self._lock:
            hosts = {
                rank: self.store.get(f"here/{rank}").decode() for rank in {0, self.rank, *ranks} if self._came(rank)
            }
        several = len(set(hosts.values())) > 1
        return rank_names(ranks, list(dict.fromkeys(hosts[rank] for rank in ranks if rank in hosts)) if several else ())

    def _came(self, rank: int) -> bool:
        return self.store.check([f"here/{rank}"])

    def _line(self, what: str, cause: str = "", doing: str = "") -> str:
        """Returns the line; ``doing`` is this rank's operation unless given."""
        cause = f" (rank {self.rank}: {cause[:MOST_LETTERS]})" if cause else ""
        saved = f"; {self.saved}" if self.saved else ""
        return f"{what} in {doing or self.doing}{cause}{saved}"

    def _beats(self) -> dict[int, Beat | None]:
        """Returns the last beat of every rank."""
        result: dict[int, Beat | None] = {}
        with self._lock:
            for rank in range(self.size):
                key = f"beat/{rank}"
                result[rank] = read_beat(self.store.get(key)) if self.store.check([key]) else None
        return result

    def _listen(self) -> None:
        """Waits for the beats of others while this rank's go on."""
        for _ in range(LISTENS):
            time.sleep(BEAT_S)
            self._beat()

    def _beat(self) -> None:
        self._count += 1
        compiles = self._compiles_since is not None and time.monotonic() - self._compiles_since < MOST_COMPILE_S
        with self._lock:
            # ``doing`` is a phase of the run; ``inside`` a single operation, which changes too often to count as a
            # step.
            inside = self.inside()[:MOST_LETTERS]
            doing = f"{self.doing}, in {inside}" if inside else self.doing
            # Four fields; the last one may have spaces in it.
            beat = f"{self._count} {self.steps} {self.place or '-'} {doing}"
            self.store.set(f"beat/{self.rank}", beat)
            if compiles:
                self.store.set(COMPILES, f"{self.rank} {self._count}")

    def _run(self) -> None:
        """Sends heartbeats; ends the process when another rank has failed, or this one has made no progress for too
        long."""
        # A store that is gone must not hold up the thread for torch's default of five minutes.
        self.store.set_timeout(timedelta(seconds=ANSWER_S))
        while not self._stop.wait(BEAT_S):
            try:
                self._beat()
                self._heed_others()
                self._wait_for_compilers()
                self._feel_pulse()
            except RuntimeError:
                if self._stop.is_set():
                    return
                continue
            self._unanswered = 0
            if self._still_s() > self.timeout_s - LISTEN_S:
                # Before the timeout by LISTEN_S, which the diagnosis takes.
                result = self.diagnose()
                if self._stop.is_set() or self._still_s() < self.timeout_s - LISTEN_S:
                    # The run has gone on during the diagnosis.
                    if result.speaker == self.rank:
                        self.word.withdraw()
                    self._last.release()
                    continue
                self.end_with(result)
                return

    def _still_s(self) -> float:
        return time.monotonic() - self.since

    def _heed_others(self) -> None:
        """Ends the process once another rank has reported; with a line of this rank's own if that one cannot."""
        with self._lock:
            speaker = self.word.speaker
        since = time.monotonic()
        while speaker not in (None, self.rank) and not self._stop.is_set():
            with self._lock:
                spoken = self.word.is_spoken
            if spoken or time.monotonic() - since > SPEAK_S:
                if not spoken and self.speaks_alone:
                    print_error(f"error: {self._line(f'rank {speaker} failed without a word')}")
                self._stay()
                self.ends(WRONG_INPUT)
                return
            self._listen()
            with self._lock:
                speaker = self.word.speaker

    def _stay(self) -> None:
        """Waits on rank 0, which may host the store: the others have to read it before it goes."""
        if self.rank == 0:
            self._listen()

    def _wait_for_compilers(self) -> None:
        """Counts as progress of this rank that some rank compiles."""
        if self._still_s() > min(PULSE_S, 0.25 * self.timeout_s):
            with self._lock:
                compiled = self.store.get(COMPILES) if self.store.check([COMPILES]) else b""
            # The key changes with every heartbeat of a rank that compiles.
            if compiled != self._compiled:
                self._compiled, self.since = compiled, time.monotonic()

    def _feel_pulse(self) -> None:
        """Ends the run, on rank 0, when a rank has sent no heartbeat for SILENT_S."""
        if self.rank or self._count % round(PULSE_S / BEAT_S):
            return
        for rank, beat in self._beats().items():
            count = beat.count if beat is not None else 0
            # Per rank its last count, and how many of these readings have found it unchanged.
            before, pulses = self._heard.get(rank, (-1, 0))
            self._heard[rank] = (count, pulses + 1 if count == before else 0)
        silent = [rank for rank, (_, pulses) in self._heard.items() if pulses * PULSE_S >= SILENT_S]
        if silent:
            self._last.acquire()
            with self._lock:
                speaker = self.word.claim()
            self.end_with(RankFailedError(self._gone(silent), speaker=speaker))

    def end_with(self, result: RankFailedError) -> None:
        """Ends the process: reports why if this rank is to, else waits for the report."""
        if result.speaker == self.rank:
            print_error(f"error: {result}")
            self.tell_spoken()
        else:
            self._heed_others()
        self._stay()
        self.ends(WRONG_INPUT)

    def tell_spoken(self) -> None:
        """Lets the others end: this rank has reported why."""
        try:
            with self._lock:
                self.word.tell_spoken()
        except RuntimeError:
            return  # the store is gone, and with it all readers

    def _guard(self) -> None:
        """Ends the process when the store does not answer: a request to a host that is gone may never return."""
        while not self._stop.wait(BEAT_S):
            # The heartbeat thread sets this to 0 after every answer of the store.
            self._unanswered += 1
            if self._unanswered * BEAT_S > SILENT_S:
                result = self._store_gone("")
                if result.speaker == self.rank:
                    print_error(f"error: {result}")
                self.ends(WRONG_INPUT)
                return


def read_beat(text: bytes) -> Beat:
    """Returns a beat as written."""
    count, steps, place, doing = text.decode("utf-8", "replace").split(" ", 3)
    return Beat(int(count), int(steps), "" if place == "-" else place, doing)


def differences(beats: Mapping[int, Beat]) -> str:
    """Returns each rank and its operation, the first few, where they differ."""
    if len({beat.doing for beat in beats.values()}) == 1:
        return ""
    ranks = [f"rank {rank} in {beat.doing}" for rank, beat in list(beats.items())[:MAX_RANKS_NAMED]]
    return f" ({'; '.join([*ranks, '...'] if len(beats) > MAX_RANKS_NAMED else ranks)})"


def is_alive(first: Beat | None, second: Beat | None) -> bool:
    """Returns whether a rank has sent a heartbeat between two readings."""
    return first is not None and second is not None and second.count > first.count
