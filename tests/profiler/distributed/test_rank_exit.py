"""How ranks end: where there are others, without Python's taking itself down, and when the error is said."""

import subprocess
import sys

import pytest

from tests.profiler.distributed.ending import run
from tests.solver.questions import ROOT

# Every ending in a fork: torch is imported once.
SAY_WHEN_TAKEN_DOWN = """
import atexit, os, sys
from profiler.distributed.rank_exit import rank_exit
from profiler.distributed.rank_layout import RankLayout

for ending in sys.argv[1:]:
    size, status = map(int, ending.split(","))
    if not (child := os.fork()):
        atexit.register(print, "taken down")
        with rank_exit(RankLayout(size=size)) as leave:
            print("answer", end=" ")
            status = leave(status)
        sys.exit(status)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.mark.nightly
def test_a_rank_among_others_ends_at_once_with_all_it_said() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", SAY_WHEN_TAKEN_DOWN, "1,2", "2,2", "1,0", "2,0"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    said = "answer taken down\n2\nanswer 2\nanswer taken down\n0\nanswer 0\n"
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, said, "")


SAID = {
    "alike": "error: data.pt: of another GPU\n",
    "early": "error: environment: GPU = 1: one that works\n",
    "named": "error: rank 2: out of memory\n",
}


@pytest.mark.parametrize("ways", [["named"], pytest.param(["alike", "early", "mute"], marks=pytest.mark.nightly)])
def test_an_error_is_said_once_before_a_launcher_can_end_the_rank_that_says_it(ways: list[str]) -> None:
    ends = {way: run(way) for way in ways}
    for way in ways:
        # The rank that is named in "mute" was killed first: each of the others says it, or one of them.
        assert set(ends[way]["said"].splitlines()) == {SAID.get(way, "error: rank 2 failed").strip()}
        assert ends[way]["said"] == SAID.get(way, ends[way]["said"])
        assert 2 in ends[way]["statuses"]
