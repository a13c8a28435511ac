"""What is written is read back; every bad file is one line; a killed write leaves the old file; the one that ships has curves."""

import os
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from profdb.cases import CollectiveCase, Family, GemmCase
from profdb.cost_model import ProfileCostModel
from profdb.fitting import stored_curves
from profdb.queries import LinearQuery
from profdb.refit import with_fits
from profdb.sample import Sample
from profdb.store.data_file import MOST_BYTES, load_profile, profile_in, save_profile
from profdb.store.merge import is_published
from spec.collectives import Collective
from spec.errors import ProfileError
from tests.profdb.profiles import MACHINE, gemm_samples, one_of_each, product_s, profile


def written(path: Path) -> Path:
    save_profile(path, profile(one_of_each()))
    return path


def test_reads_back_every_sample_and_fact(tmp_path: Path) -> None:
    path = written(tmp_path / "data.pt")
    found = load_profile(path)
    assert found.machine == MACHINE
    assert sorted(map(repr, found.samples)) == sorted(map(repr, one_of_each()))
    assert isinstance(found.samples[0].case, GemmCase)
    assert found.samples[0].case.bias is True
    collective = [s.case for s in found.samples if isinstance(s.case, CollectiveCase)]
    assert collective[0].collective is Collective.ALL_TO_ALL


def test_stored_fits_are_read_and_not_refitted(tmp_path: Path) -> None:
    path = tmp_path / "data.pt"
    save_profile(path, with_fits(profile(gemm_samples())))
    found = load_profile(path)
    curves = stored_curves(found, Family.GEMM)
    assert curves is not None
    query = LinearQuery(m=3000, k=1024, n=2048)
    fresh = ProfileCostModel(profile(gemm_samples())).linear_s(query).seconds
    assert ProfileCostModel(found).linear_s(query).seconds == pytest.approx(fresh, rel=1e-12)


def test_changed_sample_changes_the_price_although_old_fits_are_stored(tmp_path: Path) -> None:
    path = tmp_path / "data.pt"
    save_profile(path, with_fits(profile(gemm_samples())))
    document = torch.load(path, weights_only=True)
    document["families"]["gemm"]["trials_s"] *= 3.0
    torch.save(document, path)
    priced = ProfileCostModel(load_profile(path)).linear_s(LinearQuery(m=4096, k=4096, n=4096))
    assert priced.seconds[0] == pytest.approx(3.0 * product_s(4096, 4096, 4096), rel=1e-6)


def test_holds_only_plain_data(tmp_path: Path) -> None:
    save_profile(tmp_path / "data.pt", with_fits(profile(one_of_each())))
    document = torch.load(tmp_path / "data.pt", weights_only=True)

    def check(value: object) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                assert isinstance(key, str)
                check(inner)
        else:
            assert isinstance(value, str | int | float | torch.Tensor), type(value)

    check(document)


class Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (Path, ("/nowhere",))


def cut(path: Path) -> None:
    """The first half of a profile."""
    path.write_bytes(written(path).read_bytes()[: path.stat().st_size // 2])


def flip(path: Path) -> None:
    """A profile with 200 bytes set to zero in its first third."""
    content = bytearray(written(path).read_bytes())
    place = len(content) // 3
    content[place : place + 200] = bytes(200)
    path.write_bytes(bytes(content))


OBJECT = {"format": "training-profile", "schema_version": 1, "machine": Evil()}
BAD_FILES: dict[str, Callable[[Path], object]] = {
    "missing": lambda path: None,
    "pipe": os.mkfifo,
    "larger than any": lambda path: os.truncate(path, path.write_bytes(b"") or MOST_BYTES + 1),
    "folder": lambda path: path.mkdir(),
    "empty": lambda path: path.write_bytes(b""),
    "text": lambda path: path.write_text("latency 5"),
    "pickle": lambda path: path.write_bytes(pickle.dumps({"format": "training-profile"})),
    "torch with objects": lambda path: torch.save(OBJECT, path),
    "another torch file": lambda path: torch.save({"weight": torch.zeros(3)}, path),
    "a tensor": lambda path: torch.save(torch.zeros(3), path),
    "truncated": cut,
    "flipped": flip,
}


@pytest.mark.parametrize("kind", BAD_FILES)
def test_bad_file_is_one_line_with_its_name(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.pt"
    BAD_FILES[kind](path)
    with pytest.raises(ProfileError) as caught:
        load_profile(path)
    message = str(caught.value)
    assert str(path) in message
    assert "\n" not in message
    assert len(message) < 400


def test_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path / "data.pt")
    before = path.read_bytes()

    def full_disk(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full_disk)
    with pytest.raises(ProfileError, match="No space left"):
        save_profile(path, profile(gemm_samples()))
    assert path.read_bytes() == before
    assert [found.name for found in tmp_path.iterdir()] == ["data.pt"]


def test_unwritable_target_is_a_profile_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(ProfileError, match="cannot be written"):
        save_profile(tmp_path / "file" / "data.pt", profile(one_of_each()))


@pytest.mark.parametrize("trials", [(), (0.0,), (-1.0,), (float("nan"),), (float("inf"),)])
def test_sample_refuses_what_is_no_time(trials: tuple[float, ...]) -> None:
    with pytest.raises(ProfileError):
        Sample(case=GemmCase(m=1, k=1, n=1), trials_s=trials)


def test_columns_keep_trials_of_unequal_number() -> None:
    cases = [GemmCase(m=m, k=1, n=1) for m in (1, 2, 3)]
    trials = [(1.0,), (4.0, 2.0, 3.0), (5.0, 7.0)]
    found = profile([Sample(case=c, trials_s=t) for c, t in zip(cases, trials, strict=True)])
    table = found.tables[Family.GEMM]
    assert table.medians_s().tolist() == [1.0, 3.0, 6.0]
    assert table.take(np.asarray([2, 0])).medians_s().tolist() == [6.0, 1.0]
    assert found.samples[1].trials_s == trials[1]


def test_what_is_saved_passes_the_checks_of_loading(tmp_path: Path) -> None:
    """A table spoiled after its samples were checked, as a merge or an import might."""
    spoiled = profile(gemm_samples())
    spoiled.tables[Family.GEMM].trials_s[0] = np.nan
    with pytest.raises(ProfileError, match="not written"):
        save_profile(tmp_path / "data.pt", spoiled)
    assert list(tmp_path.iterdir()) == []


DEFAULT = Path(__file__).resolve().parents[3] / "prof_data" / "data.pt"


@pytest.mark.parametrize("path", sorted(DEFAULT.parent.glob("*.pt")), ids=lambda path: path.stem)
def test_shipped_profiles_have_valid_curves_a_source_for_each_sample_and_three_megabytes(path: Path) -> None:
    profile = load_profile(path)
    assert path.stat().st_size <= 3_000_000
    assert all(is_published(table).all() for table in profile.tables.values())
    assert (profile.machine.rest, profile.machine.torch) == ("modelled", "")
    stale = [family.value for family in profile.tables if stored_curves(profile, family) is None]
    assert stale == [], f"renew them with: python -m profdb show {path} --refit"


BLOCK_BYTES = 4096


@pytest.mark.parametrize("step", [29, pytest.param(1, marks=pytest.mark.nightly)])
def test_a_zeroed_block_of_the_shipped_profile_is_found_or_read_by_nobody(step: int) -> None:
    content = DEFAULT.read_bytes()
    whole, refused = load_profile(DEFAULT), 0
    for start in range(0, len(content), BLOCK_BYTES * step):
        damaged = content[:start] + bytes(BLOCK_BYTES) + content[start + BLOCK_BYTES :]
        try:
            found = profile_in(damaged, "data.pt")
        except ProfileError:
            refused += 1
        else:
            hashes = ([table.content_hash() for table in one.tables.values()] for one in (found, whole))
            assert next(hashes) == next(hashes), start
    assert refused > len(content) / BLOCK_BYTES / step / 2
