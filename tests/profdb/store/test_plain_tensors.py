"""torch.save's archives read without torch: as torch reads them, and nothing but plain data."""

import contextlib
import io
import os
import pickle
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from profdb.store.data_file import UNREADABLE
from profdb.store.plain_tensors import STORAGES, plain_document

ROOT = Path(__file__).resolve().parents[3]


def saved(document: object) -> bytes:
    """The archive that torch writes."""
    buffer = io.BytesIO()
    torch.save(document, buffer)
    return buffer.getvalue()


def same(ours: object, theirs: object) -> None:
    """Equal values of equal types, a tensor for an array."""
    if isinstance(theirs, dict):
        assert isinstance(ours, dict)
        assert list(ours) == list(theirs)
        for key, value in theirs.items():
            same(ours[key], value)
    elif isinstance(theirs, torch.Tensor):
        assert isinstance(ours, np.ndarray)
        assert ours.dtype == theirs.numpy().dtype
        np.testing.assert_array_equal(ours, theirs.numpy())
        assert ours.shape == tuple(theirs.shape)
    else:
        assert type(ours) is type(theirs)
        assert ours == theirs


def test_reads_what_torch_reads() -> None:
    shared = torch.arange(12, dtype=torch.int64)
    document = {
        "numbers": {"a": 1, "big": 2**40, "negative": -(2**70), "f": 1.5, "none": None, "yes": True},
        "words": ["x", "", "é", "x"],
        "pair": (1, 2, 3, 4),
        "whole": shared,
        "rows": shared.reshape(3, 4)[1:],
        "one": torch.tensor(7.0),
        "empty": torch.zeros(0, 3),
        "kinds": {
            str(kind): torch.tensor([0, 1, 1]).to(kind)
            for kind in (torch.float64, torch.float32, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)
        },
    }
    content = saved(document)
    same(plain_document(content), torch.load(io.BytesIO(content), weights_only=True))


def test_the_shipped_profile_is_read_as_torch_reads_it() -> None:
    content = (ROOT / "prof_data" / "data.pt").read_bytes()
    same(plain_document(content), torch.load(io.BytesIO(content), weights_only=True))


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
def test_every_storage_is_torch_s() -> None:
    for name, dtype in STORAGES.items():
        held = getattr(torch, name)
        assert torch.zeros(1, dtype=held.dtype).numpy().dtype == np.dtype(dtype)


class Runs:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("true",)


class HasState:
    def __init__(self) -> None:
        self.a = 1


@pytest.mark.parametrize(
    "document",
    [Runs(), {"a": HasState()}, {"a": {1, 2}}, torch.arange(6).reshape(2, 3).t(), torch.zeros(1).expand(9), 1j],
)
def test_anything_else_is_refused(document: object) -> None:
    with pytest.raises((pickle.UnpicklingError, ValueError)):
        plain_document(saved(document))


def rewritten(content: bytes, member: str, change: Callable[[bytes], bytes]) -> bytes:
    """The archive with one member changed."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(buffer, "w") as new:
        for name in old.namelist():
            held = old.read(name)
            new.writestr(name, change(held) if name.endswith(member) else held)
    return buffer.getvalue()


def test_bytes_of_a_big_endian_machine_are_turned() -> None:
    content = rewritten(saved({"a": torch.arange(5)}), "byteorder", lambda _: b"big")
    content = rewritten(content, "data/0", lambda held: np.frombuffer(held, "<i8").astype(">i8").tobytes())
    found = plain_document(content)
    assert isinstance(found, dict)
    assert found["a"].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("member", "change"),
    [
        ("data/0", lambda held: held[:-8]),
        ("byteorder", lambda held: b"middle"),
        ("data.pkl", lambda held: held.replace(b"LongStorage", b"LongTensor_")),
        ("data.pkl", lambda held: pickle.dumps({"a": 1}, protocol=4)),
        ("data.pkl", lambda held: b"\x80\x02ctorch\nLongStorage\n)R."),
        ("data.pkl", lambda held: b"\x80\x02}(X\x01\x00\x00\x00aK\x01ubb."),
    ],
)
def test_a_changed_member_is_refused(member: str, change: Callable[[bytes], bytes]) -> None:
    with pytest.raises((pickle.UnpicklingError, KeyError, ValueError)):
        plain_document(rewritten(saved({"a": torch.arange(5)}), member, change))


def test_a_flipped_bit_is_found_or_read_by_nobody() -> None:
    content = saved({"a": torch.arange(50), "b": torch.ones(7)})
    for place in range(len(content)):
        damaged = bytearray(content)
        damaged[place] ^= 0x20
        with contextlib.suppress(pickle.UnpicklingError, zipfile.BadZipFile, struct.error, *UNREADABLE):
            same(plain_document(bytes(damaged)), {"a": torch.arange(50), "b": torch.ones(7)})


def test_compressed_members_are_refused() -> None:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02}q\x00.")
    with pytest.raises(pickle.UnpicklingError, match="compressed"):
        plain_document(content.getvalue())


def test_a_member_larger_than_the_file_is_refused() -> None:
    content = bytearray(saved({"a": torch.arange(5)}))
    entry = content.index(b"PK\x01\x02")
    content[entry + 20 : entry + 28] = struct.pack("<II", 2**31, 2**31)
    with pytest.raises(pickle.UnpicklingError, match="more bytes than the file has"):
        plain_document(bytes(content))


def test_a_search_needs_no_torch(tmp_path: Path) -> None:
    code = (
        "import sys; import simulation_train_formulaic as main;"
        "status = main.main('--config configs/tiny_internlm2.py --run_all_solu --world_size 8 --framework megatron --fix cp=1,pp=1'.split());"
        "sys.exit(9 if 'torch' in sys.modules else status)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
