"""The least error that factors leave on a dataset: closed forms, the bounds of factors, and its place in the table."""

from collections.abc import Sequence

import numpy as np
import pytest

from benchmarks.row_calibration import calibration_lines, calibration_scores, least_error, least_errors
from solver.calibrate.fit import PricedStep, Steps
from solver.problem.calibration import COMM_AXES, CalibrationTerms


def steps(measured_s: Sequence[float], experts: Sequence[float]) -> Steps:
    """Steps of one second as priced, of products and, for ``experts`` of it, of experts."""
    share = np.array(experts)
    zero = np.zeros_like(share)
    parts = dict.fromkeys((*COMM_AXES, "attention", "memory_bound", "optimizer", "bubble", "host"), zero)
    parts |= {"grouped_gemm": share, "gemm": 1.0 - share}
    crosses = dict.fromkeys(COMM_AXES, zero > 1)
    terms = CalibrationTerms(parts=parts, crosses=crosses, hidden=dict.fromkeys(COMM_AXES, zero), passes=zero + 8)
    priced = PricedStep(terms=terms, std=zero + 0.07, curves=zero + 0.06)
    return Steps(priced=priced, measured_s=np.array(measured_s))


@pytest.mark.parametrize(
    ("measured_s", "least"),
    [
        ([1.6, 1.6, 1.6], 0.0),
        ([1.0, 1.0, 2.0], 0.5 / 3),  # predicted as the two that agree
        ([1.0, 2.0, 4.0], (0.5 + 0.75) / 3),
        ([0.25, 0.25, 0.25], 1.0),  # no efficiency is above 2
        ([8.0, 8.0, 8.0], 0.5),  # nor below a quarter
    ],
)
def test_one_factor_leaves_what_rows_differ_by(measured_s: list[float], least: float) -> None:
    alike = steps(measured_s, [0.3] * 3)
    assert least_error(alike, by_cause=False) == pytest.approx(least)
    assert least_error(alike, by_cause=True) == pytest.approx(least)


def test_a_factor_for_each_cause_leaves_nothing_where_causes_made_the_difference() -> None:
    share = np.linspace(0.0, 0.8, 5)
    apart = steps(1.2 * (1.0 - share) + 1.7 * share, share.tolist())
    assert least_error(apart, by_cause=True) == pytest.approx(0.0, abs=1e-9)
    # the middle row's factor is the weighted median here: predicted as 1.4, the rows stand at 1.2, 1.3, ... 1.6
    ratios = 1.4 / np.array([1.2, 1.3, 1.4, 1.5, 1.6])
    assert least_error(apart, by_cause=False) <= np.abs(ratios - 1.0).mean() + 1e-12
    assert least_error(apart, by_cause=False) > 0.05


def test_no_factor_of_a_fit_to_all_rows_does_better() -> None:
    rng = np.random.default_rng(0)
    share = rng.uniform(0.0, 0.8, 12)
    scattered = steps(1.1 + 0.5 * share + rng.normal(0.0, 0.05, 12), share.tolist())
    least = least_errors({"one": scattered})["one"]
    (result,) = calibration_scores({"one": scattered}, 11, seed=0)
    assert least[1] < least[0] < np.abs(1.0 / scattered.measured_s - 1.0).mean()
    head, line, macro = calibration_lines([[result]], {"one": least}, "calibrated")
    assert head.split()[-6:] == ["one", "factor", "%", "by", "cause", "%"]
    assert line.split()[-2:] == macro.split()[-2:] == [f"{100 * error:.2f}" for error in least]
