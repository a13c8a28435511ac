"""A profile is transferred once, and read from the cache folder then; a damaged file there is made anew."""

from pathlib import Path

import pytest

from profdb.cases import GemmCase
from profdb.sample import MachineFacts, ProfileDatabase, Sample
from profdb.store.data_file import load_profile, save_profile
from solver.problem import cluster_times as module
from solver.problem.cluster_times import transfer
from spec.cluster.reader import read_cluster
from spec.origin import Origin
from tests.solver.questions import ROOT

H100, H200 = (read_cluster(name, root=ROOT) for name in ("h100-sxm", "h200"))


def profile(seconds: float) -> ProfileDatabase:
    sample = Sample(case=GemmCase(m=4096, k=4096, n=4096), trials_s=(seconds,))
    return ProfileDatabase(machine=MachineFacts(gpu=H100.gpu.name, cluster="h100-sxm"), samples=(sample,))


def test_it_is_fitted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken, source, cache = profile(2e-4), tmp_path / "p.pt", tmp_path / "cache"
    save_profile(source, taken)
    first = transfer(taken, source, H100, H200, cache)
    (kept,) = cache.iterdir()
    with monkeypatch.context() as patch:
        patch.setattr(module, "with_fits", lambda _: pytest.fail("fitted again"))
        again = transfer(taken, source, H100, H200, cache)
    assert again.samples[0].trials_s == first.samples[0].trials_s
    assert again.samples[0].origin is Origin.TRANSFERRED
    kept.write_bytes(b"damaged")
    transfer(taken, source, H100, H200, cache)
    assert load_profile(kept).samples[0].trials_s == first.samples[0].trials_s


def test_another_profile_at_the_same_place_is_transferred_anew(tmp_path: Path) -> None:
    source, cache = tmp_path / "p.pt", tmp_path / "cache"
    times = []
    for seconds in (2e-4, 3e-4):
        save_profile(source, profile(seconds))
        times.append(transfer(profile(seconds), source, H100, H200, cache).samples[0].trials_s[0])
    assert times[1] == pytest.approx(1.5 * times[0], rel=1e-9)
    assert len(list(cache.iterdir())) == 2


def test_without_a_cache_folder_nothing_is_kept(tmp_path: Path) -> None:
    save_profile(tmp_path / "p.pt", profile(2e-4))
    transfer(profile(2e-4), tmp_path / "p.pt", H100, H200, None)
    assert [path.name for path in tmp_path.iterdir()] == ["p.pt"]
