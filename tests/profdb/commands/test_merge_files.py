"""python -m profdb merge: all samples of both files, in a third."""

from pathlib import Path

import pytest

from profdb.__main__ import main
from profdb.cases import Family
from profdb.fitting import stored_curves
from profdb.store.data_file import load_profile, save_profile
from tests.profdb.profiles import collective_samples, gemm_samples, profile


def test_two_files_become_one_with_fits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second, into = tmp_path / "a.pt", tmp_path / "b.pt", tmp_path / "c.pt"
    save_profile(first, profile(gemm_samples()))
    save_profile(second, profile(gemm_samples() + collective_samples()))
    before = first.read_bytes(), second.read_bytes()
    assert main(["merge", str(first), str(second), "--into", str(into)]) == 0
    merged = load_profile(into)
    assert {family: table.size for family, table in merged.tables.items()} == {
        Family.GEMM: len(gemm_samples()),
        Family.COLLECTIVE: len(collective_samples()),
    }
    assert stored_curves(merged, Family.GEMM) is not None
    assert f"{len(gemm_samples())} repeats left out" in capsys.readouterr().out
    assert (first.read_bytes(), second.read_bytes()) == before


def test_a_profile_that_lies_there_is_added_to(tmp_path: Path) -> None:
    first, second, into = tmp_path / "a.pt", tmp_path / "b.pt", tmp_path / "c.pt"
    save_profile(first, profile(gemm_samples()[:2]))
    save_profile(second, profile(gemm_samples()[2:]))
    save_profile(into, profile(collective_samples()))
    assert main(["merge", str(first), str(second), "--into", str(into)]) == 0
    assert len(load_profile(into).samples) == len(gemm_samples()) + len(collective_samples())


def test_one_of_the_files_may_be_the_one_written(tmp_path: Path) -> None:
    first, second = tmp_path / "a.pt", tmp_path / "b.pt"
    save_profile(first, profile(gemm_samples()))
    save_profile(second, profile(collective_samples()))
    assert main(["merge", str(second), str(first), "--into", str(first)]) == 0
    assert len(load_profile(first).samples) == len(gemm_samples()) + len(collective_samples())
