"""Starting this program again in its own place, after a device error that stays with a process."""

import os
import sys
from collections.abc import Mapping
from typing import NoReturn

COUNT, SPENT = "PROFILER_RESTARTS", "PROFILER_SPENT_S"

MOST_RESTARTS = 50
"""A device that loses more cases than this is broken."""


def restarts(environ: Mapping[str, str]) -> int:
    """Number of times that this program has started itself again."""
    text = environ.get(COUNT, "")
    return int(text) if text.isdigit() else 0


def spent_s(environ: Mapping[str, str]) -> float:
    """Seconds of the budget that were spent before the last restart."""
    try:
        return max(0.0, float(environ.get(SPENT, "")))
    except ValueError:
        return 0.0


def restart_program(spent_s: float) -> NoReturn:
    """The same command line anew, with no trace of the device error: exec drops its context on the GPU, whose
    files the driver marks to be closed. The rank and its place in the world are the environment's and stay;
    ``sys.orig_argv`` holds what the interpreter itself was given (-m, -u), which ``sys.argv`` lacks."""
    sys.stdout.flush()
    sys.stderr.flush()
    more = {COUNT: str(restarts(os.environ) + 1), SPENT: f"{spent_s:.3f}"}
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, **more})
