"""Runs of three ranks that end in an error, by a launcher that ends all when the first has ended, as torchrun does:
``run(WAY)`` returns what it wrote to stderr, and the statuses.

WAY: alike (all raise the same, rank 0 last), early (rank 1 alone raises, before the ranks have met), named (rank 2 could
say most about it, and is slow), mute (the rank that should speak is killed before).
"""

import os
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from profiler.distributed.rank_exit import status_in_ranks
from profiler.distributed.rank_layout import RankLayout
from profiler.distributed.rendezvous import RankFailedError, meet
from spec.errors import ConfigError, ProfileError
from tests.profiler.distributed.one_of_two import FORKS
from tests.profiler.distributed.test_world import free_port

RANKS = 3


def alike(layout: RankLayout) -> None:
    time.sleep(1.5 * (RANKS - layout.rank))
    raise ProfileError("data.pt: of another GPU")


def early(layout: RankLayout) -> None:
    if layout.rank == 1:
        raise ConfigError(where="environment", key="GPU", value=1, allowed="one that works")
    meet(layout, 60.0)


def named(layout: RankLayout) -> None:
    if layout.rank == 2:
        time.sleep(2.0)
        raise RankFailedError("rank 2: out of memory", speaker=2)
    raise RankFailedError("rank 2 failed", speaker=2)


def mute(layout: RankLayout) -> None:
    if layout.rank == 2:
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGKILL)
    raise RankFailedError("rank 2 failed", speaker=2)


WAYS: dict[str, Callable[[RankLayout], None]] = {way.__name__: way for way in (alike, early, named, mute)}


def rank_main(rank: int, port: str, way: str, said: str) -> None:
    os.dup2(os.open(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(RANKS), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(RANKS)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}

    def work(layout: RankLayout) -> int:
        WAYS[way](layout)
        return 0

    os._exit(status_in_ranks(work, interrupted=lambda layout: "interrupted"))


def run(way: str) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as folder:
        said, port = f"{folder}/said", free_port()
        ranks = [FORKS.Process(target=rank_main, args=(rank, port, way, said)) for rank in range(RANKS)]
        for each in ranks:
            each.start()
        waits = [each for rank, each in enumerate(ranks) if (way, rank) != ("mute", 2)]
        while all(each.is_alive() for each in waits):
            time.sleep(0.01)
        for each in ranks:
            each.terminate()
            each.join()
        lines = Path(said).read_text().splitlines(keepends=True)
        # The launcher may end the host of the store while a rank asks it: torch's line on that, and its stack.
        ours = [
            line for line in lines if not line.startswith(("[W", "Exception raised from", "frame #")) and line.strip()
        ]
        return {"said": "".join(ours), "statuses": [each.exitcode for each in ranks]}
