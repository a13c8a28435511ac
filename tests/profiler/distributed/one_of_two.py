"""One rank of a small run in which rank 1 may go wrong: one_of_two.py OUTPUT WAY LIMIT_S.

WAY: well, raises (in preparing a case), dies or stops (in the middle of a
collective), hangs (in preparing a case), loses (its device, until the program starts anew).
"""

import multiprocessing
import os
import signal
import sys
import time
from pathlib import Path

from profdb.cases import Case, CollectiveCase, GemmCase
from profiler.benchmarks.launched import Call, Launched
from profiler.device import Device
from profiler.distributed.rank_exit import rank_exit
from profiler.distributed.rank_layout import RankLayout, read_rank_layout
from profiler.distributed.rendezvous import RankFailedError
from profiler.distributed.restart import restarts
from profiler.distributed.world import World
from profiler.profiling_run import RunOptions, run_profiling
from profiler.torch_launcher import TorchLauncher
from spec.collectives import Collective
from spec.errors import UserError

# Processes forked from one that has imported torch and has used it for nothing.
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["profiler.profiling_run", "tests.profiler.distributed.one_of_two"])
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
        if self.world.rank == 1 and (self.way, case) in WAYS:
            calls = (WAYS[self.way, case],)
            return Launched(case=case, calls=calls, implementation="none", collective=launched.collective)
        return launched


def raises() -> None:
    raise ValueError("no luck today")


def loses() -> None:
    if not restarts(os.environ):
        Device.answers = lambda _: False  # type: ignore[method-assign]
        raise RuntimeError("CUDA error: an illegal memory access was encountered")


WAYS: dict[tuple[str, Case], Call] = {
    ("raises", CASES[2]): raises,
    ("loses", CASES[0]): loses,
    ("dies", CASES[1]): lambda: os._exit(7),
    ("stops", CASES[1]): lambda: os.kill(os.getpid(), signal.SIGSTOP),
    ("hangs", CASES[2]): lambda: time.sleep(3600),
}


def run(layout: RankLayout) -> int:
    """The exit status as gen_profiler_data.py gives it."""
    options = RunOptions(
        output=Path(sys.argv[1]), root=Path.cwd(), device="cpu", cases=CASES, timeout_s=float(sys.argv[3])
    )
    try:
        run_profiling(options, layout, lambda world: Wayward(world, sys.argv[2]))
    except RankFailedError as error:
        if error.speaker == layout.rank:
            print(error, file=sys.stderr)
        return 2
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def main() -> None:
    read = read_rank_layout(os.environ)
    with rank_exit(read) as leave:
        status = leave(run(read))
    sys.exit(status)


def rank_main(words: list[str], environment: dict[str, str], errors: Path) -> None:
    os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT), 2)
    os.environ |= environment
    sys.argv, sys.orig_argv = words, [sys.executable, *words]
    main()


def both(words: list[str], environments: list[dict[str, str]]) -> list[tuple[int | None, str]]:
    """Exit status and stderr of each rank; a rank that is stopped is killed when the other has ended."""
    errors = [Path(f"{words[1]}.errors{rank}") for rank in (0, 1)]
    ranks = [FORKS.Process(target=rank_main, args=(words, *one)) for one in zip(environments, errors, strict=True)]
    for each in ranks:
        each.start()
    ranks[0].join()
    if words[2] == "stops":
        ranks[1].kill()
    ranks[1].join()
    return [(each.exitcode, path.read_text()) for each, path in zip(ranks, errors, strict=True)]


if __name__ == "__main__":
    main()
