"""The interval of a published run: the answer's own, wider by what the run needs and nobody prices."""

import math
from dataclasses import replace

import pytest

from benchmarks.accuracy_rows.coverage import GAP_STD, interval
from benchmarks.accuracy_rows.gaps import Gap
from benchmarks.accuracy_rows.pricing import Prediction
from benchmarks.accuracy_rows.row import Row
from solver.interval import EIGHTY_PERCENT, UNPRICED
from solver.plans.plan_table import Plan, PlanTable
from solver.search import price_plan
from tests.benchmarks.made_up_rows import row
from tests.solver.questions import question

ANSWER = price_plan(
    question(world_size=1, sequences=4),
    PlanTable.of(Plan(strategy="mtp", preset="internevo", num_micro=4)),
)[0]


def predicted(*gaps: Gap) -> Prediction:
    made: Row = row()
    return Prediction(row=made, answer=ANSWER, step_s=2.0, gaps=gaps)


def std_of(one: Prediction) -> float:
    bounds = interval(one)
    assert bounds is not None
    low, high = bounds
    assert low < 2.0 < high
    return (math.log(high / 2.0) - UNPRICED) / EIGHTY_PERCENT


def test_without_gaps_it_is_the_answers_own_at_the_rows_step() -> None:
    own = (math.log(ANSWER.interval_high_s / ANSWER.step_s) - UNPRICED) / EIGHTY_PERCENT
    assert std_of(predicted()) == pytest.approx(own)
    assert std_of(predicted(Gap.UNEVEN_BATCH)) == pytest.approx(own)


def test_every_missing_piece_adds_its_variance_once() -> None:
    own = std_of(predicted())
    assert std_of(predicted(Gap.LATENT_SHAPES)) == pytest.approx(math.hypot(own, GAP_STD))
    assert std_of(predicted(Gap.LATENT_SHAPES, Gap.LATENT_SHAPES)) == pytest.approx(math.hypot(own, GAP_STD))
    assert std_of(predicted(Gap.LATENT_SHAPES, Gap.FP8_COMM)) == pytest.approx(
        math.hypot(own, GAP_STD, GAP_STD)
    )


def test_a_row_without_an_answer_has_none() -> None:
    assert interval(replace(predicted(), answer=None)) is None
