"""The least error that factors leave on a dataset: closed forms, the bounds of factors, and its place in the table."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks import row_calibration
from benchmarks.row_calibration import (
    best_share_error,
    calibrated,
    calibration_lines,
    large_from_small_lines,
    least_error,
)
from solver.calibrate.fit import PricedStep, Steps, fit
from solver.problem.calibration import COMM_AXES, CalibrationTerms
from solver.problem.interval import NEW_SOURCES, interval_of
from tests.benchmarks.made_up_rows import predict, row


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


def test_no_fit_to_some_rows_beats_the_factor_that_knows_all(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    share = rng.uniform(0.0, 0.8, 12)
    scattered = steps(1.1 + 0.5 * share + rng.normal(0.0, 0.05, 12), share.tolist())
    monkeypatch.setattr(row_calibration, "steps_by_source", lambda rows: {"one": (scattered, np.zeros(12, np.int64))})
    monkeypatch.setattr(row_calibration, "priced_rows", lambda predictions: [])
    head, line, whole, macro, best = calibration_lines([], "calibrated", range(10), {})
    assert head.split()[:2] == ["calibrated", "rows"]
    before, *after, one_factor, by_cause = map(float, line.split()[2:8])
    assert by_cause < one_factor < before
    assert by_cause < after[2] < after[0] < before
    assert line.split()[2:] == whole.split()[3:] == macro.split()[2:]
    # One share of the miss knows less of a row than the prior and the noise of the fit do.
    assert float(best.split()[-2]) > one_factor


def test_only_rows_of_a_machine_correct_it() -> None:
    """Two machines of one source, one as priced and one half as fast: two rows of the latter say nothing of the former."""
    both = steps([1.0] * 4 + [2.0] * 4, [0.3] * 8)
    machine = np.array([0] * 4 + [1] * 4)
    drawn = np.array([[0.0] * 4 + [1.0, 1.0, 0.0, 0.0]])
    error, inside, half, score = calibrated(both, machine, drawn, NEW_SOURCES)
    found = fit(both.take(np.array([4, 5]))).factors
    own = both.take(np.array([6])).predicted_s(found)[0]
    assert error == pytest.approx(2 / 6 * (1.0 - own / 2.0))
    assert inside == 1.0
    narrow = np.sinh(1.2816 * found.interval_std(both.priced.std[:1])[0])
    low, high = interval_of(np.ones(1), NEW_SOURCES.interval_std(both.priced.std[:1], np.zeros(1)))
    assert half == pytest.approx(4 / 6 * (high - low)[0] / 2 + 2 / 6 * narrow)
    assert score > 0.0
    # Of known sources the interval is narrower until they are calibrated.
    assert calibrated(both, machine, drawn, None)[2] < half


def test_the_best_share_of_rows_that_agree_is_all_and_of_rows_that_scatter_is_none() -> None:
    agreeing, machine = steps([1.3] * 6, [0.3] * 6), np.zeros(6, np.int64)
    assert best_share_error({"one": (agreeing, machine)}, 1, range(5)) == pytest.approx(0.0, abs=1e-12)
    scattered = steps([1.5, 1 / 1.5] * 3, [0.3] * 6)
    error = best_share_error({"one": (scattered, machine)}, 1, range(5))
    assert error <= np.abs(1.0 / scattered.measured_s - 1.0).mean() + 0.02


def test_large_sizes_are_told_by_the_smallest_two(tmp_path: Path) -> None:
    """Four sizes of a job a quarter slower than priced, and one of another plan, which is another job."""
    rows = [row(tmp_path, num_gpus=gpus, global_batch_sequences=8 * gpus, tp="2") for gpus in (8, 16, 32, 64)]
    slow = [
        replace(one, row=replace(one.row, cells={**one.row.cells, "measured_step_s": f"{1.25 * one.step_s:.17g}"}))
        for one in predict(*rows)
    ]
    alone = replace(slow[0], row=replace(slow[0].row, cells={**slow[0].row.cells, "tp": "4"}))
    head, line = large_from_small_lines([*slow, alone], "large from small")
    name, jobs, count, before, after = line.split()
    assert (name, jobs, count) == ("made_up", "1", "2")
    assert float(before) == pytest.approx(20.0, abs=0.06)
    assert float(after) < 10.0
    assert head.split()[-4:] == ["before", "%", "after", "%"]
