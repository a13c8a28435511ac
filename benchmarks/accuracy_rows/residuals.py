"""How predictions miss, split by what may explain it: mean log ratio and mean absolute error."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from benchmarks.accuracy_rows.gaps import Gap
from benchmarks.accuracy_rows.measured import measured_step_s
from benchmarks.accuracy_rows.pricing import Prediction

SPLITS: tuple[tuple[str, Callable[[Prediction], str]], ...] = (
    ("dataset", lambda one: one.row.dataset),
    ("tp", lambda one: one.row.text("tp")),
    ("pp", lambda one: one.row.text("pp")),
    ("micro-batch", lambda one: one.row.text("micro_batch") or "not stated"),
    ("gpus", lambda one: one.row.text("num_gpus")),
    ("recompute", lambda one: one.row.text("recompute")),
    ("gpu", lambda one: one.row.text("gpu")),
    ("framework", lambda one: one.row.text("framework")),
    ("precision", lambda one: one.row.text("precision")),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Residual:
    """Rows of one value: ``bias`` the mean of log(predicted / measured), ``mape`` a fraction."""

    split: str
    value: str
    rows: int
    bias: float
    mape: float


def residuals(predictions: Iterable[Prediction]) -> list[Residual]:
    """Every split of the priced rows that have a measured step time."""
    pairs = [
        (one, float(np.log(one.step_s / measured)))
        for one in predictions
        if one.step_s is not None and (measured := measured_step_s(one.row))
    ]
    found: list[Residual] = []
    for split, value_of in SPLITS:
        by_value: dict[str, list[float]] = {}
        for one, ratio in pairs:
            by_value.setdefault(value_of(one), []).append(ratio)
        for value in sorted(by_value, key=_order):
            ratios = np.array(by_value[value])
            found.append(
                Residual(
                    split=split,
                    value=value,
                    rows=len(ratios),
                    bias=float(ratios.mean()),
                    mape=float(np.abs(np.expm1(ratios)).mean()),
                )
            )
    return found


def _order(value: str) -> tuple[int, float, str]:
    try:
        return 0, float(value), value
    except ValueError:
        return 1, 0.0, value


def residual_lines(found: Iterable[Residual]) -> list[str]:
    """The residuals as a printed table."""
    lines = [f"{'residual by':12} {'value':46} {'rows':>5} {'mean log ratio':>15} {'MAPE %':>8}"]
    lines += [
        f"{one.split:12} {one.value:46} {one.rows:5d} {one.bias:+15.3f} {100 * one.mape:8.1f}"
        for one in found
    ]
    return lines


def gap_lines(predictions: Iterable[Prediction]) -> list[str]:
    """Missing physics: how many rows need each, and of which datasets; then the rows not priced."""
    counts: dict[Gap, dict[str, int]] = {}
    reasons: dict[str, int] = {}
    for one in predictions:
        for gap in dict.fromkeys(one.gaps):
            of = counts.setdefault(gap, {})
            of[one.row.dataset] = of.get(one.row.dataset, 0) + 1
        if one.reason:
            found = one.reason.split(": ", maxsplit=1)[-1]
            reasons[found] = reasons.get(found, 0) + 1
    lines = [f"{'rows':>5}  missing physics"]
    for gap, of in sorted(counts.items(), key=lambda item: -sum(item[1].values())):
        found = ", ".join(f"{dataset} {count}" for dataset, count in sorted(of.items(), key=lambda x: -x[1]))
        lines.append(f"{sum(of.values()):5d}  {gap.value}: {found}")
    lines.append(f"{'rows':>5}  not priced, by reason")
    lines += [f"{count:5d}  {found}" for found, count in sorted(reasons.items(), key=lambda item: -item[1])]
    return lines
