"""The program started again in its own place."""

import os
import sys

import pytest

from profiler.distributed.rendezvous import prefix
from profiler.distributed.restart import restart_program, restarts, spent_s


class StartedError(Exception):
    """Where the process would have been replaced."""


def test_the_same_command_starts_again_and_knows_what_was_spent(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[tuple[str, list[str], dict[str, str]]] = []

    def execve(program: str, words: list[str], environ: dict[str, str]) -> None:
        started.append((program, words, environ))
        raise StartedError

    monkeypatch.setattr(os, "execve", execve)
    monkeypatch.setattr(sys, "orig_argv", ["python", "-u", "-m", "pss", "profile", "--smoke"])
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("PROFILER_RESTARTS", "1")
    with pytest.raises(StartedError):
        restart_program(41.25)
    ((program, words, environ),) = started
    assert program == words[0] == sys.executable
    assert words[1:] == ["-u", "-m", "pss", "profile", "--smoke"]
    assert (environ["RANK"], restarts(environ), spent_s(environ)) == ("3", 2, 41.25)
    # what the start before left in the ranks' store is not met again
    assert prefix(environ) != prefix(os.environ)


@pytest.mark.parametrize("text", ["", "many", "-3"])
def test_a_first_start_has_spent_nothing(text: str) -> None:
    environ = {"PROFILER_RESTARTS": text, "PROFILER_SPENT_S": text} if text else {}
    assert (restarts(environ), spent_s(environ)) == (0, 0.0)
