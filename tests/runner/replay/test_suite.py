"""A suite in this one process."""

from pathlib import Path

import pytest

from profiler.ranks.rank_layout import RankLayout
from runner.replay.operations import Compute
from runner.replay.run import RunOptions
from runner.replay.suite import Entry, read_suite, run_suite, text_of
from tests.runner.replay.test_program import END
from workload.aicb.csv_workload import GeneralItem, Workload
from workload.findings import WorkloadError

SUITE = """
[[workload]]
name = "one"
files = ["one.csv"]
[[workload]]
name = "large"
files = ["large.csv"]
"""
PRODUCT = GeneralItem(comm_type="computation", shapes=((4, 4), (4, 4)))


@pytest.fixture
def entries(tmp_path: Path) -> tuple[Entry, ...]:
    for name, world in (("one", 1), ("large", 64)):
        Workload(items=[END, PRODUCT, END]).write(tmp_path / f"{name}.csv", {"world_size": world})
    (tmp_path / "suite.toml").write_text(SUITE)
    return read_suite(tmp_path / "suite.toml")


def table(entries: tuple[Entry, ...], results: Path) -> list[str]:
    options = RunOptions(results=results, device="cpu", compute=Compute.REAL, dtype="fp32", quiet=True)
    return run_suite(entries, options, results, RankLayout())


def test_what_is_done_is_not_run_again(
    entries: tuple[Entry, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = tmp_path / "results"
    first = table(entries, results)
    assert first[1].split()[:2] == ["one", "1"]
    assert first[2].split(maxsplit=1) == [
        "large",
        "left out: run: processes = 1: 64, the ranks of the workload: start as many (torchrun --nproc-per-node)",
    ]
    assert "--- one (1 of 2)" in capsys.readouterr().out
    log = results / "comm_logs" / "one_log.csv"
    before = log.stat().st_mtime_ns
    again = table(entries, results)
    assert again[1] == f"{first[1]} (done before)"
    assert ("--- one" in capsys.readouterr().out, log.stat().st_mtime_ns) == (False, before)


@pytest.mark.parametrize("text", ["[", "[]", '{"a": 1}'])
def test_another_file_of_what_is_done_is_refused(text: str) -> None:
    with pytest.raises(WorkloadError, match="is no list of what is done"):
        text_of(text, Path("suite_done.json"))
