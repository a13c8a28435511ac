"""Fits made by several processes are those that one makes; valid ones are kept."""

import pytest

import profdb.refit
from profdb.cases import Family
from profdb.refit import with_fits
from tests.profdb.profiles import collective_samples, gemm_samples, one_of_each, profile


def test_many_processes_make_what_one_makes(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = [*one_of_each(), *gemm_samples(), *collective_samples()]
    alone = with_fits(profile(samples))
    monkeypatch.setattr(profdb.refit, "PARALLEL_FROM", 0)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    told: list[str] = []
    together = with_fits(profile(samples), tell=told.append)
    assert list(together.fits) == list(alone.fits)
    for family, packed in alone.fits.items():
        assert packed["index"] == together.fits[family]["index"]
        assert packed["values"].tolist() == together.fits[family]["values"].tolist()  # type: ignore[attr-defined]
    assert sorted(told) == sorted(alone.fits)


def test_valid_fits_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    fitted = with_fits(profile(gemm_samples()))
    monkeypatch.setattr(profdb.refit, "_fit_one", lambda table: pytest.fail("fitted again"))
    assert with_fits(fitted).fits[Family.GEMM.value] is fitted.fits[Family.GEMM.value]
