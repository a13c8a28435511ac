"""New samples are merged into the file as it is at that moment, with fits, in one step."""

from pathlib import Path

import pytest

from profdb.cases import Family
from profdb.fitting import stored_curves
from profdb.refit import merged_into
from profdb.sample import MachineFacts, ProfileDatabase
from profdb.store.data_file import load_profile
from spec.errors import ProfileError
from tests.profdb.profiles import collective_samples, gemm_samples, profile


def test_the_file_is_made_and_then_added_to(tmp_path: Path) -> None:
    path = tmp_path / "data.pt"
    merged_into(path, profile(gemm_samples()))
    merged = merged_into(path, profile([*gemm_samples(), *collective_samples()]))
    assert merged.repeats == len(gemm_samples())
    found = load_profile(path)
    assert len(found.samples) == len(gemm_samples()) + len(collective_samples())
    assert all(stored_curves(found, family) is not None for family in (Family.GEMM, Family.COLLECTIVE))
    assert [each.name for each in tmp_path.iterdir()] == ["data.pt"]


def test_another_gpu_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "data.pt"
    merged_into(path, profile(gemm_samples()))
    before = path.read_bytes()
    with pytest.raises(ProfileError, match="different GPUs"):
        merged_into(path, ProfileDatabase(machine=MachineFacts(gpu="Other"), samples=gemm_samples()))
    assert path.read_bytes() == before
