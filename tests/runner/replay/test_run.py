"""A run in this one process: computation alone, with no group of more than one rank."""

from pathlib import Path

import pytest

from profiler.ranks.rank_layout import RankLayout
from runner.logs.log import Log
from runner.replay.operations import Compute
from runner.replay.program import Typed, read_work
from runner.replay.run import RunOptions, run_workload
from tests.runner.replay.test_program import END, collective
from workload.aicb.csv_workload import GeneralItem, Workload

SHAPES = ((8, 16), (16, 4))
TYPED = Typed(degrees={}, order="tp-cp-ep-dp-pp")


def played(
    tmp_path: Path, compute: Compute, *items: GeneralItem, epochs: int | None = None
) -> tuple[Log, list[str]]:
    path = tmp_path / "one_workload.csv"
    Workload(items=[END, *items, END]).write(path, {"world_size": 1})
    options = RunOptions(
        results=tmp_path / "results",
        device="cpu",
        compute=compute,
        dtype="fp32",
        epochs=epochs,
        quiet=True,
    )
    lines = run_workload(options, lambda world: read_work([path], TYPED, world), RankLayout())
    return Log.load(tmp_path / "results" / "comm_logs" / "one_log.csv"), lines


def test_products_are_run_and_logged(tmp_path: Path) -> None:
    product = GeneralItem(comm_type="computation", shapes=SHAPES, stage="forward.x", count=2)
    log, lines = played(tmp_path, Compute.REAL, product, collective(ranks=1), epochs=3)
    assert [len(epoch) for epoch in log.comm_log_each_epoch] == [0, 2, 2, 2]
    assert all(item.shapes == SHAPES and (item.elapsed_ms or 0) > 0 for item in log.comm_logs)
    assert "1 rows over groups of one rank left out" in lines
    kept, arguments = Workload.load(tmp_path / "results" / "comm_logs" / "one_workload.csv")
    assert (list(kept.items)[1], arguments) == (product, {"world_size": 1})
    ranks = (tmp_path / "results" / "comm_logs" / "one_ranks.csv").read_text().splitlines()
    assert ranks[0] == "rank,stage,epoch,iteration_ms,communication_ms,computation_ms"
    assert [line.split(",")[:3] for line in ranks[1:]] == [["0", "0", str(epoch)] for epoch in range(4)]


def test_sleep_takes_the_time_of_the_file(tmp_path: Path) -> None:
    timed = GeneralItem(comm_type="computation", shapes=SHAPES, elapsed_ms=40.0, count=2)
    nanoseconds = GeneralItem(comm_type="computation", msg_size=30_000_000)
    untimed = GeneralItem(comm_type="computation", shapes=SHAPES)
    log, _ = played(tmp_path, Compute.SLEEP, timed, nanoseconds, untimed)
    assert [item.elapsed_ms for item in log.comm_logs] == [
        pytest.approx(ms, rel=0.9, abs=0) for ms in (20, 20, 30)
    ]
    assert all(
        (item.elapsed_ms or 0) >= least for item, least in zip(log.comm_logs, (20, 20, 30), strict=True)
    )


def test_skipped_computation_is_no_operation(tmp_path: Path) -> None:
    product = GeneralItem(comm_type="computation", shapes=SHAPES, elapsed_ms=40.0)
    log, _ = played(tmp_path, Compute.SKIP, product)
    assert (log.comm_logs, len(log.epoch_times)) == ([], 2)
