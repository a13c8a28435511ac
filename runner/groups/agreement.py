"""One end for all ranks of what may fail on some of them alone."""

import os
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import TypeVar

from profiler.distributed.rendezvous import RankFailedError, rank_names
from profiler.distributed.world import World
from spec.errors import UserError
from spec.program.command import WRONG_INPUT, complain

Found = TypeVar("Found")
FINE = ""


class NotAgreedError(RankFailedError):
    """Raised on all ranks at the same place, which could go on with something else."""


def agree(world: World, action: Callable[[], Found]) -> Found:
    """The result of ``action`` on this rank, when it went well on all.

    Raises NotAgreedError, said once, with the ranks on which it raised a UserError and what that was.
    """
    result: list[Found] = []
    word = FINE
    try:
        result.append(action())
    except UserError as error:
        word = str(error) or type(error).__name__
    words = world.gather(word)
    failed = [rank for rank, said in enumerate(words) if said != FINE]
    if not failed:
        return result[0]
    first = words[failed[0]]
    alike = [rank for rank in failed if words[rank] == first]
    who = "" if len(alike) == world.size else f"{rank_names(alike)}: "
    raise NotAgreedError(f"{who}{first}", speaker=0)


def check_same(world: World, word: str, what: str) -> None:
    """Raises NotAgreedError naming the ranks whose ``word`` is not rank 0's; ``what`` differs on them."""
    words = world.gather(word)
    others = [rank for rank, said in enumerate(words) if said != words[0]]
    if others:
        raise NotAgreedError(
            f"{rank_names(others)}: {what} differs from rank 0's: put the same on every node", speaker=0
        )


# The end of a run that an error or its launcher breaks off: one rank speaks, all keep what they have.

OUTSIDE = "ended from outside (SIGTERM)"


@dataclass(slots=True)
class AbortHook:
    """``keep`` saves what the run has so far; whoever has something to save puts it here."""

    keep: Callable[[], None] = lambda: None


def install_abort_hook(world: World) -> AbortHook:
    """Install the hook: from now on a run that hangs, or that its launcher ends because a rank is gone, keeps what it has before this
    process ends with WRONG_INPUT. Nothing happens in a world of one process."""
    words, watch = AbortHook(), world.watch
    if watch is None:
        return words

    def ends(status: int) -> None:
        words.keep()
        os._exit(status)

    def terminate() -> None:
        if watch.stopped:
            return  # this rank is ending by itself
        result = watch.diagnose(outside=OUTSIDE)
        if result.speaker == world.rank:
            complain(f"error: {result}")
        ends(WRONG_INPUT)

    watch.ends = ends
    on_termination(terminate)
    return words


def report_failure(world: World, error: BaseException) -> None:
    """Tell the other ranks, before an error ends this process, that this rank reports it."""
    if world.watch is not None and isinstance(error, RankFailedError) and error.speaker == world.rank:
        world.watch.fail()


def on_termination(action: Callable[[], None]) -> None:
    """Run ``action`` in a thread when SIGTERM comes: the main thread may be in a collective, where Python's
    own handlers wait for its end."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.signal(signal.SIGTERM, _left_to_the_thread)
    signal.set_wakeup_fd(writing)

    def listen() -> None:
        while True:
            if os.read(reading, 1) == bytes([signal.SIGTERM]):
                action()

    threading.Thread(target=listen, name="termination", daemon=True).start()


def _left_to_the_thread(number: int, frame: FrameType | None) -> None:
    """Python writes the signal's number to the pipe."""
