"""How often the measured step lies inside the predicted 80 % interval, and how wide that is."""

import math
from collections.abc import Sequence

import numpy as np

from benchmarks.accuracy_rows.gaps import Gap
from benchmarks.accuracy_rows.measured import measured_step_s
from benchmarks.accuracy_rows.pricing import Prediction
from solver.interval import EIGHTY_PERCENT, UNPRICED, interval_of
from spec.arrays import floats

# Fitted: as solver.interval.WIDTHS: what a feature that a run uses and the solver does not price adds.
# The solver itself never takes such a question.
GAP_STD = 0.04
# Priced between two whole micro-batches: nothing is missing.
HARMLESS = frozenset({Gap.UNEVEN_BATCH})


def interval(one: Prediction) -> tuple[float, float] | None:
    """The interval of a row in seconds, wider by what the row needs and nobody prices; None for a row that is
    not priced."""
    if one.answer is None or one.step_s is None:
        return None
    own_std = (math.log(one.answer.interval_high_s / one.answer.step_s) - UNPRICED) / EIGHTY_PERCENT
    missing = len(set(one.gaps) - HARMLESS)
    std = math.hypot(own_std, GAP_STD * math.sqrt(missing))
    low, high = interval_of(floats(one.step_s), floats(std))
    return float(low[0]), float(high[0])


def coverage_lines(predictions: Sequence[Prediction]) -> list[str]:
    """One line a dataset and one for all rows: share below, inside and above, median half-width in %."""
    predicted: dict[str, list[tuple[float, float, float, float]]] = {}
    for one in predictions:
        measured, bounds = measured_step_s(one.row), interval(one)
        if not measured or bounds is None or one.step_s is None:
            continue
        low, high = bounds
        predicted.setdefault(one.row.dataset, []).append(
            (measured < low, low <= measured <= high, measured > high, (high - low) / 2.0 / one.step_s)
        )
    lines = [
        f"{'80 % interval':24} {'rows':>5} {'below %':>8} {'inside %':>9} {'above %':>8} {'half-width %':>13}"
    ]
    for dataset, rows in sorted(predicted.items()):
        lines.append(_line(dataset, np.array(rows, dtype=np.float64)))
    if predicted:
        lines.append(
            _line(
                "all rows", np.concatenate([np.array(rows, dtype=np.float64) for rows in predicted.values()])
            )
        )
    return lines


def _line(name: str, rows: np.ndarray) -> str:
    below, inside, above = 100.0 * rows[:, :3].mean(axis=0)
    half = 100.0 * float(np.median(rows[:, 3]))
    return f"{name:24} {len(rows):5d} {below:8.1f} {inside:9.1f} {above:8.1f} {half:13.1f}"
