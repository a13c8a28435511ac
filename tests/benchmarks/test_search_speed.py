"""The search's benchmark: what it cannot write is said first; phases add up to the search."""

from dataclasses import asdict
from importlib import import_module
from pathlib import Path

import pytest

from benchmarks import search_speed
from benchmarks.search_speed import QUESTIONS, ROOT, WRAPPED, Phases, SearchQuestion
from benchmarks.table_rate import feasible, table_rate
from solver.memory.device import usable_bytes
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


@pytest.mark.parametrize("interleaved", [False, True])
def test_a_raw_table_holds_as_many_plans_that_fit_as_asked_for(interleaved: bool) -> None:
    """More of them than there are different ones."""
    small = SearchQuestion(
        config="7B_internlm2.py", world_size=16, global_batch_tokens=1 << 19, framework="megatron"
    )
    asked = small.request(ROOT)
    found = table_rate(asked, 6000, interleaved=interleaved)
    question = load_problem(asked).problem
    different = sum(len(one) for one in feasible(question, interleaved=interleaved))
    assert (found.plans, found.distinct) == (6000, different)
    assert 0 < different < 6000
    assert found.most_bytes <= usable_bytes(question.cluster)
    best_s = search(question, full_space(question.model, question.job), top_k=1).best[0].step_s
    # Some layers more recomputed than needed never make the fastest plan.
    assert found.fastest_s >= best_s * (1.0 - 1e-9)


@pytest.mark.parametrize(
    "words", [("--raw", "-5"), ("--raw", "0"), ("--raw", "x"), ("--question", "x"), ("--x",)]
)
def test_a_wrong_flag_is_refused_in_one_line(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert search_speed.main([*words]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert words[-1] in said.err


def test_a_question_is_measured_phase_by_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every function that makes a phase is there and counted, and what is counted is the search's own."""
    for places in WRAPPED.values():
        for module, name in places:
            monkeypatch.setattr(import_module(module), name, getattr(import_module(module), name))
    small = SearchQuestion(
        config="7B_internlm2.py", world_size=8, global_batch_tokens=1 << 16, framework="megatron"
    )
    monkeypatch.setitem(QUESTIONS, "small", small)
    measured = search_speed.measure(["small"])
    question = load_problem(small.request(ROOT)).problem
    assert measured.priced == search(question, full_space(question.model, question.job)).num_priced
    assert set(search_speed.SHOWN) == {*measured.phases_s}
    assert min(measured.phases_s.values()) > 0.0
    inside = {key: value for key, value in measured.phases_s.items() if key not in ("imports", "profile")}
    # Besides the search, "other" holds the question's own files.
    assert inside["rules"] + inside["memory"] + inside["layer times"] < measured.search_s
    assert measured.search_s < sum(inside.values()) < measured.cpu_s
    # Twice the plans in the same seconds are twice the rate.
    row = search_speed.lines([asdict(measured) | {"priced": 300, "search_s": 1.5}])[1]
    assert row.split()[3:5] == ["300", "200"]
