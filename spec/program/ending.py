"""How every command ends: its own status, 2 with one line for what a user can mend, 130 after Ctrl-C.

An answer that could not be printed (a full disk, a reader such as ``head`` that closed its pipe) is no
answer: one line and 2. A bug of ours keeps its traceback.
"""

import errno
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType

from spec.errors import UserError

WRONG_INPUT = 2
INTERRUPTED = 130

MOST_SAID = 1200
"""Letters of a complaint that quotes a name of any length."""

# What writing to stdout raises without naming a file: no reader, no room, no quota, a broken or closed device.
OUTPUT_ERRORS = frozenset({errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EBADF})


def exit_status(
    work: Callable[[], int],
    *,
    interrupted: Callable[[], str] = lambda: "interrupted",
    speaks: Callable[[UserError], bool] = lambda _: True,
) -> int:
    """The status of a command whose body is ``work``; its complaint, if any, is one line on stderr.

    ``interrupted`` words the line after Ctrl-C ("" for none), ``speaks`` tells whether this process says an error.
    """
    _print_any_letter()
    try:
        if sys.stdout is None:
            complain("error: stdout is closed: there is nowhere to print the answer")
            return WRONG_INPUT
        status = _status_of(work)
        sys.stdout.flush()
    except UserError as error:
        if speaks(error):
            complain(f"error: {error}")
        return WRONG_INPUT
    except KeyboardInterrupt:
        if line := interrupted():
            complain(line)
        return INTERRUPTED
    except OSError as error:
        if error.errno not in OUTPUT_ERRORS or error.filename is not None:
            raise
        _forget_stdout()
        complain(f"error: stdout: cannot be written: {error.strerror}")
        return WRONG_INPUT
    return status


def _status_of(work: Callable[[], int]) -> int:
    """The work's status; argparse ends --help with SystemExit."""
    try:
        return work()
    except SystemExit as ended:
        if not isinstance(ended.code, int):
            raise
        return ended.code


def complain(text: str) -> None:
    """One line on stderr, whatever the text holds and however long; lost where stderr cannot be written."""
    if sys.stderr is None:
        return
    line = " ".join(text.split())
    if len(line) > MOST_SAID:
        line = f"{line[: MOST_SAID // 2]} ... {line[-MOST_SAID // 2 :]}"
    try:
        print(line, file=sys.stderr, flush=True)
    except OSError:
        _forget(sys.stderr.fileno())


def quiet_interrupts() -> None:
    """From now on Ctrl-C outside of ``exit_status`` (while modules are imported) is one line and 130 too."""
    sys.excepthook = _quiet_interrupt


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Ctrl-C takes effect when the block ends. Around imports of torch: its C code clears an interrupt that it meets,
    and the program goes on with half of numpy."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _quiet_interrupt(
    kind: type[BaseException], error: BaseException, traceback: TracebackType | None
) -> None:
    if not issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, traceback)
        return
    complain("interrupted")
    os._exit(INTERRUPTED)


def _print_any_letter() -> None:
    """A name that the terminal's encoding lacks is printed with escapes instead of ending the command."""
    for stream in (sys.stdout, sys.stderr):
        if reconfigure := getattr(stream, "reconfigure", None):
            reconfigure(errors="backslashreplace")


def _forget_stdout() -> None:
    """What is still buffered would fail again, with a traceback, when Python ends."""
    _forget(sys.stdout.fileno())


def _forget(descriptor: int) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
