"""The search's benchmark: what is counted is the search's own."""

from dataclasses import asdict

import pytest

from benchmarks import search_speed
from benchmarks.search_speed import QUESTIONS, ROOT, SearchQuestion
from solver.plans.space import full_space
from solver.problem.loading import load_problem
from solver.search import search


def test_a_question_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    small = SearchQuestion(config="7B_internlm2.py", world_size=8, global_batch_tokens=1 << 16, framework="megatron")
    monkeypatch.setitem(QUESTIONS, "small", small)
    measured = search_speed.measure("small")
    question = load_problem(small.request(ROOT)).problem
    assert measured.priced == search(question, full_space(question.model, question.job)).num_priced
    assert 0.0 < measured.search_s < measured.cpu_s
    # Twice the plans in the same seconds are twice the rate.
    row = search_speed.lines([asdict(measured) | {"priced": 300, "search_s": 1.5}])[1]
    assert row.split()[3:5] == ["300", "200"]
