"""The search's benchmark: what it cannot write is said first; phases add up to the search."""

from dataclasses import asdict
from importlib import import_module
from pathlib import Path

import pytest

from benchmarks import search_speed
from benchmarks.search_speed import QUESTIONS, ROOT, WRAPPED, Phases, SearchQuestion
from solver.plans.space import full_space
from solver.problem.loading import load_problem
from solver.search import search


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


def test_a_question_is_measured_phase_by_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every function that makes a phase is there and counted, and what is counted is the search's own."""
    for places in WRAPPED.values():
        for module, name in places:
            monkeypatch.setattr(import_module(module), name, getattr(import_module(module), name))
    small = SearchQuestion(config="7B_internlm2.py", world_size=8, global_batch_tokens=1 << 16, framework="megatron")
    monkeypatch.setitem(QUESTIONS, "small", small)
    measured = search_speed.measure(["small"])
    question = load_problem(small.request(ROOT)).problem
    assert measured.priced == search(question, full_space(question.model, question.job)).num_priced
    assert set(search_speed.PHASES) == {*measured.phases_s}
    assert min(measured.phases_s.values()) > 0.0
    inside = {key: value for key, value in measured.phases_s.items() if key not in ("imports", "profile")}
    # Besides the search, "other" holds the question's own files.
    assert inside["rules"] + inside["memory"] + inside["layer times"] < measured.search_s
    assert measured.search_s < sum(inside.values()) < measured.cpu_s
    # Twice the plans in the same seconds are twice the rate.
    row = search_speed.lines([asdict(measured) | {"priced": 300, "search_s": 1.5}])[1]
    assert row.split()[3:5] == ["300", "200"]
