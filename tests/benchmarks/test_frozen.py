"""What is stored of the program's answers, and that a change of any of them is seen."""

import gzip
import json

import pytest

from benchmarks import frozen
from tests.benchmarks.made_up_rows import write


@pytest.fixture
def one_plan(monkeypatch):
    """One question of two plans alone, so that a test takes a moment."""
    monkeypatch.setattr(frozen, "COUNTS", {"plans": 1})
    monkeypatch.setattr(frozen, "PLANS_A_QUESTION", 2)


def test_answers_are_the_same_a_moment_later(tmp_path, one_plan, capsys):
    path = tmp_path / "frozen.json.gz"
    assert frozen.main(["--out", str(path)]) == 0
    assert frozen.main(["--compare", str(path)]) == 0
    assert "0 differences" in capsys.readouterr().out


def test_a_step_that_moved_is_named(tmp_path, one_plan, capsys):
    path = tmp_path / "frozen.json.gz"
    frozen.main(["--out", str(path)])
    stored = json.loads(gzip.decompress(path.read_bytes()))
    answer = next(one for block in stored["plans"] if isinstance(block, list) for one in block if "step_s" in one)
    answer["step_s"] *= 1 + 1e-11
    path.write_bytes(gzip.compress(json.dumps(stored).encode()))
    assert frozen.main(["--compare", str(path)]) == 1
    assert "1 differences" in capsys.readouterr().out


def test_differences_are_told_by_place():
    before = {"a": [1.0, "x"], "b": 1}
    assert list(frozen.differences(before, {"a": [1.0 + 1e-13, "x"], "b": 1})) == []
    assert list(frozen.differences(before, {"a": [1.0, "y"]})) == [".a[1]: x -> y", ".b: 1 -> None"]


def test_predictions_of_rows_are_stored_where_there_are_rows(tmp_path, one_plan, capsys):
    path, rows = tmp_path / "frozen.json.gz", write(tmp_path, {}, {"row_id": "r2", "plans": "tp=3"})
    words = ["--measurements", str(rows), str(tmp_path / "none")]
    assert frozen.main(["--out", str(path), *words]) == 0
    stored = json.loads(gzip.decompress(path.read_bytes()))["rows"]
    assert stored[0]["made_up r1"]["step_s"] > 0
    assert "tensor x pipeline" in stored[1]["made_up r2"]["refused"]
    assert frozen.main(["--compare", str(path), *words, "--quick"]) == 0
    assert "rows: 1 questions, 0 differences" in capsys.readouterr().out


def test_every_exporter_writes_under_each_of_its_frameworks(monkeypatch):
    monkeypatch.setattr(frozen, "WRITTEN", {"megatron": frozen.WRITTEN["megatron"]})
    files = {name: one for each in frozen.launch_files(1) for name, one in each.items()}
    assert list(files) == ["megatron megatron", "megatron megatron-fsdp", "megatron zero-bubble"]
    assert all(one["status"] == 0 and one["files"] for one in files.values())


def test_a_kind_that_was_not_stored_is_passed_over(tmp_path, one_plan, monkeypatch, capsys):
    path = tmp_path / "frozen.json.gz"
    frozen.main(["--out", str(path)])
    monkeypatch.setattr(frozen, "COUNTS", {"plans": 1, "workloads": 0})
    assert frozen.main(["--compare", str(path)]) == 0
    assert "workloads: not stored" in capsys.readouterr().out
