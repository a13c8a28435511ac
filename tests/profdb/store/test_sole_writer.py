"""Of two programs that would write one file the second waits, and is refused when it has waited enough."""

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from profdb.store.sole_writer import sole_writer, try_lock
from spec.errors import ProfileError

ROOT = Path(__file__).resolve().parents[3]

HOLDING = """
import sys, time
from pathlib import Path
from profdb.store.sole_writer import sole_writer
with sole_writer(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(float(sys.argv[2]))
"""


def holding(path: Path, seconds: float) -> subprocess.Popen[str]:
    """Another program, in such a block for so long."""
    other = subprocess.Popen(
        [sys.executable, "-c", HOLDING, str(path), str(seconds)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert other.stdout is not None
    assert other.stdout.readline() == "held\n"
    return other


def test_a_second_program_is_refused_when_it_has_waited(tmp_path: Path) -> None:
    path = tmp_path / "data.pt"
    with holding(path, 60.0) as other:
        with (
            pytest.raises(ProfileError, match=r"data\.pt: another program is writing it"),
            sole_writer(path, wait_s=0.1),
        ):
            raise AssertionError("two at once")
        other.kill()
    # a killed program leaves no lock
    with sole_writer(path, wait_s=0.1):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_second_program_waits_for_the_end_of_the_first(tmp_path: Path) -> None:
    path = tmp_path / "data.pt"
    inside: list[str] = []

    def second() -> None:
        with sole_writer(path, wait_s=30.0):
            inside.append("second")

    with sole_writer(path):
        waiting = threading.Thread(target=second)
        waiting.start()
        time.sleep(0.3)
        inside.append("first")
    waiting.join()
    assert inside == ["first", "second"]
    assert list(tmp_path.iterdir()) == []


def test_a_lock_of_a_file_that_was_taken_away_is_none(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with path.open("wb") as handle:
        path.unlink()
        assert not try_lock(handle.fileno(), path)


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ProfileError, match="cannot be written"), sole_writer(tmp_path / "file" / "data.pt"):
        pass
