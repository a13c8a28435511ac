"""Exit of a program of several ranks: each with its status; one rank reports an error that all raise."""

import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from profiler.distributed.rank_layout import RankLayout, read_rank_layout
from profiler.distributed.rendezvous import RankFailedError
from spec.errors import ConfigError, UserError
from spec.program.command import exit_status


def status_in_ranks(work: Callable[[RankLayout], int], *, interrupted: Callable[[RankLayout], str]) -> int:
    """The exit status of this rank, whose place its launcher says; with other ranks the process ends here.

    Of an error that all ranks meet rank 0 speaks, or the first that is well; ``interrupted`` words the line after
    Ctrl-C ("" for none). Raises ConfigError for an environment that makes no sense.
    """
    layout = read_rank_layout(os.environ)

    def speaks(error: UserError) -> bool:
        if isinstance(error, RankFailedError):
            return error.speaker == layout.rank
        return layout.rank == 0 or (isinstance(error, ConfigError) and error.where == "environment")

    with rank_exit(layout) as leave:
        return leave(exit_status(lambda: work(layout), interrupted=lambda: interrupted(layout), speaks=speaks))


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
