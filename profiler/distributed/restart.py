"""Replacing this process by a new start of the program, after a device error that stays with a process."""

import os
import sys
from collections.abc import Mapping
from typing import NoReturn

COUNT, SPENT = "PROFILER_RESTARTS", "PROFILER_SPENT_S"

MOST_RESTARTS = 50
"""A device that loses more cases than this is broken."""


def restarts(environ: Mapping[str, str]) -> int:
    """Returns how often this program has started itself again."""
    text = environ.get(COUNT, "")
    return int(text) if text.isdigit() else 0


def spent_s(environ: Mapping[str, str]) -> float:
    """Returns the seconds of the budget that were spent before the last restart."""
    # Set by an earlier start of this program, but anyone may set it: a bad value counts as 0.
    try:
        return max(0.0, float(environ.get(SPENT, "")))
    except ValueError:
        return 0.0


def restart_program(spent_s: float) -> NoReturn:
    """Replaces this process by the same command line, without the device error: exec drops the context on the GPU,
    whose files the driver marks to be closed. Rank and layout come from the environment and stay. ``sys.orig_argv``
    has the options of the interpreter itself (-m, -u), which ``sys.argv`` lacks."""
    sys.stdout.flush()
    sys.stderr.flush()
    # The environment passes the count and the spent seconds to the new start.
    more = {COUNT: str(restarts(os.environ) + 1), SPENT: f"{spent_s:.3f}"}
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, **more})
