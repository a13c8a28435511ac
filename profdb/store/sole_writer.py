"""One writer at a time: of two programs that change one file, the second waits or ends with an error.

A lock file exists next to the file while it is being written and is locked by flock(2), so a killed program leaves
no lock. Where the file system has no locks (some network mounts) the block runs without one.
"""

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from spec.errors import ProfileError

NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP})
LOOK_AGAIN_S = 0.05


@contextmanager
def sole_writer(path: Path, *, wait_s: float = 30.0) -> Iterator[None]:
    """Returns a context in which no other program is in such a context for ``path``; its folder is made when absent.

    Raises ProfileError when another still is after ``wait_s`` seconds, or the folder cannot be written.
    """
    lock = path.with_name(f".{path.name}.lock")
    deadline = time.monotonic() + wait_s
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = _lock(lock)
        while descriptor is None:
            if time.monotonic() > deadline:
                raise ProfileError(f"{path}: another program is writing it; wait for it, or write another file")
            time.sleep(LOOK_AGAIN_S)
            descriptor = _lock(lock)
    except OSError as error:
        raise ProfileError(f"{path}: cannot be written ({error.strerror or error})") from error
    try:
        yield
    finally:
        # Removed while locked: whoever opened it meanwhile sees in ``try_lock`` that it is not at this path any more.
        lock.unlink(missing_ok=True)
        os.close(descriptor)


def _lock(lock: Path) -> int | None:
    """Returns a descriptor with the lock, or None while another program has it."""
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    if try_lock(descriptor, lock):
        return descriptor
    os.close(descriptor)
    return None


def try_lock(descriptor: int, path: Path) -> bool:
    """Returns True once an open file at ``path`` is locked; False when another program has it, or has removed or
    replaced the file meanwhile."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False
