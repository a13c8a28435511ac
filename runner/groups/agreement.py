"""Agreement of all ranks on what may fail on some of them, and the orderly end of a run that fails or is killed."""

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
from spec.program.command import WRONG_INPUT, print_error

Value = TypeVar("Value")
NO_ERROR = ""


class NotAgreedError(RankFailedError):
    """Raised on all ranks at the same point; the world stays usable for other work."""


def agree(world: World, action: Callable[[], Value]) -> Value:
    """The result of ``action`` on this rank, if it succeeded on all ranks.

    Raises NotAgreedError, reported once, with the ranks on which it raised a UserError and the error's text.
    """
    result: list[Value] = []
    message = NO_ERROR
    try:
        result.append(action())
    except UserError as error:
        message = str(error) or type(error).__name__
    messages = world.gather(message)
    failed = [rank for rank, other in enumerate(messages) if other != NO_ERROR]
    if not failed:
        return result[0]
    first = messages[failed[0]]
    alike = [rank for rank in failed if messages[rank] == first]
    who = "" if len(alike) == world.size else f"{rank_names(alike)}: "
    raise NotAgreedError(f"{who}{first}", speaker=0)


def check_same(world: World, word: str, what: str) -> None:
    """Raises NotAgreedError naming the ranks whose ``word`` is not rank 0's; ``what`` differs on them."""
    words = world.gather(word)
    others = [rank for rank, other in enumerate(words) if other != words[0]]
    if others:
        raise NotAgreedError(
            f"{rank_names(others)}: {what} differs from rank 0's: use the same on all nodes", speaker=0
        )


# The end of a run that an error or its launcher stops: one rank reports, all save what they have.

OUTSIDE = "ended from outside (SIGTERM)"


@dataclass(slots=True)
class AbortHook:
    """``save`` writes what the run has so far; whoever has something to write sets it."""

    save: Callable[[], None] = lambda: None


def install_abort_hook(world: World) -> AbortHook:
    """The hook that saves what a run has before this process ends with WRONG_INPUT: when the run hangs, or when its
    launcher kills it because another rank is gone. A world of one process installs nothing."""
    hook, watch = AbortHook(), world.watch
    if watch is None:
        return hook

    def end_process(status: int) -> None:
        hook.save()
        os._exit(status)

    def terminate() -> None:
        if watch.stopped:
            return  # this rank is ending by itself
        # Every rank gets SIGTERM; only the one that the diagnosis names reports it.
        failure = watch.diagnose(outside=OUTSIDE)
        if failure.speaker == world.rank:
            print_error(f"error: {failure}")
        end_process(WRONG_INPUT)

    watch.ends = end_process
    on_termination(terminate)
    return hook


def report_failure(world: World, error: BaseException) -> None:
    """Tell the other ranks, before an error ends this process, that this rank reports it."""
    if world.watch is not None and isinstance(error, RankFailedError) and error.speaker == world.rank:
        world.watch.fail()


def on_termination(action: Callable[[], None]) -> None:
    """Run ``action`` in a thread when SIGTERM comes: the main thread may be in a collective, where Python's
    own handlers wait for its end."""
    # Python writes a signal's number to the wake-up descriptor at once, from the C handler.
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
