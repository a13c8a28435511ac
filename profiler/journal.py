"""Writing the journal of a run (profdb.store.journal): a killed run loses nothing, and two never share one."""

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from profdb.cases import Case
from profdb.sample import Sample
from profdb.store.journal import FORMAT, begun_to_plain, sample_to_plain
from profdb.store.sole_writer import try_lock
from spec.errors import ProfileError

SYNC_S = 1.0
"""About what a machine that stops may lose. A disk takes milliseconds for each call, and a sweep has ten
thousand cases.
"""


@dataclass(slots=True, kw_only=True)
class Journal:
    """An open journal. Each line is the system's before the next case starts, so that no end of this process
    loses it; all so far go through to the disk where SYNC_S have passed since they last did, and at the end.
    It is this run's alone until it is closed."""

    handle: IO[bytes]
    now: Callable[[], float] = time.monotonic
    synced: float = float("-inf")

    @classmethod
    def open(cls, path: Path, gpu: str) -> "Journal":
        """Append to ``path``, starting it when absent; ProfileError when it can't be written or another run
        writes it."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handle = path.open("a+b")
            alone = try_lock(handle.fileno(), path)
        except OSError as error:
            raise ProfileError(f"{path}: cannot be written ({error.strerror or error})") from error
        if not alone:
            handle.close()
            raise ProfileError(
                f"{path}: another run is writing it; wait for its end, or give another file with --output"
            )
        journal = cls(handle=handle)
        if not drop_broken_tail(handle):
            journal.write_line({"format": FORMAT, "gpu": gpu})
        return journal

    def begin(self, case: Case) -> None:
        """A case starts: should it take the process with it, the journal says so."""
        self.write_line(begun_to_plain(case))

    def withdraw(self) -> None:
        """The case that began was given up, by no fault of its own."""
        self.write_line({"given_up": True})

    def append(self, sample: Sample) -> None:
        """Keep one sample."""
        self.write_line(sample_to_plain(sample))

    def write_line(self, plain: dict[str, Any]) -> None:
        """One line; ProfileError when there is no room."""
        try:
            self.handle.write(json.dumps(plain).encode() + b"\n")
            self.handle.flush()
            if self.now() - self.synced >= SYNC_S:
                os.fsync(self.handle.fileno())
                self.synced = self.now()
        except OSError as error:
            raise ProfileError(
                f"{self.handle.name}: cannot be written ({error.strerror}); go on with --resume when it can"
            ) from error

    def close(self) -> None:
        """Close the file; it stays where it is."""
        if not self.handle.closed:
            os.fsync(self.handle.fileno())
        self.handle.close()


def drop_broken_tail(handle: IO[bytes]) -> bool:
    """Cut a last line that a killed run left unfinished; whether a header remains."""
    handle.seek(0)
    end = handle.read().rfind(b"\n") + 1
    handle.truncate(end)
    return end > 0
