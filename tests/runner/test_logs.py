"""Logs of a run: bandwidths, lines, files, outliers, summaries, slow ranks, pictures."""

import errno
import json
import os
import re
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runner.logs.analysis import (
    RankTimes,
    TimeSpread,
    analyse_log,
    drift,
    drift_lines,
    outlier_lines,
    read_ranks,
    rows_by_size,
    slow_operations,
    slow_ranks,
    summary_lines,
    write_ranks,
)
from runner.logs.log import (
    Log,
    LogFile,
    bandwidths,
    bus_factor,
    epoch_end,
    epoch_line,
    operation_line,
    size_text,
    with_time,
)
from runner.logs.metrics import RunMetrics
from runner.logs.page import write_log_page
from spec.errors import ExportError
from tests.runner.replay.test_program import END, collective
from workload.aicb.csv_workload import GeneralItem, Workload
from workload.diagnostics import WorkloadError

# AICB's factors for 4 ranks: an all-to-all counts whole, unlike in nccl-tests.
FACTORS = {
    "all_reduce": 1.5,
    "all_gather": 0.75,
    "reduce_scatter": 0.75,
    "broadcast": 1.0,
    "all_to_all": 1.0,
    "isend": 1.0,
    "barrier": 0.0,
    "computation": 0.0,
}


@pytest.mark.parametrize(("kind", "factor"), FACTORS.items())
def test_bus_factors(kind: str, factor: float) -> None:
    assert bus_factor(kind, 4) == factor


@pytest.mark.parametrize(
    ("ranks", "size_mib", "elapsed_ms", "expected"),
    [
        (4, 1024, 500.0, (2.0, 3.0)),
        # AICB's log of an A100 run: 40 MB in 0.66 ms are 59.10 GiB/s; 8 ranks give the bus 103.42.
        (8, 40, 0.661, (59.10, 103.42)),
        # no bus bandwidth without the size of the group
        (0, 1024, 1000.0, (1.0, 0.0)),
    ],
)
def test_bandwidths(ranks: int, size_mib: int, elapsed_ms: float, expected: tuple[float, float]) -> None:
    item = GeneralItem(comm_type="all_reduce", comm_group="tp_group", comm_group_size=ranks, msg_size=size_mib << 20)
    assert bandwidths(item, elapsed_ms) == pytest.approx(expected, abs=0.02)


def test_aicbs_line() -> None:
    item = GeneralItem(
        comm_type="all_reduce", comm_group="tp_group", msg_size=40 * 2**20, elapsed_ms=0.66, algbw=59.1, busbw=103.42
    )
    assert operation_line(item, 0) == (
        "[RANK 0] comm op: all_reduce | comm group: tp_group | time (ms): 0.660 | msg size: 40.0 MB | "
        "algbw (GB): 59.10 | busbw (GB): 103.42"
    )


def test_a_computation_has_no_size() -> None:
    item = GeneralItem(comm_type="computation", shapes=((2, 3), (3, 4)), elapsed_ms=1.5)
    assert "comm group: None | time (ms): 1.500 | msg size: 0 |" in operation_line(item, 3)


def test_sizes_go_by_1024() -> None:
    assert [size_text(size) for size in (0, 1023, 1024, 3 * 2**29, 2**42)] == [
        *("0 B", "1023 B", "1.0 KB", "1.5 GB", "4096.0 GB")
    ]


def test_the_line_of_an_epoch() -> None:
    assert epoch_line(2, 12.5, 0) == "[RANK 0] --------epoch 2 | micro_step time 12.500 ---------"


ROWS = [
    *(with_time(collective(), 1e-3), epoch_end(2e-3)),
    *(with_time(collective(), 2e-3), with_time(collective(), 3e-3), epoch_end(6e-3)),
]


def test_a_log_is_read_as_written(tmp_path: Path) -> None:
    with closing(LogFile(tmp_path / "logs" / "a_log.csv")) as file:
        file.add(ROWS)
    log = Log.load(tmp_path / "logs" / "a_log.csv")
    assert log.epoch_times == [2.0, 6.0]
    assert [[item.elapsed_ms for item in epoch] for epoch in log.comm_log_each_epoch] == [[1.0], [2.0, 3.0]]
    assert [item.elapsed_ms for item in log.comm_logs] == [1.0, 2.0, 3.0]
    assert not log.incomplete


def test_a_log_that_was_cut_off_keeps_its_operations(tmp_path: Path) -> None:
    with closing(LogFile(tmp_path / "a_log.csv")) as file:
        file.add(ROWS[:4])
    log = Log.load(tmp_path / "a_log.csv")
    assert log.incomplete
    assert (log.epoch_times, len(log.comm_logs)) == ([2.0], 3)


def test_a_workload_is_no_log(tmp_path: Path) -> None:
    Workload(items=[END, collective(), END]).write(tmp_path / "w.csv", {})
    with pytest.raises(WorkloadError, match=r"all_reduce .* has no time: a workload, no log of a run"):
        Log.load(tmp_path / "w.csv")


def test_a_workload_is_summarised_by_its_sizes_alone(tmp_path: Path) -> None:
    Workload(items=[collective(), END, collective(), collective(), END]).write(tmp_path / "w.csv", {})
    result = analyse_log(tmp_path / "w.csv", tmp_path / "w.json")
    lines = [*result.lines, *write_log_page(result.name, result.log, result.slow, tmp_path / "page")]
    counts = [line.split()[2:] for line in lines if line.startswith("all_reduce")]
    size = collective().msg_size
    assert counts == [
        [str(collective().comm_group_size), *size_text(size).split(), str(count), *size_text(count * size).split()]
        for count in (1, 2)
    ]
    assert not [line for line in lines if "time" in line]
    page = (tmp_path / "page" / "index.html").read_text()
    assert "A workload of 3 operations that was not run" in page
    assert "Number of operations over size: 3 of 1 kinds." in page
    assert re.findall(r"<td[^>]*>([^<]*)</td>", page) == ["tp", "2", "64 B", "3", "192 B"]
    record = json.loads((tmp_path / "w.json").read_text())
    assert (record["iterations_ms"], record["init_ms"]) == ([], None)
    assert [row["count"] for row in record["train"]] == [2]
    assert "spread" not in record["train"][0]


def test_an_operation_without_a_time_among_others_is_refused(tmp_path: Path) -> None:
    with closing(LogFile(tmp_path / "a_log.csv")) as file:
        file.add([*ROWS[:3], collective(), *ROWS[3:]])
    with pytest.raises(WorkloadError, match="has no time"):
        analyse_log(tmp_path / "a_log.csv", None)


class Room:
    """A file on a disk that takes ``left_bytes`` more, as write(2) does: what fits, then an error."""

    def __init__(self, file: Any, left_bytes: int) -> None:
        self.file, self.left_bytes = file, left_bytes
        self.closed, self.close, self.truncate = False, file.close, file.truncate

    def write(self, data: memoryview) -> int:
        if not self.left_bytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        taken = self.file.write(data[: self.left_bytes])
        self.left_bytes -= taken
        return int(taken)


def test_what_is_added_lies_on_the_disk_before_the_end(tmp_path: Path) -> None:
    file = LogFile(tmp_path / "a_log.csv")
    file.add(ROWS[:2])
    assert len((tmp_path / "a_log.csv.part").read_text().splitlines()) == 3
    file.close()
    file.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a_log.csv"]


def test_an_error_keeps_the_log(tmp_path: Path) -> None:
    def run() -> float:
        with closing(LogFile(tmp_path / "a_log.csv")) as file:
            file.add(ROWS)
            return 1 / len(ROWS[:0])

    with pytest.raises(ZeroDivisionError):
        run()
    assert len((tmp_path / "a_log.csv").read_text().splitlines()) == 6


def test_a_full_disk_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "a_log.csv.part").symlink_to("/dev/full")
    with pytest.raises(ExportError, match=r"a_log\.csv: cannot be written: No space left on device"):
        LogFile(tmp_path / "a_log.csv")


def test_a_disk_that_fills_keeps_the_whole_rows_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = LogFile(tmp_path / "a_log.csv")
    file.add(ROWS[:2])
    room = Room(file._handle, 100)
    monkeypatch.setattr(file, "_handle", room)
    with pytest.raises(ExportError, match="No space left on device"), closing(file):
        file.add(ROWS[:1] * 9)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a_log.csv"]
    lines = (tmp_path / "a_log.csv").read_text().splitlines()
    assert lines[1:] == [",".join(one.cells()) for one in ROWS[:2]]


def test_a_folder_that_is_a_file_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("")
    with pytest.raises(ExportError, match="cannot be written"):
        LogFile(tmp_path / "logs" / "a_log.csv")


def log(*times_ms: float) -> Log:
    rows = [epoch_end(0.0)]
    for each in times_ms:
        rows += [with_time(collective(stage="forward.x"), each * 1e-3), with_time(collective(), 1e-3), epoch_end(1.0)]
    return Log.of(rows)


def test_an_operation_far_above_its_like_is_named() -> None:
    (result,) = slow_operations(log(1.0, 1.1, 0.9, 1.0, 8.0, 1.05))
    assert (result.iteration, result.place, result.item.elapsed_ms) == (5, 1, 8.0)
    assert result.line() == (
        "outlier: iteration 5, operation 1: all_reduce of 64 B over tp_group (forward.x) took 8.000 ms, "
        "7.8 x the median"
    )


def test_even_times_and_a_quick_one_have_none() -> None:
    assert slow_operations(log(1.0, 1.1, 0.9, 1.0, 0.01, 1.05)) == []


def test_the_worst_are_named_and_the_rest_counted() -> None:
    lines = outlier_lines(log(*[1.0, 1.1] * 40, *(5.0 + each for each in range(12))))
    assert ("took 16.000 ms" in lines[0], lines[-1], len(lines)) == (True, "and 2 more outliers", 11)


TIMES_MS = [1.0, 2.0, 3.0, 4.0, 10.0]


def test_a_spread() -> None:
    one = TimeSpread.of(TIMES_MS)
    # 90 % between the fourth and fifth of five: 4 + 0.6 * 6; variance (9 + 4 + 1 + 0 + 36) / 5 = 10
    assert (one.count, one.mean_ms, one.min_ms, one.max_ms) == (5, 4.0, 1.0, 10.0)
    assert (one.p90_ms, one.std_ms) == (pytest.approx(7.6), pytest.approx(10**0.5))
    assert one.jitter == pytest.approx(10**0.5 / 4)


def test_operations_of_a_kind_group_and_size_are_one_row() -> None:
    items = [with_time(collective(), each * 1e-3) for each in TIMES_MS]
    items += [with_time(replace(collective(), msg_size=128), 1e-3), with_time(collective(kind="barrier"), 1e-3)]
    rows = rows_by_size(items)
    assert [(row.kind, row.size_bytes, row.spread.count) for row in rows] == [
        ("all_reduce", 64, 5),
        ("all_reduce", 128, 1),
        ("barrier", 64, 1),
    ]


def test_initialisation_stands_apart() -> None:
    log = Log.of(
        [with_time(collective(), 9.0), epoch_end(9.0), with_time(collective(), 1e-3), epoch_end(2e-3), epoch_end(4e-3)]
    )
    text = "\n".join(summary_lines(log))
    assert text.index("9000.000") < text.index("train stage") < text.index("init time: 9000.000 ms")
    assert "iteration time over 2: mean 3.000 ms, min 2.000, max 4.000" in text
    assert "std 1.000, jitter 33.3 % of the mean" in text


def times(rank: int, own_ms: float, stage: int = 0, epoch: int = 1) -> RankTimes:
    return RankTimes(rank, stage, epoch, 100.0, 100.0 - own_ms, own_ms)


def test_times_are_read_as_written(tmp_path: Path) -> None:
    everyone = [times(0, 20.0), times(1, 40.0, stage=1, epoch=2)]
    write_ranks(tmp_path / "a_ranks.csv", everyone)
    assert read_ranks(tmp_path / "a_ranks.csv") == everyone


def test_the_rank_that_the_others_wait_for() -> None:
    # initialisation does not count; stages are compared with themselves only
    everyone = [times(0, 20.0), times(1, 21.0), times(2, 30.0), times(3, 80.0, stage=1), times(1, 90.0, epoch=0)]
    (slow,) = slow_ranks(everyone)
    assert (slow.rank, slow.own_ms, slow.others_ms) == (2, 30.0, 20.5)
    assert slow.line().startswith(
        "slow: rank 2 of stage 0 spends 30.000 ms per iteration outside of communication, 46 %"
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


def test_a_log_with_its_ranks_and_its_page(tmp_path: Path) -> None:
    with closing(LogFile(tmp_path / "a_log.csv")) as file:
        file.add(ROWS[:4])
    write_ranks(tmp_path / "a_ranks.csv", [times(0, 1.0), times(1, 2.0)])
    result = analyse_log(tmp_path / "a_log.csv", tmp_path / "a.json")
    lines = [*result.lines, *write_log_page(result.name, result.log, result.slow, tmp_path / "page")]
    assert "the log ends inside epoch 1" in lines
    assert any(line.startswith("slow: rank 1 of stage 0") for line in lines)
    page = tmp_path / "page" / "index.html"
    assert lines[-1] == f"wrote {page}"
    text = page.read_text()
    assert "The log ends inside epoch 1" in text or "the log ends inside epoch 1" in text
    assert "Slow: rank 1 of stage 0 spends" in text
    record = json.loads((tmp_path / "a.json").read_text())
    assert record["incomplete"]
    assert [(one["rank"], one["own_ms"]) for one in record["slow_ranks"]] == [(1, 2.0)]
    counts = [row["spread"]["count"] for part in ("init", "train") for row in record[part]]
    assert (record["iterations_ms"], counts) == ([], [1, 2])


def test_a_run_that_gets_slower_is_named_and_noise_is_not() -> None:
    """Fifteen times: the last five against the first five, whose means differ by 10 % of 100 ms +- 1."""
    steady = [99.0, 101.0, 100.0, 99.0, 101.0]
    slower = [time + 10.0 for time in steady]
    assert drift([*steady, *steady, *slower]) == pytest.approx(0.1)
    assert drift([*slower, *steady, *steady]) == pytest.approx(100.0 / 110.0 - 1.0)
    assert drift([*steady, *steady, *(time + 1.0 for time in steady)]) == 0.0
    assert drift([*steady[:4], *steady[:4], *slower[:4]]) == 0.0
    (line,) = drift_lines([*steady, *steady, *slower], "iterations")
    assert line == "drift: the last third of 15 iterations takes 10.0 % longer than the first"
    assert drift_lines(steady, "steps") == []


def test_the_state_of_a_run_is_openmetrics_text(tmp_path: Path) -> None:
    """The text form of OpenMetrics 1.0: a counter's sample ends in _total, names end in their unit, quotes and backslashes
    of labels are escaped, and # EOF is last."""
    path = tmp_path / "run.prom"
    metrics = RunMetrics(path=path, run='a"b\\c', what="step")
    for seconds in (2.0, 0.5):
        metrics.add(seconds)
    lines = path.read_text().splitlines()
    assert [line for line in lines if not line.startswith("#")] == [
        r'pss_step_seconds{run="a\"b\\c"} 0.5',
        r'pss_steps_total{run="a\"b\\c"} 2',
        r'pss_step_time_seconds_total{run="a\"b\\c"} 2.5',
    ]
    assert lines[-1] == "# EOF"
    assert "# TYPE pss_steps counter" in lines
    assert "# UNIT pss_step_time_seconds seconds" in lines
