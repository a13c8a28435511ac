from pathlib import Path

import pytest

from runner.logs.analysis import RankTimes, read_ranks, slow_ranks, write_ranks
from workload.findings import WorkloadError


def times(rank: int, own_ms: float, stage: int = 0, epoch: int = 1) -> RankTimes:
    return RankTimes(rank, stage, epoch, 100.0, 100.0 - own_ms, own_ms)


def test_times_are_read_as_written(tmp_path: Path) -> None:
    everyone = [times(0, 20.0), times(1, 40.0, stage=1, epoch=2)]
    write_ranks(tmp_path / "a_ranks.csv", everyone)
    assert read_ranks(tmp_path / "a_ranks.csv") == everyone


def test_the_rank_that_the_others_wait_for() -> None:
    # initialisation does not count; stages are compared with themselves only
    everyone = [
        times(0, 20.0),
        times(1, 21.0),
        times(2, 30.0),
        times(3, 80.0, stage=1),
        times(1, 90.0, epoch=0),
    ]
    (slow,) = slow_ranks(everyone)
    assert (slow.rank, slow.own_ms, slow.others_ms) == (2, 30.0, 20.5)
    assert slow.line().startswith(
        "slow: rank 2 of stage 0 spends 30.000 ms an iteration outside of communication, 46 %"
    )


def test_the_slowest_comes_first() -> None:
    everyone = [times(rank, own) for rank, own in enumerate((10.0, 10.0, 10.5, 30.0, 20.0, 10.0))]
    assert [one.rank for one in slow_ranks(everyone)] == [3, 4]


@pytest.mark.parametrize(
    "text", ["", "rank,stage\n", "rank,stage,epoch,iteration_ms,communication_ms,computation_ms\n1,2\n"]
)
def test_another_file_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "a_ranks.csv").write_text(text)
    with pytest.raises(WorkloadError, match=r"a_ranks.csv: line \d"):
        read_ranks(tmp_path / "a_ranks.csv")
