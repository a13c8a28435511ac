"""How a program of several ranks ends: each with its status, and of an error that all meet one speaks."""

import os
from collections.abc import Callable

from profiler.ranks.meeting import RankFailedError
from profiler.ranks.rank_layout import RankLayout, read_rank_layout
from profiler.ranks.world import leaving_on_failure
from spec.errors import ConfigError, UserError
from spec.program.ending import exit_status


def status_in_ranks(work: Callable[[RankLayout], int], *, interrupted: Callable[[RankLayout], str]) -> int:
    """The exit status of this rank, whose place its launcher says.

    Of an error that all ranks meet rank 0 speaks, or the first that is well; ``interrupted`` words the line after
    Ctrl-C ("" for none). Raises ConfigError for an environment that makes no sense.
    """
    layout = read_rank_layout(os.environ)

    def speaks(error: UserError) -> bool:
        if isinstance(error, RankFailedError):
            return error.speaker == layout.rank
        return layout.rank == 0 or (isinstance(error, ConfigError) and error.where == "environment")

    with leaving_on_failure(layout) as leave:
        return leave(
            exit_status(lambda: work(layout), interrupted=lambda: interrupted(layout), speaks=speaks)
        )
