"""Fits made by several processes are those that one makes; valid ones are kept; new samples are merged as one step."""

from pathlib import Path

import pytest

import profdb.refit
from profdb.cases import Family
from profdb.fitting import stored_curves
from profdb.refit import merge_into, with_fits
from profdb.sample import MachineFacts, ProfileDatabase
from profdb.store.data_file import load_profile
from spec.errors import ProfileError
from tests.profdb.profiles import collective_samples, gemm_samples, one_of_each, profile


def test_many_processes_make_what_one_makes(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = [*one_of_each(), *gemm_samples(), *collective_samples()]
    alone = with_fits(profile(samples))
    monkeypatch.setattr(profdb.refit, "PARALLEL_FROM", 0)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    together = with_fits(profile(samples))
    assert list(together.fits) == list(alone.fits)
    for family, packed in alone.fits.items():
        assert packed["index"] == together.fits[family]["index"]
        assert packed["values"].tolist() == together.fits[family]["values"].tolist()  # type: ignore[attr-defined]


def test_valid_fits_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    fitted = with_fits(profile(gemm_samples()))
    monkeypatch.setattr(profdb.refit, "_fit_one", lambda table: pytest.fail("fitted again"))
    assert with_fits(fitted).fits[Family.GEMM.value] is fitted.fits[Family.GEMM.value]


def test_the_file_is_made_and_then_added_to(tmp_path: Path) -> None:
    path = tmp_path / "data.pt"
    merge_into(path, profile(gemm_samples()))
    merged = merge_into(path, profile([*gemm_samples(), *collective_samples()]))
    assert merged.repeats == len(gemm_samples())
    found = load_profile(path)
    assert len(found.samples) == len(gemm_samples()) + len(collective_samples())
    assert all(stored_curves(found, family) is not None for family in (Family.GEMM, Family.COLLECTIVE))
    assert [each.name for each in tmp_path.iterdir()] == ["data.pt"]


def test_another_gpu_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "data.pt"
    merge_into(path, profile(gemm_samples()))
    before = path.read_bytes()
    with pytest.raises(ProfileError, match="different GPUs"):
        merge_into(path, ProfileDatabase(machine=MachineFacts(gpu="Other"), samples=gemm_samples()))
    assert path.read_bytes() == before
