"""Long work speaks once a minute where nobody watches, short work not at all; a terminal has a bar."""

import os
import pty
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from spec.program.progress import Lines, progress

ROOT = Path(__file__).resolve().parents[3]


def test_a_line_a_minute(capsys: pytest.CaptureFixture[str]) -> None:
    """A unit each 25 s: the third is the first after a minute, the sixth the first of the next."""
    told = iter(range(0, 10_000, 25))
    lines = Lines(6, "sweep", "question", clock=lambda: next(told))
    for _ in range(6):
        lines.update()
    lines.set_description("search")
    lines.update()
    assert capsys.readouterr().err.splitlines() == [
        "sweep: 3 of 6 questions after 75 s",
        "sweep: 6 of 6 questions after 150 s",
    ]


def test_short_work_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with progress(2, "search", "block") as bar:
        bar.update()
        bar.set_description("other")
    with progress(2, "search", "block", speaks=False) as bar:
        assert not isinstance(bar, Lines)
        bar.update()
    assert capsys.readouterr() == ("", "")


def test_a_terminal_has_a_bar() -> None:
    program = (
        "from spec.program.progress import progress\nwith progress(2, 'search', 'block', stays=True) as bar:\n"
        "    bar.update(); bar.update()"
    )
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 80))
    subprocess.run([sys.executable, "-c", program], stderr=theirs, cwd=ROOT, check=True)
    os.close(theirs)
    shown = os.read(ours, 4096).decode()
    os.close(ours)
    assert "search: 100%" in shown
    assert "2/2" in shown
