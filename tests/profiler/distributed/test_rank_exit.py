"""How ranks end: where there are others, without Python's taking itself down."""

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
    [(1, 0, "answer taken down"), (1, 2, "answer taken down"), (2, 0, "answer"), (2, 2, "answer")],
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
