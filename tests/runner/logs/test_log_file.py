from pathlib import Path

import pytest

from runner.logs.log_file import LogFile
from spec.errors import ExportError
from tests.runner.logs.test_log import ROWS


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


def test_a_folder_that_is_a_file_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("")
    with pytest.raises(ExportError, match="cannot be written"):
        LogFile(tmp_path / "logs" / "a_log.csv")
