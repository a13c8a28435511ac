"""Calibration (solver.calibrate.fit) on a few rows of each source, scored on its other rows, and on small sizes of a job,
scored on its large ones; and the least error that factors fitted to all rows leave, which no calibration can beat."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from zlib import crc32

import numpy as np
from scipy.optimize import linprog

from benchmarks.published_rows import PublishedRow, RowPrediction
from benchmarks.row_scores import ALL_ROWS, INSIDE, measured_step_s
from solver.calibrate.fit import PricedStep, Steps, calibrations, concatenate_steps
from solver.calibrate.measured_steps import priced_step
from solver.problem.calibration import HIGHEST_EFFICIENCY, LOWEST_EFFICIENCY, cause_shares
from solver.problem.interval import NEW_SOURCES, SourceSpread, interval_of
from spec.arrays import FloatArray, IntArray

# Fewer rows than this in a dataset leave too few to score.
FEWEST_ROWS = 12
FITTED = (1, 3, 5)
"""Rows that are fitted to."""
LARGE, CALIBRATED = "large from small", "calibrated"
SHARES = np.linspace(0.0, 1.0, 21)
JOB = ("cluster", "preset", "model_name", "precision", "seq_len", "tp", "pp", "vpp", "cp", "ep", "zero_stage")
JOB += ("micro_batch", "recompute", "sp")
"""Columns of a job, which is one whatever its GPUs and batch."""


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


def steps_by_source(rows: Sequence[PricedRow]) -> dict[str, tuple[Steps, IntArray]]:
    """The steps of every source with enough rows, and a number of the machine and framework of each: a calibration is of
    one."""
    members: dict[str, list[PricedRow]] = {}
    for one in rows:
        members.setdefault(one.row.dataset, []).append(one)
    result = {}
    for name, ones in sorted(members.items()):
        if len(ones) < FEWEST_ROWS:
            continue
        words = [(one.row.text("cluster"), one.row.text("preset")) for one in ones]
        steps = concatenate_steps([one.priced for one in ones], [one.measured_s for one in ones])
        result[name] = (steps, np.array([sorted(set(words)).index(each) for each in words], dtype=np.int64))
    return result


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


def calibrated(steps: Steps, machine: IntArray, drawn: FloatArray, spread: SourceSpread | None) -> FloatArray:
    """Means over draws and the rows that are left out: error, inside, half-width and interval score, fractions (4).

    ``drawn`` (draws, rows) is 1 for a row that is fitted to, with the others of its machine. A machine without one is
    predicted as it is, with the interval of a source of ``spread``, or of a known one."""
    prior = spread or NEW_SOURCES
    own = steps.priced.std
    bare = spread.interval_std(own, np.zeros_like(own)) if spread else own
    scores = np.empty((len(drawn), len(own), 4))
    for number in np.unique(machine):
        rows = np.flatnonzero(machine == number)
        its, kept = steps.take(rows), drawn[:, rows]
        some = kept.sum(axis=1) > 0
        found = iter(calibrations(its, kept[some], prior) if some.any() else [])
        for draw, is_fitted in enumerate(some.tolist()):
            factors = next(found) if is_fitted else None
            after = its.predicted_s(factors) if factors else its.priced_s
            bounds = (
                interval_of(after, factors.interval_std(own[rows]), unpriced=0.0)
                if factors
                else interval_of(after, bare[rows])
            )
            scores[draw, rows] = _scores(after, *bounds, its.measured_s)
    rest = drawn == 0
    return np.asarray(scores[rest].mean(axis=0), dtype=np.float64)


def _scores(after: FloatArray, low: FloatArray, high: FloatArray, measured_s: FloatArray) -> FloatArray:
    missed = np.maximum(np.maximum(np.log(low / measured_s), np.log(measured_s / high)), 0.0)
    inside = (low <= measured_s) & (measured_s <= high)
    score = np.log(high / low) + 2.0 / (1.0 - INSIDE) * missed
    return np.stack([np.abs(after / measured_s - 1.0), inside, (high - low) / 2.0 / after, score], axis=1)


def draws_of(name: str, count: int, rows: int, seeds: Sequence[int]) -> FloatArray:
    """Returns (draws, count) 1 for each of ``rows`` that are drawn of a source's."""
    drawn = np.zeros((len(seeds), count))
    for draw, seed in enumerate(seeds):
        drawn[draw, np.random.default_rng([seed, crc32(name.encode())]).permutation(count)[:rows]] = 1.0
    return drawn


def calibration_lines(
    predictions: Sequence[RowPrediction], title: str, seeds: Sequence[int], spreads: Mapping[str, SourceSpread]
) -> list[str]:
    """A line for each source, their mean and that of all rows: the error before and after calibration on some of its rows,
    what one factor a source or one a cause leaves of it, which no fit to some rows can beat, and the intervals."""
    heads = f"{'rows':>5} {'before %':>9}" + "".join(f"{f'after {count} %':>10}" for count in FITTED)
    heads += f"{'one factor %':>13} {'by cause %':>11}" + "".join(f"{f'in 80 % of {count}':>13}" for count in FITTED)
    lines = [f"{title:34} {heads} {'half-width %':>13} {'score %':>8}"]
    sources = steps_by_source(priced_rows(predictions))
    values, counts = [], [len(steps.measured_s) for steps, _ in sources.values()]
    for (name, (steps, machine)), count in zip(sources.items(), counts, strict=True):
        after = [calibrated(steps, machine, draws_of(name, count, rows, seeds), spreads.get(name)) for rows in FITTED]
        before = float(np.abs(steps.priced_s / steps.measured_s - 1.0).mean())
        least = [least_error(steps, by_cause=by_cause) for by_cause in (False, True)]
        errors, inside = ([float(one[column]) for one in after] for column in (0, 1))
        values.append([before, *errors, *least, *inside, *after[-1][2:]])
        lines.append(_line(name, str(count), values[-1]))
    if values:
        lines.append(_line(ALL_ROWS, str(sum(counts)), np.average(values, axis=0, weights=counts).tolist()))
        lines.append(_line("macro mean", "", np.mean(values, axis=0).tolist()))
        best = ", ".join(f"{100 * best_share_error(sources, rows, seeds):.1f} %" for rows in FITTED)
        lines.append(f"all rows, moved by the share of the drawn rows' median miss that is best for them: {best}")
    return lines


def best_share_error(sources: Mapping[str, tuple[Steps, IntArray]], rows: int, seeds: Sequence[int]) -> float:
    """Returns the error of all rows where each machine's rest moves by a share of its drawn rows' median miss, with the share
    that turns out best: what rows of a source say of its others is bounded by how they scatter."""
    totals = np.zeros(len(SHARES))
    for name, (steps, machine) in sources.items():
        count, slower = len(steps.measured_s), steps.slower
        for drawn in draws_of(name, count, rows, seeds) > 0:
            miss = np.zeros(count)
            for number in np.unique(machine[drawn]):
                miss[machine == number] = np.median(slower[drawn & (machine == number)])
            errors = np.abs(np.expm1(SHARES[:, None] * miss[~drawn] - slower[~drawn])).mean(axis=1)
            totals += count * errors / len(seeds)
    return float(totals.min() / sum(len(steps.measured_s) for steps, _ in sources.values()))


def large_from_small_lines(predictions: Sequence[RowPrediction], title: str) -> list[str]:
    """A line for each source with jobs of three sizes and more, a job being one plan but for its data parallelism: errors of the
    larger sizes before and after a calibration on the smallest two."""
    jobs: dict[tuple[str, ...], list[PricedRow]] = {}
    for one in priced_rows(predictions):
        jobs.setdefault((one.row.dataset, *map(one.row.text, JOB)), []).append(one)
    errors: dict[str, list[FloatArray]] = {}
    for (name, *_), ones in sorted(jobs.items()):
        gpus = np.array([one.row.number("num_gpus") for one in ones])
        sizes = np.unique(gpus)
        if len(sizes) < 3:
            continue
        steps = concatenate_steps([one.priced for one in ones], [one.measured_s for one in ones])
        large = gpus > sizes[1]
        (factors,) = calibrations(steps, 1.0 - large[None, :])
        both = np.stack([steps.priced_s, steps.predicted_s(factors)]) / steps.measured_s
        errors.setdefault(name, []).append(np.abs(both - 1.0)[:, large])
    lines = [f"{title:24} {'jobs':>5} {'rows':>5} {'before %':>9} {'after %':>8}"]
    for name, each in errors.items():
        before, after = 100.0 * np.hstack(each).mean(axis=1)
        lines.append(f"{name:24} {len(each):5d} {np.hstack(each).shape[1]:5d} {before:9.1f} {after:8.1f}")
    return lines


def _line(name: str, rows: str, values: Sequence[float]) -> str:
    widths = (9, *[10] * len(FITTED), 13, 11, *[13] * len(FITTED), 14, 9)
    return f"{name:34} {rows:>5} " + "".join(
        f"{100 * value:{width}.1f}" for value, width in zip(values, widths, strict=True)
    )
