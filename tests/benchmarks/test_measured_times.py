"""Curves are read and fitted once; what is cached answers alike, and what is damaged or of other curves is made anew.
Another GPU of the architecture borrows them by the ratio of two modelled times."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks import measured_times as module
from benchmarks.measured_times import measured_times
from profdb import refit
from profdb.modelled.cost_model import ModelledCostModel
from profdb.queries import CollectiveQuery, LinearQuery
from spec.cluster.reader import read_cluster
from spec.collectives import Collective
from spec.errors import ConfigError
from spec.files import cache_folder
from spec.origin import Origin
from tests.benchmarks.made_up_rows import ROOT

SIZES = (256, 512, 1024, 2048, 4096)
QUERY = LinearQuery(m=np.array([1024]), k=1024, n=1024)


@pytest.fixture
def curves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "curves"
    folder.mkdir()
    write(folder, 200e12)
    return folder


def write(folder: Path, flops: float) -> None:
    rows = [f"A100-80GB,{m},{n},{n},{2e6 * m * n * n / flops + 5:.3f}" for m in SIZES for n in SIZES]
    (folder / "gemm.csv").write_text("\n".join(["gpu,m,n,k,latency_us", *rows]) + "\n")


def seconds(curves: Path) -> float:
    times = measured_times(curves, None).cost_model(read_cluster("a100-sxm-80g", root=ROOT))
    return float(times.linear_s(QUERY).seconds[0])


def test_curves_are_fitted_once(curves: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = seconds(curves)
    assert first == pytest.approx(2 * 1024**3 / 200e12 + 5e-6, rel=0.05)
    with monkeypatch.context() as patch:
        patch.setattr(refit, "fit_table", None)
        patch.setattr(module, "read_curves_csv", None)
        assert seconds(curves) == first
    write(curves, 100e12)
    assert seconds(curves) == pytest.approx(2 * 1024**3 / 100e12 + 5e-6, rel=0.05)


def test_a_damaged_file_is_made_anew(curves: Path) -> None:
    first = seconds(curves)
    folder = cache_folder()
    assert folder is not None
    (kept,) = folder.rglob("*.pt")
    kept.write_bytes(b"no profile")
    assert seconds(curves) == first
    assert kept.stat().st_size > 100


def test_another_gpu_of_the_architecture_borrows_the_curves(curves: Path) -> None:
    """By the ratio of modelled times; collectives beyond a domain are its own, another architecture borrows nothing."""
    lender, borrower, other = (read_cluster(name, root=ROOT) for name in ("a100-sxm-80g", "a100-pcie-80g", "h100-sxm"))
    times = measured_times(curves, None)
    lent, got = (times.cost_model(cluster).linear_s(QUERY) for cluster in (lender, borrower))
    here, there = (ModelledCostModel(cluster=cluster).linear_s(QUERY) for cluster in (lender, borrower))
    assert got.seconds == pytest.approx(lent.seconds * there.seconds / here.seconds)
    assert got.origin[0] == Origin.TRANSFERRED
    assert got.relative_std[0] > lent.relative_std[0]
    assert times.cost_model(other).linear_s(QUERY).origin[0] == Origin.MODELLED
    between = CollectiveQuery(collective=Collective.ALL_REDUCE, size_bytes=2**26, intra=8, inter=2, siblings=1)
    own = ModelledCostModel(cluster=borrower).collective_s(between)
    assert times.cost_model(borrower).collective_s(between).seconds == own.seconds


def test_a_folder_that_is_none_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--curves"):
        measured_times(tmp_path / "none", None)
