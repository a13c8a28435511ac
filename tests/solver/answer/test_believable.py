"""An answer that no machine could give is an error that names whose times it comes from."""

from dataclasses import replace
from math import inf, nan

import pytest

from solver.answer.answer import Answer
from solver.answer.believable import check_believable
from solver.plans.plan_table import Plan, PlanTable
from solver.search import price_plan
from spec.errors import ProfileError
from tests.solver.flat_book import FlatBook
from tests.solver.questions import question

PLAN = Plan(strategy="mtp", preset="internevo", dp=16, num_micro=4)


def answer(book: FlatBook | None = None) -> Answer:
    return price_plan(question(book=book), PlanTable.of(PLAN))[0]


def test_a_plain_answer_passes() -> None:
    check_believable([answer()], "p.pt")


@pytest.mark.parametrize("changes", [{"interval_high_s": inf}, {"interval_low_s": nan}, {"step_s": 0.0}])
def test_times_that_cannot_be_name_the_profile(changes: dict[str, float]) -> None:
    with pytest.raises(ProfileError, match=r"^p\.pt: its times give mtp .* no time that can be"):
        check_believable([replace(answer(), **changes)], "p.pt")  # type: ignore[arg-type]


def test_no_gpu_does_more_than_its_peak() -> None:
    """The flat book's GPU has a peak of 100 TFLOP/s; these products run ten thousand times as fast."""
    with pytest.raises(ProfileError, match=r"p\.pt: .* of the GPUs' peak FLOP/s, which no GPU reaches"):
        check_believable([replace(answer(FlatBook(flops=1e18)), mfu=1.2)], "p.pt")
