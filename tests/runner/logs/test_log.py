from pathlib import Path

import pytest

from runner.logs.log import Log, LogFile, ended, logged
from tests.runner.replay.test_program import END, collective
from workload.aicb.csv_workload import Workload
from workload.findings import WorkloadError

ROWS = [
    *(logged(collective(), 1e-3), ended(2e-3)),
    *(logged(collective(), 2e-3), logged(collective(), 3e-3), ended(6e-3)),
]


def test_a_log_is_read_as_written(tmp_path: Path) -> None:
    with LogFile(tmp_path / "logs" / "a_log.csv") as file:
        file.add(ROWS)
    log = Log.load(tmp_path / "logs" / "a_log.csv")
    assert log.epoch_times == [2.0, 6.0]
    assert [[item.elapsed_ms for item in epoch] for epoch in log.comm_log_each_epoch] == [[1.0], [2.0, 3.0]]
    assert [item.elapsed_ms for item in log.comm_logs] == [1.0, 2.0, 3.0]
    assert not log.cut_off


def test_a_log_that_was_cut_off_keeps_its_operations(tmp_path: Path) -> None:
    with LogFile(tmp_path / "a_log.csv") as file:
        file.add(ROWS[:4])
    log = Log.load(tmp_path / "a_log.csv")
    assert log.cut_off
    assert (log.epoch_times, len(log.comm_logs)) == ([2.0], 3)


def test_a_workload_is_no_log(tmp_path: Path) -> None:
    Workload(items=[END, collective(), END]).write(tmp_path / "w.csv", {})
    with pytest.raises(WorkloadError, match=r"all_reduce .* has no time: a workload, no log of a run"):
        Log.load(tmp_path / "w.csv")
