"""Exit of a program with several ranks: each with its status; one rank reports an error that all raise."""

import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from profiler.distributed.rank_layout import RankLayout, read_rank_layout
from profiler.distributed.rendezvous import POLL_S, LastWord, RankFailedError, connect
from profiler.distributed.watchdog import ANSWER_S, LISTEN_S, SPEAK_S
from spec.errors import UserError
from spec.program.command import exit_status


def status_in_ranks(work: Callable[[RankLayout], int], *, interrupted: Callable[[RankLayout], str]) -> int:
    """Returns the exit status of this rank, whose place its launcher gives in the environment; with other ranks the
    process ends here.

    An error is reported once, by the rank that knows most about it or else by the first that meets it; the others
    wait for the report. ``interrupted`` returns the line after Ctrl-C ("" for none). Raises ConfigError for a
    contradictory environment.
    """
    layout = read_rank_layout(os.environ)
    end = OrderlyEnd(layout)
    with rank_exit(layout) as leave:
        status = exit_status(lambda: work(layout), interrupted=lambda: interrupted(layout), speaks=end.speaks)
        end.close()
        return leave(status)


@dataclass(slots=True)
class OrderlyEnd:
    """The end of this rank. A launcher ends all ranks when the first has ended, including one that is about to report
    an error, so the others wait for it."""

    layout: RankLayout
    word: LastWord | None = None

    def speaks(self, error: UserError) -> bool:
        """Returns whether this rank reports the error: it is the one named in it, the first that meets it, or the one
        named has not reported."""
        if self.layout.size == 1:
            return True
        speaker = error.speaker if isinstance(error, RankFailedError) else None
        try:
            # Rank 0 opens the store if the run ends before it did.
            store = connect(self.layout, ANSWER_S, hosts=self.layout.rank == 0, may_be_open=True)
            word = LastWord(store, self.layout.rank)
            if speaker is None:
                speaker = word.claim()
            if speaker != self.layout.rank and wait_for(lambda: word.is_spoken):
                # Rank 0 may host the store, in which the others read that.
                self.word = word if self.layout.rank == 0 else None
                return False
        except (RankFailedError, RuntimeError):
            # The store is gone: if another rank was to report, its host has done so.
            return speaker in (None, self.layout.rank)
        self.word = word
        return True

    def close(self) -> None:
        """Lets the others end, once this rank has reported; rank 0, whose process may host the store, stays until
        they have read that."""
        if self.word is None:
            return
        try:
            self.word.tell_spoken()
        except RuntimeError:
            return  # the store is gone, and with it all readers
        if self.layout.rank == 0:
            time.sleep(LISTEN_S)


def wait_for(holds: Callable[[], bool]) -> bool:
    """Returns True once it holds, False after SPEAK_S."""
    deadline = time.monotonic() + SPEAK_S
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)
    return True


@contextmanager
def rank_exit(layout: RankLayout) -> Iterator[Callable[[int], int]]:
    """Returns a context whose value is a function for the end of a script: it returns an exit status, or, when there
    are other ranks, ends this process at once.

    After a failure the groups cannot be destroyed in order: that would wait for ranks that are gone, or abort. After
    a success a thread of gloo may still release a tensor. A Python that finalizes ends the thread that asks for its
    lock, which C++ answers by aborting the process ("terminate called without an active exception").
    """

    def leave(status: int) -> int:
        if layout.size > 1:
            # os._exit flushes nothing.
            for stream in (sys.stdout, sys.stderr):
                if stream is not None:
                    stream.flush()
            os._exit(status)
        return status

    try:
        yield leave
    # Including SystemExit and KeyboardInterrupt: any of them would finalize Python.
    except BaseException:
        if layout.size > 1:
            traceback.print_exc()
            leave(1)
        raise
