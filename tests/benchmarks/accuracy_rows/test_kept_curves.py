"""Curves are read and fitted once; what is kept answers alike, and what is damaged or of other curves is made anew."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.accuracy_rows.books import open_books
from profdb import refit
from profdb.lookup.queries import LinearQuery
from spec.cluster.reader import read_cluster
from spec.program.cache_folder import cache_folder
from tests.benchmarks.made_up_rows import ROOT

SIZES = (256, 512, 1024, 2048, 4096)


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
    books = open_books(ROOT, curves, None)
    cost_model = books.cost_model(read_cluster("a100-sxm-80g", root=ROOT))
    return float(cost_model.linear_s(LinearQuery(m=np.array([1024]), k=1024, n=1024)).seconds[0])


def test_curves_are_fitted_once(curves: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = seconds(curves)
    assert first == pytest.approx(2 * 1024**3 / 200e12 + 5e-6, rel=0.05)
    with monkeypatch.context() as patch:
        patch.setattr(refit, "fit_table", None)
        patch.setattr("benchmarks.accuracy_rows.books.read_curves_csv", None)
        assert seconds(curves) == first
    write(curves, 100e12)
    assert seconds(curves) == pytest.approx(2 * 1024**3 / 100e12 + 5e-6, rel=0.05)


def test_a_damaged_file_is_made_anew(curves: Path) -> None:
    first = seconds(curves)
    folder = cache_folder()
    assert folder is not None
    kept = list(folder.rglob("*.pt"))
    assert len(kept) == 2
    for path in kept:
        path.write_bytes(b"no profile")
    assert seconds(curves) == first
    assert all(path.stat().st_size > 100 for path in kept)
