"""How far long work has come: a bar on a terminal, elsewhere a line a minute, both on stderr."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

EVERY_S = 60.0
"""Between two lines of a log."""


class Progress(Protocol):
    """Receiver of each finished unit of work and of the name of the current one."""

    def update(self) -> object:
        """One more unit is done."""
        ...

    def set_description(self, desc: str, refresh: bool = ...) -> object:
        """Names the current work."""
        ...


class Lines:
    """A line where EVERY_S passed since the last one, so that short work says nothing."""

    def __init__(self, total: int, what: str, unit: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.total, self.what, self.unit, self.clock = total, what, unit, clock
        self.done = 0
        self.began_s = self.said_s = clock()

    def update(self) -> None:
        """One more unit is done."""
        self.done += 1
        now_s = self.clock()
        if now_s - self.said_s < EVERY_S:
            return
        self.said_s = now_s
        units = self.unit if self.total == 1 else f"{self.unit}s"
        spent = f"{self.done:,} of {max(self.total, self.done):,} {units} after {now_s - self.began_s:.0f} s"
        print(f"{self.what}: {spent}", file=sys.stderr, flush=True)

    def set_description(self, desc: str, refresh: bool = False) -> None:
        """Names the current work; a line prints it when one is due."""
        self.what = desc


class Silence:
    """Progress of a process that prints nothing."""

    def update(self) -> None:
        """Nothing."""

    def set_description(self, desc: str, refresh: bool = False) -> None:
        """Nothing."""


@contextmanager
def progress(total: int, what: str, unit: str, *, speaks: bool = True, stays: bool = False) -> Iterator[Progress]:
    """Yields a counter of ``total`` units of work. The bar ``stays`` on a terminal after the work, or goes; a process that does
    not ``speak`` shows nothing."""
    if not speaks:
        yield Silence()
    elif sys.stderr.isatty():
        from tqdm import tqdm

        with tqdm(total=total, desc=what, unit=unit, leave=stays, file=sys.stderr) as bar:
            yield bar
    else:
        yield Lines(total, what, unit)
