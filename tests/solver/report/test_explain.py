"""Why one plan wins: differences of parts, and ties judged by the error of the difference."""

from dataclasses import replace
from math import sqrt

import pytest

from solver.plans.plan_table import Plan, PlanTable
from solver.report.explain import difference, paired_error_s
from solver.result import Answer
from solver.search import price_plan
from tests.solver.questions import question


def priced(**errors_s: float) -> Answer:
    """A plan of the flat cost model with the standard errors asked for, by curve family."""
    plan = Plan(strategy="mtp", preset="internevo", num_micro=4)
    asked = question(world_size=1, sequences=4)
    return replace(price_plan(asked, PlanTable.of(plan))[0], errors_s=errors_s)


def test_errors_of_one_family_cancel_and_those_of_two_do_not() -> None:
    one = priced(gemm=3.0, attention=4.0)
    assert paired_error_s(one, one) == 0.0
    assert paired_error_s(one, priced(gemm=3.0)) == pytest.approx(4.0)
    assert paired_error_s(priced(gemm=3.0), priced(all_reduce=4.0)) == pytest.approx(5.0)
    assert paired_error_s(one, priced(gemm=1.0, attention=1.0)) == pytest.approx(sqrt(4.0 + 9.0))


def test_a_tie_is_a_difference_within_its_own_error() -> None:
    winner = priced(gemm=1e-3)
    slower_by = 0.01 * winner.step_s
    parts = winner.parts_s | {"gemm": winner.parts_s["gemm"] + slower_by}
    other = replace(winner, step_s=winner.step_s + slower_by, parts_s=parts)
    assert "a tie" not in difference(winner, other)
    unlike = replace(other, errors_s={"all_reduce": slower_by})
    words = difference(winner, unlike)
    assert "1.0 % slower: matrix products +" in words
    assert "a tie: within the 80 % interval" in words
