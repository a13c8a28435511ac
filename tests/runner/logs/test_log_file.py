import errno
import os
from pathlib import Path
from typing import Any

import pytest

from runner.logs.log import LogFile
from spec.errors import ExportError
from tests.runner.logs.test_log import ROWS


class Room:
    """A file on a disk that takes ``left_bytes`` more, as write(2) does: what fits, then an error."""

    def __init__(self, file: Any, left_bytes: int) -> None:
        self.file, self.left_bytes = file, left_bytes
        self.closed, self.close, self.truncate = False, file.close, file.truncate

    def write(self, data: memoryview) -> int:
        if not self.left_bytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        taken = self.file.write(data[: self.left_bytes])
        self.left_bytes -= taken
        return int(taken)


def test_what_is_added_lies_on_the_disk_before_the_end(tmp_path: Path) -> None:
    file = LogFile(tmp_path / "a_log.csv")
    file.add(ROWS[:2])
    assert len((tmp_path / "a_log.csv.part").read_text().splitlines()) == 3
    file.close()
    file.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a_log.csv"]


def test_an_error_keeps_the_log(tmp_path: Path) -> None:
    def run() -> float:
        with LogFile(tmp_path / "a_log.csv") as file:
            file.add(ROWS)
            return 1 / len(ROWS[:0])

    with pytest.raises(ZeroDivisionError):
        run()
    assert len((tmp_path / "a_log.csv").read_text().splitlines()) == 6


def test_a_full_disk_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "a_log.csv.part").symlink_to("/dev/full")
    with pytest.raises(ExportError, match=r"a_log\.csv: cannot be written: No space left on device"):
        LogFile(tmp_path / "a_log.csv")


def test_a_disk_that_fills_keeps_the_whole_rows_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = LogFile(tmp_path / "a_log.csv")
    file.add(ROWS[:2])
    room = Room(file._handle, 100)
    monkeypatch.setattr(file, "_handle", room)
    with pytest.raises(ExportError, match="No space left on device"), file:
        file.add(ROWS[:1] * 9)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a_log.csv"]
    lines = (tmp_path / "a_log.csv").read_text().splitlines()
    assert lines[1:] == [",".join(one.cells()) for one in ROWS[:2]]


def test_a_folder_that_is_a_file_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("")
    with pytest.raises(ExportError, match="cannot be written"):
        LogFile(tmp_path / "logs" / "a_log.csv")
