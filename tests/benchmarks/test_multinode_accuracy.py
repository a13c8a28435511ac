"""Runs between nodes: what counts, on which sheet, with which NICs, and what is refused."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from benchmarks import multinode_accuracy as benchmark
from benchmarks.multinode_accuracy import COLUMNS, all_scores, price_runs, read_runs, spec_of
from spec.errors import ProfileError
from spec.program.command import exit_status

SIZES = (2**16, 2**22, 2**30)


def row(**changes: object) -> dict[str, object]:
    plain: dict[str, object] = {
        "run": "one",
        "gpu": "H100-SXM-80G",
        "gpus_per_node": 8,
        "nodes": 2,
        "nics_per_node": 8,
        "nic_gbps": 400,
        "fabric": "IB-NDR",
        "collective": "all_gather",
        "bytes": 2**20,
        "time_us": 100.0,
        "quality": "good",
    }
    return plain | changes


def predicted_us(rows: list[dict[str, object]]) -> np.ndarray:
    """Predicted microseconds."""
    frame = pd.DataFrame(rows)
    result = price_runs(frame)[0]
    return np.asarray(result.time_us * np.exp(result.log_error))


def written(folder: Path, rows: list[dict[str, object]]) -> Path:
    path = folder / "runs.csv"
    pd.DataFrame(rows).to_csv(path, index=False)
    return path


def run(monkeypatch: pytest.MonkeyPatch, path: Path) -> int:
    monkeypatch.setattr("sys.argv", ["multinode_accuracy.py", "--runs", str(path)])
    return exit_status(benchmark.main)


def test_the_mean_of_a_run_and_then_over_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of two large rows measured at e^0.1 and e^0.3 of what is predicted, another of one row at e^-0.4; a bad run
    and one of a GPU without a sheet do not count."""
    rows = [row(run="one", bytes=size) for size in SIZES] + [row(run="two", fabric="EFA", nodes=8)]
    for one, us, slower in zip(rows, predicted_us(rows), (0.5, 0.1, 0.3, -0.4), strict=True):
        one["time_us"] = us * np.exp(slower)
    rows += [row(run="bad", quality="problem"), row(run="other", gpu="MI300X")]
    path = written(tmp_path, rows)
    assert run(monkeypatch, path) == 1
    priced, passed_over = price_runs(read_runs(path))
    scores = {score.what.strip(): score for score in all_scores(priced)}
    assert scores["1 MiB and more"].error == pytest.approx((0.2 + 0.4) / 2)
    assert scores["1 MiB and more"].bias == pytest.approx((-0.2 + 0.4) / 2)
    assert scores["below 1 MiB"].error == pytest.approx(0.5)
    assert scores["IB-NDR"].rows == 2
    assert passed_over == ["other"]


def test_right_times_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [row(bytes=size) for size in SIZES]
    for one, us in zip(rows, predicted_us(rows), strict=True):
        one["time_us"] = us
    assert run(monkeypatch, written(tmp_path, rows)) == 0


@pytest.mark.parametrize(
    ("changes", "latency_s", "rate"),
    [
        ({"fabric": "IB-HDR", "gpu": "A100-SXM-80G", "nic_gbps": 200, "nics_per_node": 4}, 2.7e-6, 12.5e9),
        ({"fabric": "EFA", "nics_per_node": 32, "nic_gbps": 100}, 20e-6, 50e9),
        ({"fabric": "EFA", "gpu": "A100-SXM-40G", "nics_per_node": 4, "nic_gbps": 100}, 75e-6, 6.25e9),
        ({"fabric": "EFA", "gpu": "H200-SXM", "nics_per_node": 16, "nic_gbps": 200}, 18e-6, 50e9),
    ],
)
def test_a_run_has_the_spec_of_its_gpu_the_network_of_its_fabric_and_its_own_nics(
    changes: dict[str, object], latency_s: float, rate: float
) -> None:
    cluster = spec_of(pd.Series(row(**changes)))
    assert cluster is not None
    assert cluster.domains[-1].latency_s == latency_s
    assert cluster.domains[-1].bandwidth == pytest.approx(rate)


def test_one_gpu_a_node_has_the_nic_that_the_row_says() -> None:
    """One 200 Gb/s NIC beside the GPU that takes part; the node has more GPUs with NICs of their own."""
    cluster = spec_of(pd.Series(row(gpus_per_node=1, nics_per_node=1, nic_gbps=200)))
    assert cluster is not None
    assert cluster.domains[-1].bandwidth == pytest.approx(25e9)
    assert cluster.scale_up_ranks == 8


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"collective": "barrier"}, "barrier"),
        ({"time_us": 0.0}, "positive"),
        ({"nodes": 1}, "two"),
        ({"time_us": "fast"}, "numbers"),
        ({"bytes": 0}, "bytes"),
        ({"gpus_per_node": None}, "gpus_per_node"),
    ],
)
def test_rows_that_say_nothing_are_refused(changes: dict[str, object], words: str, tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match=words):
        read_runs(written(tmp_path, [row(**changes)]))


@pytest.mark.parametrize("cell", ["fabric", "nics_per_node", "nic_gbps"])
def test_a_run_without_a_network_is_passed_over(cell: str, tmp_path: Path) -> None:
    _, passed_over = price_runs(read_runs(written(tmp_path, [row(), row(run="two", **{cell: None})])))
    assert passed_over == ["two"]


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(",".join(COLUMNS[:-1]) + "\n")
    with pytest.raises(ProfileError, match="quality"):
        read_runs(path)


def test_a_missing_file_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, tmp_path / "none.csv") == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: --runs {tmp_path / 'none.csv'}: not a CSV file (")
    assert said.count("\n") == 1
