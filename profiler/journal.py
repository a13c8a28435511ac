"""Writing the journal of a run (profdb.store.journal): a killed run loses no sample, and two runs never share one."""

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
"""Seconds of results that a machine that crashes may lose. A disk takes milliseconds for each sync, and a sweep has ten
thousand cases.
"""


@dataclass(slots=True, kw_only=True)
class Journal:
    """An open journal. Each line is passed to the operating system before the next case starts, so no end of this
    process loses it. Lines are synced to disk once SYNC_S have passed since the last sync, and at the end. Until it
    is closed, no other run can open it."""

    handle: IO[bytes]
    now: Callable[[], float] = time.monotonic
    synced: float = float("-inf")

    @classmethod
    def open(cls, path: Path, gpu: str) -> "Journal":
        """Returns a journal that appends to ``path``, started when absent; raises ProfileError when it can't be
        written or another run writes it."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # The lock is on the journal itself and ends with the process.
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
        # An empty file is a new journal.
        if not drop_broken_tail(handle):
            journal.write_line({"format": FORMAT, "gpu": gpu})
        return journal

    def begin(self, case: Case) -> None:
        """Notes that a case starts: should the process end with it, the journal shows which case it was."""
        self.write_line(begun_to_plain(case))

    def withdraw(self) -> None:
        """Notes that the case that began was given up, by no fault of its own."""
        self.write_line({"given_up": True})

    def append(self, sample: Sample) -> None:
        """Stores one sample."""
        self.write_line(sample_to_plain(sample))

    def write_line(self, plain: dict[str, Any]) -> None:
        """Writes one line; raises ProfileError when there is no room."""
        try:
            self.handle.write(json.dumps(plain).encode() + b"\n")
            # From Python's buffer to the system, which keeps it if this process dies; fsync below if the machine
            # does.
            self.handle.flush()
            if self.now() - self.synced >= SYNC_S:
                os.fsync(self.handle.fileno())
                self.synced = self.now()
        except OSError as error:
            raise ProfileError(
                f"{self.handle.name}: cannot be written ({error.strerror}); go on with --resume when it can"
            ) from error

    def close(self) -> None:
        """Closes the file, which is not removed."""
        if not self.handle.closed:
            os.fsync(self.handle.fileno())
        self.handle.close()


def drop_broken_tail(handle: IO[bytes]) -> bool:
    """Returns whether a header remains, once a last line that a killed run left unfinished is cut off."""
    handle.seek(0)
    # 0 if there is no complete line: the journal starts anew.
    end = handle.read().rfind(b"\n") + 1
    handle.truncate(end)
    return end > 0
