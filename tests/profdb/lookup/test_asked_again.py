"""Questions that are equal in every word and number have one answer."""

from dataclasses import replace

import numpy as np
import pytest

from profdb.lookup import asked_again
from profdb.lookup.asked_again import Answers
from profdb.lookup.priced import TimeEstimate
from profdb.lookup.queries import LinearQuery, Query

M = np.array([1, 2, 3])
QUERY = LinearQuery(m=M, k=4, n=5)


def asks(answers: Answers, query: Query) -> bool:
    """Whether the question had to be asked."""
    asked = []

    def ask() -> TimeEstimate:
        asked.append(query)
        return TimeEstimate(
            seconds=np.ones(query.size), relative_std=np.ones(query.size), origin=np.ones(query.size)
        )

    answers.answer(query, ask)
    return bool(asked)


def test_only_what_differs_in_a_word_or_number_is_asked_again() -> None:
    answers = Answers()
    assert asks(answers, QUERY)
    assert not asks(answers, LinearQuery(m=M.copy(), k=np.full(3, 4)[:1], n=5))
    for other in (
        replace(QUERY, layout="TN"),
        replace(QUERY, dtype="fp16"),
        replace(QUERY, n=6),
        replace(QUERY, m=M[::-1].copy()),
        LinearQuery(m=1, k=4, n=5),
        LinearQuery(m=np.array([1, 1]), k=4, n=5),
    ):
        assert asks(answers, other)


def test_an_answer_cannot_be_changed_by_who_asked() -> None:
    answers = Answers()
    asks(answers, QUERY)
    told = answers.answer(QUERY, lambda: pytest.fail("known"))
    with pytest.raises(ValueError, match="read-only"):
        told.seconds[0] = 2.0


def test_no_more_answers_are_held_than_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asked_again, "MOST_ROWS", 7)
    answers = Answers()
    for n in (5, 6, 7):
        asks(answers, replace(QUERY, n=n))
    assert len(answers.known) == 1
    assert not asks(answers, replace(QUERY, n=7))
