"""A file is written whole or not at all, and only where a file may be."""

import os
from pathlib import Path

import pytest

from spec.errors import ExportError
from spec.files import replaced_file


def write(path: Path, text: str) -> None:
    with replaced_file(path) as handle:
        handle.write(text)


def test_an_error_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    write(path, "old")

    def write_half() -> None:
        with replaced_file(path) as handle:
            handle.write("half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write_half()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_of_a_link_the_file_it_points_to_is_written(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    file, link = tmp_path / "folder" / "a.txt", tmp_path / "link.txt"
    write(file, "old")
    link.symlink_to(file)
    write(link, "new")
    assert link.is_symlink()
    assert file.read_text() == "new"


def test_a_link_to_nothing_makes_its_file(tmp_path: Path) -> None:
    link = tmp_path / "link.txt"
    link.symlink_to(tmp_path / "a.txt")
    write(link, "new")
    assert link.is_symlink()
    assert (tmp_path / "a.txt").read_text() == "new"


def test_pipes_and_devices_stay_what_they_are(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, Path("/dev/full")):
        with pytest.raises(ExportError, match="is a pipe or a device"):
            write(path, "x")
    assert pipe.is_fifo()


@pytest.mark.parametrize("name", ["", "missing/a.txt", "a\0b", "x" * 300])
def test_what_cannot_be_written_is_one_line(name: str, tmp_path: Path) -> None:
    with pytest.raises(ExportError) as caught:
        write(tmp_path / name, "x")
    assert "\n" not in str(caught.value)
