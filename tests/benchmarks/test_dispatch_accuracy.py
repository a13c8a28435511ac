"""Published dispatch runs: what they count as bytes, and what is refused."""

from pathlib import Path

import pandas as pd
import pytest

from benchmarks.dispatch_accuracy import main, read_runs, told
from spec.errors import ProfileError


def run(**changes: object) -> dict[str, object]:
    """DeepEP README: EP 8 x 2 on SM90 dispatches 8,192 tokens at 90 GB/s by the count of nodes."""
    plain: dict[str, object] = {
        "gpu": "SM90",
        "ranks": 16,
        "type": "normal-v2",
        "op": "dispatch",
        "hidden": 7168,
        "tokens": 8192,
        "topk": 8,
        "dtype": "fp8",
        "bandwidth_GBps": 90.0,
        "bottleneck": "RDMA",
        "quality": "good",
    }
    return plain | changes


def test_published_figures_are_told_within_a_sixth() -> None:
    """DeepEP README and docs/legacy.md: 90 and 61 GB/s by nodes, 726 and 153 by ranks of one node."""
    runs = [
        run(),
        run(ranks=32, bandwidth_GBps=61.0),
        run(gpu="SM100", ranks=8, bandwidth_GBps=726.0, bottleneck="NVLink"),
        run(gpu="H800", ranks=8, type="normal-intranode", bandwidth_GBps=153.0, bottleneck="NVLink"),
    ]
    assert all(abs(one.log_error) < 1 / 6 for one in told(pd.DataFrame(runs)))


def test_only_good_normal_runs_of_gpus_with_a_sheet_count(tmp_path: Path) -> None:
    runs = [run(), run(quality="problem"), run(type="low-latency"), run(gpu="H20-noNVLink")]
    path = tmp_path / "runs.csv"
    pd.DataFrame(runs).to_csv(path, index=False)
    assert len(read_runs(path)) == 1
    pd.DataFrame(runs[1:]).to_csv(path, index=False)
    with pytest.raises(ProfileError, match="no good run"):
        read_runs(path)
    pd.DataFrame([run()]).drop(columns="topk").to_csv(path, index=False)
    with pytest.raises(ProfileError, match="missing topk"):
        read_runs(path)


@pytest.mark.parametrize(
    "changes", [{"ranks": "many"}, {"topk": 0}, {"bandwidth_GBps": None}, {"dtype": "nf4"}]
)
def test_cells_that_are_no_numbers_are_refused(changes: dict[str, object], tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    pd.DataFrame([run(**changes)]).to_csv(path, index=False)
    with pytest.raises(ProfileError, match="must be numbers of 1 or more, dtype one of bf16, fp8"):
        read_runs(path)


@pytest.mark.parametrize("content", [None, "", b"\xff\xfe\x00", "a,b\n1,2,3\n1,2,3,4\n"])
def test_a_file_that_is_none_says_what_and_where(
    content: str | bytes | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "missing.csv"
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert main(["--runs", str(path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: --runs {path}: ")
