"""The end of a run that an error or its launcher breaks off: one rank speaks, all keep what they have."""

import os
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType

from profiler.ranks.meeting import RankFailedError
from profiler.ranks.world import World
from spec.program.ending import WRONG_INPUT, complain

OUTSIDE = "ended from outside (SIGTERM)"


@dataclass(slots=True)
class LastWords:
    """``keep`` saves what the run has so far; whoever has something to save puts it here."""

    keep: Callable[[], None] = lambda: None


def last_words(world: World) -> LastWords:
    """From now on a run that hangs, or that its launcher ends because a rank is gone, keeps what it has before this
    process ends with WRONG_INPUT. Nothing happens in a world of one process."""
    words, watch = LastWords(), world.watch
    if watch is None:
        return words

    def ends(status: int) -> None:
        words.keep()
        os._exit(status)

    def ended() -> None:
        if watch.stopped:
            return  # this rank is ending by itself
        found = watch.account(outside=OUTSIDE)
        if found.speaker == world.rank:
            complain(f"error: {found}")
        ends(WRONG_INPUT)

    watch.ends = ends
    on_termination(ended)
    return words


def failed(world: World, error: BaseException) -> None:
    """Before an error ends this process: where this rank is the one that says it, the others need not."""
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
