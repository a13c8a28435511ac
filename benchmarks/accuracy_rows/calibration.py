"""A few measured steps of one cluster turned into a handful of named factors, and scored on the rest.

Fitted: each factor multiplies the priced seconds of its parts; the bubble, which is waiting for work,
follows the compute factor; two fixed times are added, one for every micro-batch that passes a stage and
one a step. Robust least squares on log(predicted / measured) with a prior that holds what the rows do
not determine at "as priced".
"""

from collections.abc import Sequence
from dataclasses import dataclass
from zlib import crc32

import numpy as np

from benchmarks.accuracy_rows.measured import measured_step_s
from benchmarks.accuracy_rows.pricing import Prediction
from spec.arrays import FloatArray, IntArray

FACTORS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("compute", ("gemm", "grouped_gemm", "attention", "bubble")),
    ("memory_bound", ("memory_bound", "optimizer", "host")),
    ("inside_layer_comm", ("tp_comm", "cp_comm", "ep_comm", "wp_comm")),
    ("between_stages_and_replicas", ("dp_comm", "pp_comm")),
)
# Assumption: bounds of a factor, and its prior standard deviation in log space.
LOWEST, HIGHEST = 0.5, 4.0
PRIOR_STD = 0.4
# Assumption: prior scale of the fixed times, as a share of the priced time they are added to.
FIXED_SHARE = 0.05
# Assumption: log ratios beyond this count linearly, not squared.
ROBUST = 0.1
# Fewer rows than this in a dataset leave too few to score.
FEWEST_ROWS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """R measured steps as arrays: ``groups`` (R x factors) priced seconds, ``passes`` micro-batches that
    pass a stage, ``measured_s``."""

    groups: FloatArray
    passes: FloatArray
    measured_s: FloatArray

    def take(self, rows: IntArray) -> "Steps":
        """The rows asked for."""
        return Steps(groups=self.groups[rows], passes=self.passes[rows], measured_s=self.measured_s[rows])

    def predicted_s(self, values: FloatArray, scale: FloatArray) -> FloatArray:
        """Seconds under log factors and the two fixed times (in units of ``scale``)."""
        count = len(FACTORS)
        fixed = values[count] * scale[0] * self.passes + values[count + 1] * scale[1]
        return np.asarray(self.groups @ np.exp(values[:count]) + fixed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibrated:
    """How well the rows left out are told: ``rows`` scored, mean absolute errors as fractions."""

    dataset: str
    rows: int
    before: float
    after: float


def steps_of(predictions: Sequence[Prediction]) -> Steps:
    """The priced rows with a measured step time."""
    groups, passes, measured = [], [], []
    for one in predictions:
        seconds = measured_step_s(one.row)
        if one.answer is None or one.step_s is None or not seconds:
            continue
        # A smaller last micro-batch is spread over the parts in proportion.
        stretch = one.step_s / one.answer.step_s
        parts = one.answer.parts_s
        groups.append([stretch * sum(parts[part] for part in names) for _, names in FACTORS])
        plan = one.answer.plan
        passes.append(plan.num_micro + (plan.pp - 1) / plan.vpp)
        measured.append(seconds)
    return Steps(groups=np.array(groups), passes=np.array(passes), measured_s=np.array(measured))


def fit(steps: Steps) -> tuple[FloatArray, FloatArray]:
    """Log factors with the fixed times, and the scale of the latter."""
    from scipy.optimize import least_squares

    priced = steps.groups.sum(axis=1)
    scale = np.array([np.median(priced / steps.passes), np.median(priced)]) * FIXED_SHARE
    count = len(FACTORS)

    def misses(values: FloatArray) -> FloatArray:
        ratio = np.log(steps.predicted_s(values, scale) / steps.measured_s) / ROBUST
        prior = np.concatenate([values[:count] / PRIOR_STD, values[count:]])
        return np.concatenate([ratio, prior])

    low = np.concatenate([np.full(count, np.log(LOWEST)), np.zeros(2)])
    high = np.concatenate([np.full(count, np.log(HIGHEST)), np.full(2, np.inf)])
    start = np.concatenate([np.zeros(count), np.full(2, 0.1)])
    found = least_squares(misses, start, bounds=(low, high), loss="soft_l1")
    return np.asarray(found.x, dtype=np.float64), scale


def calibrated(predictions: Sequence[Prediction], rows: int, seed: int) -> list[Calibrated]:
    """Every dataset with enough rows: ``rows`` of them, chosen by ``seed``, fit; the others are scored."""
    by_dataset: dict[str, list[Prediction]] = {}
    for one in predictions:
        by_dataset.setdefault(one.row.dataset, []).append(one)
    found = []
    for dataset, members in sorted(by_dataset.items()):
        steps = steps_of(members)
        count = len(steps.measured_s)
        if count < max(FEWEST_ROWS, rows + 1):
            continue
        order = np.random.default_rng([seed, crc32(dataset.encode())]).permutation(count)
        values, scale = fit(steps.take(order[:rows]))
        rest = steps.take(order[rows:])
        found.append(
            Calibrated(
                dataset=dataset,
                rows=count - rows,
                before=_mape(rest.groups.sum(axis=1), rest.measured_s),
                after=_mape(rest.predicted_s(values, scale), rest.measured_s),
            )
        )
    return found


def _mape(predicted_s: FloatArray, measured_s: FloatArray) -> float:
    return float(np.abs(predicted_s / measured_s - 1.0).mean())


def calibration_lines(runs: Sequence[Sequence[Calibrated]]) -> list[str]:
    """Means over the seeds, one line a dataset, and the macro mean."""
    lines = [f"{'calibrated on few rows':24} {'scored':>6} {'before %':>9} {'after %':>8}"]
    means = []
    for same in zip(*runs, strict=True):
        before, after = (np.mean([getattr(one, name) for one in same]) for name in ("before", "after"))
        means.append((before, after))
        lines.append(f"{same[0].dataset:24} {same[0].rows:6d} {100 * before:9.2f} {100 * after:8.2f}")
    if means:
        before, after = np.mean(means, axis=0)
        lines.append(f"{'macro mean':24} {'':6} {100 * before:9.2f} {100 * after:8.2f}")
    return lines
