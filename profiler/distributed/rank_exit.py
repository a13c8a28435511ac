"""Exit of a program of several ranks: each with its status; one rank reports an error that all raise."""

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
    """The exit status of this rank, whose place its launcher says; with other ranks the process ends here.

    An error is said once, by the rank that can say most about it or else by the first that meets it; the others wait until
    it is said. ``interrupted`` words the line after Ctrl-C ("" for none). Raises ConfigError for an environment that makes
    no sense.
    """
    layout = read_rank_layout(os.environ)
    end = OrderlyEnd(layout)
    with rank_exit(layout) as leave:
        status = exit_status(lambda: work(layout), interrupted=lambda: interrupted(layout), speaks=end.speaks)
        end.close()
        return leave(status)


@dataclass(slots=True)
class OrderlyEnd:
    """The end of this rank: a launcher ends all ranks when the first has ended, also the one that is about to speak."""

    layout: RankLayout
    word: LastWord | None = None

    def speaks(self, error: UserError) -> bool:
        """True if this rank says the error: it is the one named in it, the first that meets it, or the one named has not
        spoken."""
        if self.layout.size == 1:
            return True
        speaker = error.speaker if isinstance(error, RankFailedError) else None
        try:
            # rank 0 opens the store if the run ends before it did
            store = connect(self.layout, ANSWER_S, hosts=self.layout.rank == 0, may_be_open=True)
            word = LastWord(store, self.layout.rank)
            if speaker is None:
                speaker = word.claim()
            if speaker != self.layout.rank and wait_for(lambda: word.is_spoken):
                return False
        except (RankFailedError, RuntimeError):
            # the store is gone: whoever kept it has said why, if that was to be said by another
            return speaker in (None, self.layout.rank)
        self.word = word
        return True

    def close(self) -> None:
        """The word, if this rank had it, is said: let the others end, and rank 0, which may keep the store, stay for
        them."""
        if self.word is None:
            return
        try:
            self.word.tell_spoken()
        except RuntimeError:
            return  # nobody is left who could read it
        if self.layout.rank == 0:
            time.sleep(LISTEN_S)


def wait_for(holds: Callable[[], bool]) -> bool:
    """True once it holds, False after SPEAK_S."""
    deadline = time.monotonic() + SPEAK_S
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)
    return True


@contextmanager
def rank_exit(layout: RankLayout) -> Iterator[Callable[[int], int]]:
    """For the body of a script: gives a function that returns an exit status, or, when there are other ranks, ends this
    process at once.

    After a failure the groups cannot be taken down in order: their ends would wait for ranks that are gone, or abort.
    After a success a thread of gloo may still let go of a tensor; a Python that takes itself down ends the thread that
    asks for its lock, which C++ answers by aborting the process ("terminate called without an active exception").
    """

    def leave(status: int) -> int:
        if layout.size > 1:
            for stream in (sys.stdout, sys.stderr):
                if stream is not None:
                    stream.flush()
            os._exit(status)
        return status

    try:
        yield leave
    except BaseException:
        if layout.size > 1:
            traceback.print_exc()
            leave(1)
        raise
