"""The search's benchmark: what it cannot write is said first; phases add up to the search."""

from pathlib import Path

import pytest

from benchmarks import search_speed
from benchmarks.search_speeds.phases import Phases


def test_results_that_cannot_be_written_are_refused_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert search_speed.main(["--json", str(Path("no") / "such" / "x.json")]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("error: --json: output path = ")
    assert said.err.count("\n") == 1


def test_the_innermost_phase_has_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 1.0, 3.0, 6.0, 10.0, 15.0])
    monkeypatch.setattr("time.process_time", lambda: next(clock))
    phases = Phases()
    inner = phases.around("inner", lambda: None)
    phases.around("outer", inner)()
    assert phases.finished() == {"other": 1.0 + 5.0, "outer": 2.0 + 4.0, "inner": 3.0}
