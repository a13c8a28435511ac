"""The bytes of a torch archive are checked before anything is unpickled; a glance reads the cluster's name alone."""

import contextlib
import io
import os
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from profdb.store.archive import MOST_BYTES, DamagedArchiveError, check_archive, read_archive
from profdb.store.data_file import load_profile, profile_in, save_profile
from spec.errors import ProfileError
from tests.profdb.profiles import gemm_samples, profile

SHIPPED = Path(__file__).resolve().parents[3] / "prof_data" / "data.pt"
BLOCK_BYTES = 4096


def small_archive() -> bytes:
    """A torch archive of two tensors."""
    buffer = io.BytesIO()
    torch.save({"a": torch.arange(50), "b": torch.ones(7)}, buffer)
    return buffer.getvalue()


@pytest.mark.parametrize("step", [29, pytest.param(1, marks=pytest.mark.nightly)])
def test_no_block_of_the_shipped_profile_can_be_zeroed(step: int) -> None:
    content = SHIPPED.read_bytes()
    changed = 0
    for start in range(0, len(content), BLOCK_BYTES * step):
        block = content[start : start + BLOCK_BYTES]
        if not block.strip(b"\0"):
            continue
        changed += 1
        damaged = b"".join((content[:start], bytes(len(block)), content[start + BLOCK_BYTES :]))
        with pytest.raises(ProfileError) as caught:
            profile_in(damaged, "data.pt")
        assert "\n" not in str(caught.value), start
    assert changed > 1000 / step


def test_only_bytes_that_nobody_reads_can_be_flipped_in_an_archive() -> None:
    content = small_archive()
    check_archive(content)
    passed = 0
    for place in range(len(content)):
        damaged = bytearray(content)
        damaged[place] ^= 0x20
        with contextlib.suppress(DamagedArchiveError, RuntimeError):
            check_archive(bytes(damaged))
            passed += 1
            assert torch.load(io.BytesIO(damaged), weights_only=True)["a"].tolist() == list(range(50))
    # of each member version and time in its header, two versions, time and attributes in the directory; lengths
    # of the last entry beyond the directory's end; two versions at the end
    members = len(zipfile.ZipFile(io.BytesIO(content)).infolist())
    assert passed == members * (2 + 4 + 2 + 2 + 4 + 8) + 6 + 4


def zipped(compression: int) -> bytes:
    """An archive like torch's, made by another program."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02}q\x00.")
    return buffer.getvalue()


def test_compressed_members_are_refused() -> None:
    check_archive(zipped(zipfile.ZIP_STORED))
    with pytest.raises(DamagedArchiveError, match="compressed"):
        check_archive(zipped(zipfile.ZIP_DEFLATED))


def test_a_member_larger_than_the_file_is_refused() -> None:
    content = bytearray(small_archive())
    entry = content.index(b"PK\x01\x02")
    content[entry + 20 : entry + 28] = struct.pack("<II", 2**31, 2**31)
    with pytest.raises(DamagedArchiveError, match="more than the file has"):
        check_archive(bytes(content))


@pytest.mark.parametrize("extra", [b"x", b"PK\x05\x06" + bytes(18), bytes(98)])
def test_bytes_behind_the_end_are_refused(extra: bytes) -> None:
    with pytest.raises(DamagedArchiveError):
        check_archive(small_archive() + extra)


def test_bytes_before_the_first_member_are_refused() -> None:
    with pytest.raises(DamagedArchiveError):
        check_archive(b"#!/bin/sh\n" + small_archive())


def test_a_member_that_no_directory_names_is_refused() -> None:
    content = small_archive()
    start = content.index(b"PK\x01\x02")
    hidden = content[:start] + zipped(zipfile.ZIP_STORED)[:40] + content[start:]
    with pytest.raises(DamagedArchiveError):
        check_archive(hidden)


def test_pipes_and_devices_are_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.pt")
    for path in (tmp_path / "pipe.pt", Path("/dev/zero")):
        with pytest.raises(ProfileError, match="a pipe or a device"):
            read_archive(path)


def test_a_file_larger_than_any_profile_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "large.pt"
    with path.open("wb") as handle:
        handle.truncate(MOST_BYTES + 1)
    with pytest.raises(ProfileError, match="a profile has at most"):
        read_archive(path)


def test_what_is_saved_passes_the_checks_of_loading(tmp_path: Path) -> None:
    """A table spoiled after its samples were checked, as a merge or an import might."""
    spoiled = profile(gemm_samples())
    table = next(iter(spoiled.tables.values()))
    table.trials_s[0] = np.nan
    path = tmp_path / "data.pt"
    with pytest.raises(ProfileError, match="not written"):
        save_profile(path, spoiled)
    assert list(tmp_path.iterdir()) == []


def test_a_file_written_plainly_by_torch_is_still_read(tmp_path: Path) -> None:
    """Files of before the checks: nothing in the format changed."""
    path = tmp_path / "data.pt"
    save_profile(path, profile(gemm_samples()))
    torch.save(torch.load(path, weights_only=True), path)
    assert len(load_profile(path).samples) == len(gemm_samples())
