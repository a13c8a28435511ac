"""A few rows of each dataset given to the user's calibration (solver.calibrate), and scored on the rest."""

from collections.abc import Sequence
from dataclasses import dataclass
from zlib import crc32

import numpy as np

from benchmarks.accuracy_rows.measured import measured_step_s
from benchmarks.accuracy_rows.pricing import Prediction
from solver.calibrate import Steps, fit, joined
from solver.interval import interval_of
from solver.measured_steps import plan_terms
from spec.arrays import FloatArray

# Fewer rows than this in a dataset leave too few to score.
FEWEST_ROWS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibrated:
    """How well the rows left out are told: ``rows`` scored; mean absolute errors, the share of rows inside
    the 80 % interval, and its mean half-width, as fractions."""

    dataset: str
    rows: int
    before: float
    after: float
    covered: float
    half_width: float


def steps_of(predictions: Sequence[Prediction]) -> Steps | None:
    """The priced rows with a measured step time; None where there are none."""
    terms, measured = [], []
    for one in predictions:
        seconds = measured_step_s(one.row)
        if one.question is None or one.answer is None or one.step_s is None or not seconds:
            continue
        # A smaller last micro-batch is spread over the parts in proportion.
        stretch = one.step_s / one.answer.step_s
        terms.append(plan_terms(one.question, one.answer.plan).scaled(stretch))
        measured.append(seconds)
    return joined(terms, measured) if terms else None


def steps_by_dataset(predictions: Sequence[Prediction]) -> dict[str, Steps]:
    """The steps of every dataset with enough rows."""
    members: dict[str, list[Prediction]] = {}
    for one in predictions:
        members.setdefault(one.row.dataset, []).append(one)
    found = {name: steps_of(ones) for name, ones in sorted(members.items()) if len(ones) >= FEWEST_ROWS}
    return {name: steps for name, steps in found.items() if steps and len(steps.measured_s) >= FEWEST_ROWS}


def calibrated(by_dataset: dict[str, Steps], rows: int, seed: int) -> list[Calibrated]:
    """``rows`` steps of each dataset, chosen by ``seed``, fitted; the others scored."""
    found = []
    for dataset, steps in by_dataset.items():
        count = len(steps.measured_s)
        if count < rows + 1:
            continue
        order = np.random.default_rng([seed, crc32(dataset.encode())]).permutation(count)
        factors = fit(steps.take(order[:rows])).factors
        rest = steps.take(order[rows:])
        after = rest.predicted_s(factors)
        low, high = interval_of(after, np.zeros_like(after), factors.residual_std)
        inside = (rest.measured_s >= low) & (rest.measured_s <= high)
        found.append(
            Calibrated(
                dataset=dataset,
                rows=count - rows,
                before=_mape(rest.priced_s, rest.measured_s),
                after=_mape(after, rest.measured_s),
                covered=float(inside.mean()),
                half_width=float(((high - low) / 2.0 / after).mean()),
            )
        )
    return found


def _mape(predicted_s: FloatArray, measured_s: FloatArray) -> float:
    return float(np.abs(predicted_s / measured_s - 1.0).mean())


def calibration_lines(runs: Sequence[Sequence[Calibrated]]) -> list[str]:
    """Means over the seeds, one line a dataset, and the macro mean."""
    names = ("before", "after", "covered", "half_width")
    lines = [
        f"{'calibrated on few rows':24} {'scored':>6} {'before %':>9} {'after %':>8} {'in 80 %':>8} {'half %':>7}"
    ]
    means = []
    for same in zip(*runs, strict=True):
        values = [100 * float(np.mean([getattr(one, name) for one in same])) for name in names]
        means.append(values)
        lines.append(_line(same[0].dataset, str(same[0].rows), values))
    if means:
        lines.append(_line("macro mean", "", np.mean(means, axis=0).tolist()))
    return lines


def _line(name: str, rows: str, values: Sequence[float]) -> str:
    before, after, covered, half = values
    return f"{name:24} {rows:>6} {before:9.2f} {after:8.2f} {covered:8.1f} {half:7.1f}"
