"""Calibration (solver.calibrate.fit) on a few rows of each dataset or cluster, scored on the other rows; and the least
error that factors fitted to all rows leave, which no calibration by such factors can beat."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from zlib import crc32

import numpy as np
from scipy.optimize import linprog

from benchmarks.published_rows import PublishedRow, RowPrediction
from benchmarks.row_scores import measured_step_s
from solver.calibrate.fit import PricedStep, Steps, concatenate_steps, fit
from solver.calibrate.measured_steps import priced_step
from solver.problem.calibration import HIGHEST_EFFICIENCY, LOWEST_EFFICIENCY, cause_shares
from solver.problem.interval import calibrated_interval
from spec.arrays import FloatArray

# Fewer rows than this in a dataset leave too few to score.
FEWEST_ROWS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationScore:
    """Score on the ``rows`` that were left out: mean absolute errors, share of rows inside the 80 % interval and its mean
    half-width, as fractions."""

    group: str
    rows: int
    before: float
    after: float
    covered: float
    half_width: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedRow:
    """A measured row in the form that calibration takes."""

    row: PublishedRow
    priced: PricedStep
    measured_s: float


def priced_rows(predictions: Sequence[RowPrediction]) -> list[PricedRow]:
    """The priced rows with a measured step time."""
    result = []
    for one in predictions:
        seconds = measured_step_s(one.row)
        if one.problem is None or one.answer is None or not seconds:
            continue
        # A smaller last micro-batch is spread over the parts in proportion.
        stretch = one.step_s / one.answer.step_s
        priced = priced_step(one.problem, one.answer.plan).scaled(stretch)
        result.append(PricedRow(row=one.row, priced=priced, measured_s=seconds))
    return result


def by_dataset(row: PublishedRow) -> str:
    """Key of all rows of a source."""
    return row.dataset


def by_cluster(row: PublishedRow) -> str:
    """Key of the rows of a source with one GPU, framework and precision, which stand for one user's cluster."""
    return " ".join((row.dataset, row.text("gpu"), row.text("framework"), row.text("precision")))


def steps_by(rows: Sequence[PricedRow], key: Callable[[PublishedRow], str]) -> dict[str, Steps]:
    """The steps of every group with enough rows."""
    members: dict[str, list[PricedRow]] = {}
    for one in rows:
        members.setdefault(key(one.row), []).append(one)
    return {
        name: concatenate_steps([one.priced for one in ones], [one.measured_s for one in ones])
        for name, ones in sorted(members.items())
        if len(ones) >= FEWEST_ROWS
    }


def least_error(steps: Steps, *, by_cause: bool) -> float:
    """The least mean absolute error, a fraction, of ``steps`` under one factor for all seconds, or one for
    each cause, within the bounds of efficiencies. A calibrated step is linear in what its causes take, so
    this is a linear programme."""
    longer = cause_shares(steps.terms) * (steps.priced_s / steps.measured_s)[:, None]
    errors = longer if by_cause else longer.sum(axis=1, keepdims=True)
    count, factors = errors.shape
    misses = -np.eye(count)
    result = linprog(
        np.append(np.zeros(factors), np.full(count, 1.0 / count)),
        A_ub=np.block([[errors, misses], [-errors, misses]]),
        b_ub=np.append(np.ones(count), -np.ones(count)),
        bounds=[(1.0 / HIGHEST_EFFICIENCY, 1.0 / LOWEST_EFFICIENCY)] * factors + [(0.0, None)] * count,
    )
    return float(result.fun)


def least_errors(groups: dict[str, Steps]) -> dict[str, tuple[float, float]]:
    """Returns the errors of every group, with one factor and with one a cause."""
    return {
        name: (least_error(steps, by_cause=False), least_error(steps, by_cause=True)) for name, steps in groups.items()
    }


def calibration_scores(groups: dict[str, Steps], rows: int, seed: int) -> list[CalibrationScore]:
    """The scores of each group after calibration on ``rows`` of its steps, drawn by ``seed``."""
    result = []
    for name, steps in groups.items():
        count = len(steps.measured_s)
        if count < rows + 1:
            continue
        order = np.random.default_rng([seed, crc32(name.encode())]).permutation(count)
        factors = fit(steps.take(order[:rows])).factors
        rest = steps.take(order[rows:])
        after = rest.predicted_s(factors)
        low, high = calibrated_interval(after, factors.residual_std)
        inside = (rest.measured_s >= low) & (rest.measured_s <= high)
        result.append(
            CalibrationScore(
                group=name,
                rows=count - rows,
                before=_mape(rest.priced_s, rest.measured_s),
                after=_mape(after, rest.measured_s),
                covered=float(inside.mean()),
                half_width=float(((high - low) / 2.0 / after).mean()),
            )
        )
    return result


def _mape(predicted_s: FloatArray, measured_s: FloatArray) -> float:
    return float(np.abs(predicted_s / measured_s - 1.0).mean())


def calibration_tables(predictions: Sequence[RowPrediction], rows: int, seeds: Iterable[int]) -> list[str]:
    """Errors on the rest after a fit to a few rows: of a whole dataset, and of one cluster in it."""
    priced = priced_rows(predictions)
    draws = list(seeds)
    lines: list[str] = []
    for title, key in (("dataset", by_dataset), ("cluster", by_cluster)):
        groups = steps_by(priced, key)
        runs = [calibration_scores(groups, rows, seed) for seed in draws]
        head = f"calibrated on {rows} rows of a {title}"
        lines += [*calibration_lines(runs, least_errors(groups), head), ""]
    return lines


def calibration_lines(
    runs: Sequence[Sequence[CalibrationScore]], least: Mapping[str, tuple[float, float]], title: str
) -> list[str]:
    """A line for each group, and the macro mean: means over the seeds, and the least errors of all rows."""
    names = ("before", "after", "covered", "half_width")
    heads = f"{'one factor %':>13} {'by cause %':>11}"
    lines = [f"{title:70} {'scored':>6} {'before %':>9} {'after %':>8} {'in 80 %':>8} {'half %':>7} {heads}"]
    means = []
    for same in zip(*runs, strict=True):
        values = [100 * float(np.mean([getattr(one, name) for one in same])) for name in names]
        values += [100 * error for error in least[same[0].group]]
        means.append(values)
        lines.append(_line(same[0].group, str(same[0].rows), values))
    if means:
        lines.append(_line("macro mean", "", np.mean(means, axis=0).tolist()))
    return lines


def _line(name: str, rows: str, values: Sequence[float]) -> str:
    before, after, covered, half, one_factor, by_cause = values
    figures = f"{before:9.2f} {after:8.2f} {covered:8.1f} {half:7.1f} {one_factor:13.2f} {by_cause:11.2f}"
    return f"{name:70} {rows:>6} {figures}"
