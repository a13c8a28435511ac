"""Limits of time for runs of several processes, on a machine that may do other things as well."""

from collections.abc import Callable

MORE = 6


def patiently(limit_s: float, check: Callable[[float], None]) -> None:
    """Run ``check`` with a limit, and once more with six times as much if it fails: ranks that are well may miss a short
    one while the machine is busy, ranks that are not miss any."""
    try:
        check(limit_s)
    except AssertionError:
        check(MORE * limit_s)
