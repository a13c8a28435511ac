"""What rows are told, row by row, and how far that moves when a constant does."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.measured_times import MeasuredTimes
from benchmarks.row_scores import measured_step_s, memory_gib
from benchmarks.stated_rows import Pricing, Row
from spec.arrays import FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """Of each row its dataset and, as arrays, the absolute error of its step (a fraction), seconds, GiB and
    the half-width of the interval as a share of the step."""

    datasets: tuple[str, ...]
    errors: FloatArray
    seconds: FloatArray
    memory: FloatArray
    width: FloatArray

    def take(self, places: Sequence[int]) -> "Told":
        """Of some of the rows."""
        chosen = np.array(places, dtype=np.int64)
        return Told(
            datasets=tuple(self.datasets[place] for place in places),
            errors=self.errors[chosen],
            seconds=self.seconds[chosen],
            memory=self.memory[chosen],
            width=self.width[chosen],
        )

    def moved(self, other: "Told") -> dict[str, float]:
        """Points of mean error by dataset that ``other`` has more, on these rows; infinite where ``other`` cannot price
        a row any more."""
        points: dict[str, list[float]] = {}
        refused = (other.seconds == 0) & (self.seconds > 0)
        changes = np.where(refused, np.inf, 100.0 * (other.errors - self.errors))
        for name, change in zip(self.datasets, changes, strict=True):
            points.setdefault(name, []).append(float(change))
        return {name: float(np.mean(found)) for name, found in points.items()}


def told(rows: Sequence[Row], times: MeasuredTimes, root: Path, *, anew: bool = True) -> Told:
    """Price the rows; those that cannot be priced have an error of 1. ``anew``: what sheets were asked before is
    forgotten, for constants of the sheets' own model."""
    fresh = MeasuredTimes(root=root, fitted=times.fitted) if anew else times
    figures = []
    for one in Pricing(root=root, cost_model=fresh.cost_model).predict(rows):
        measured = measured_step_s(one.row)
        error = abs(one.step_s / measured - 1.0) if one.answer and measured else 1.0
        width = np.log(one.answer.interval_high_s / one.answer.step_s) if one.answer else 0.0
        figures.append((error, one.step_s, memory_gib(one) or 0.0, width))
    errors, seconds, memory, width = np.array(figures).reshape(-1, 4).T
    return Told(
        datasets=tuple(row.dataset for row in rows),
        errors=errors,
        seconds=seconds,
        memory=memory,
        width=width,
    )


def _points(change: float) -> str:
    return f"{change:+.1f}" if np.isfinite(change) else "refused"


def effect(plain: Told, less: Told, more: Told) -> str:
    """The datasets whose error moves most, points at -25 % / +25 %; else what moves beside it."""
    down, up = plain.moved(less), plain.moved(more)
    most = sorted(down, key=lambda name: -max(abs(down[name]), abs(up[name])))[:3]
    said = [
        f"{name} {_points(down[name])} / {_points(up[name])}"
        for name in most
        if max(abs(down[name]), abs(up[name])) >= 0.05
    ]
    if said:
        return ", ".join(said)
    for what, unit in (("seconds", "step"), ("memory", "memory"), ("width", "interval")):
        base = getattr(plain, what)
        shares = [
            np.divide(getattr(one, what), base, out=np.ones_like(base), where=base > 0)
            for one in (less, more)
        ]
        change = float(np.max(np.abs(np.array(shares) - 1.0), initial=0.0))
        if change > 1e-6:
            return f"{unit} of a row by up to {100 * change:.2g} %"
    return "nothing on these rows"
