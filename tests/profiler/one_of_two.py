"""One rank of a small run in which rank 1 may go wrong: one_of_two.py OUTPUT WAY.

WAY: well, raises (in preparing a case), dies (in the middle of a collective).
"""

import os
import sys
from pathlib import Path

from profdb.cases import Case, CollectiveCase, GemmCase
from profiler.benchmarks.launched import Launched
from profiler.profiling_run import RunOptions, run_profiling
from profiler.rank_layout import RankLayout, read_rank_layout
from profiler.torch_launcher import TorchLauncher
from profiler.world import World, leaving_on_failure
from spec.collectives import Collective
from spec.errors import UserError

CASES = (
    GemmCase(m=8, k=8, n=8),
    CollectiveCase(collective=Collective.ALL_REDUCE, size_bytes=1024, intra=2, inter=1),
    GemmCase(m=16, k=8, n=8),
)


class Wayward:
    """The real launcher, except that rank 1 goes wrong."""

    def __init__(self, world: World, way: str) -> None:
        self.world = world
        self.way = way

    def launch(self, case: Case) -> Launched:
        """As profiler.benchmarks.launched.Launcher."""
        launched = TorchLauncher(world=self.world).launch(case)
        if self.world.rank != 1 or case == CASES[0]:
            return launched
        if self.way == "raises" and case == CASES[2]:
            raise ValueError("no luck today")
        if self.way == "dies" and case == CASES[1]:
            return Launched(case=case, calls=(lambda: os._exit(7),), implementation="none", collective=True)
        return launched


def run(layout: RankLayout) -> int:
    """The exit status as gen_profiler_data.py gives it."""
    options = RunOptions(output=Path(sys.argv[1]), root=Path.cwd(), device="cpu", cases=CASES, timeout_s=30.0)
    try:
        run_profiling(options, layout, lambda world: Wayward(world, sys.argv[2]))
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    read = read_rank_layout(os.environ)
    with leaving_on_failure(read) as leave:
        status = leave(run(read))
    sys.exit(status)
