"""The end of a run that its launcher stops: one rank reports, all save their results."""

import os
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType

from profiler.distributed.rendezvous import RankFailedError
from profiler.distributed.world import World

OUTSIDE = "ended from outside (SIGTERM)"


@dataclass(slots=True)
class AbortHook:
    """``save`` writes the results of the run so far; the part of a run that has any sets it."""

    save: Callable[[], None] = lambda: None


def install_abort_hook(world: World) -> AbortHook:
    """Returns the hook that saves a run's results before this process ends with WRONG_INPUT: when the run hangs, or
    when its launcher kills it because another rank is gone. A single process ends as after Ctrl-C."""
    hook, watch = AbortHook(), world.watch
    if watch is None:
        signal.signal(signal.SIGTERM, _interrupt)
        return hook

    def end_process(status: int) -> None:
        hook.save()
        os._exit(status)

    def terminate() -> None:
        if watch.stopped:
            return  # this rank is ending by itself
        # Every rank gets SIGTERM; only the one that the diagnosis names reports it.
        watch.end_with(watch.diagnose(outside=OUTSIDE))

    watch.ends = end_process
    on_termination(terminate)
    return hook


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def report_failure(world: World, error: BaseException) -> None:
    """Tells the other ranks, before an error ends this process, that this rank reports it."""
    if world.watch is not None and isinstance(error, RankFailedError) and error.speaker == world.rank:
        world.watch.fail()


def on_termination(action: Callable[[], None]) -> None:
    """Runs ``action`` in a thread on SIGTERM: the main thread may be in a collective, where Python's own handlers
    wait for its end."""
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
