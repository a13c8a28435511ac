"""How ranks end: where there are others, without Python's taking itself down, and when the error is said."""

import json
import subprocess
import sys

import pytest

from tests.solver.questions import ROOT

SAYS_WHEN_TAKEN_DOWN = """
import atexit, sys
from profiler.distributed.rank_exit import rank_exit
from profiler.distributed.rank_layout import RankLayout

atexit.register(print, "taken down")
with rank_exit(RankLayout(size=int(sys.argv[1]))) as leave:
    print("answer", end=" ")
    status = leave(int(sys.argv[2]))
sys.exit(status)
"""


@pytest.mark.parametrize(
    ("ranks", "status", "said"),
    [
        (1, 2, "answer taken down"),
        (2, 2, "answer"),
        pytest.param(1, 0, "answer taken down", marks=pytest.mark.nightly),
        pytest.param(2, 0, "answer", marks=pytest.mark.nightly),
    ],
)
def test_a_rank_among_others_ends_at_once_with_all_it_said(ranks: int, status: int, said: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", SAYS_WHEN_TAKEN_DOWN, str(ranks), str(status)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert (ended.returncode, ended.stdout.strip(), ended.stderr) == (status, said, "")


SAID = {
    "alike": "error: data.pt: of another GPU\n",
    "early": "error: environment: GPU = 1: one that works\n",
    "named": "error: rank 2: out of memory\n",
}


@pytest.mark.parametrize("ways", [["named"], pytest.param(["alike", "early", "mute"], marks=pytest.mark.nightly)])
def test_an_error_is_said_once_before_a_launcher_can_end_the_rank_that_says_it(ways: list[str]) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "tests.profiler.distributed.ending", *ways],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=True,
    )
    ends = json.loads(ran.stdout)
    for way in ways:
        # The rank that is named in "mute" was killed first: each of the others says it, or one of them.
        assert set(ends[way]["said"].splitlines()) == {SAID.get(way, "error: rank 2 failed").strip()}
        assert ends[way]["said"] == SAID.get(way, ends[way]["said"])
        assert 2 in ends[way]["statuses"]
