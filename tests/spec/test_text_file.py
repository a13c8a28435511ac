"""Only regular files of a sensible size are opened, and every refusal fits behind the file's name."""

import os
from pathlib import Path

import pytest

from spec.files import UnreadableFileError, read_bytes, read_file_text


def test_a_whole_file_is_read_up_to_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbf" + "12345é".encode())
    assert read_file_text(path, 100) == "12345é"
    assert len(read_bytes(path, 10)) == 10
    with pytest.raises(UnreadableFileError, match="10 bytes; at most 9 are read"):
        read_bytes(path, 9)


@pytest.mark.parametrize("kind", ["missing", "folder", "pipe", "device", "name", "loop", "binary"])
def test_what_is_no_text_file_is_refused(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    told = {
        "missing": "no such file",
        "folder": "is no regular file",
        "pipe": "is no regular file",
        "device": "is no regular file",
        "name": "cannot be read: its name is none",
        "loop": "cannot be read: Too many levels of symbolic links",
        "binary": "cannot be read: is no UTF-8 text",
    }
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path = Path("/dev/zero")
    elif kind == "name":
        path = Path("a\0b")
    elif kind == "loop":
        path.symlink_to(path)
    elif kind == "binary":
        path.write_bytes(b"\xff\xfe")
    with pytest.raises(UnreadableFileError) as caught:
        read_file_text(path, 100)
    assert str(caught.value) == told[kind]
