"""Samples far above the curve through the others: measured while something else ran, or a bad shape of a kernel."""

from dataclasses import dataclass

import numpy as np

from profdb.cases import Case
from profdb.fits.families import FITTERS
from profdb.fitting import Curve, curves_of, fit_table
from profdb.sample import ProfileDatabase, case_at
from profdb.store.columns import SampleTable
from spec.arrays import BoolArray, bools
from spec.origin import Origin

FAR_ABOVE = 1.5
"""Ratio of a sample's time to that of the curve without it."""

MOST_CURVES = 12
"""Curves that are fitted again without their worst points, those with the largest errors first; a fit takes up to a
second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OddSample:
    """A case, its measured seconds, and those predicted by the other samples of its curve."""

    case: Case
    seconds: float
    predicted_s: float


def far_above(profile: ProfileDatabase, date: str) -> list[OddSample]:
    """Returns the samples of this date that took FAR_ABOVE times as long as their curve without its worst points,
    worst first."""
    suspected = [
        (max(point.error for point in curve.worst), curve)
        for family in profile.tables
        for curve in curves_of(profile, family)
        if curve.origin is Origin.MEASURED and any(misses(point.error) for point in curve.worst)
    ]
    suspected.sort(key=lambda one: -one[0])
    result = [odd for _, curve in suspected[:MOST_CURVES] for odd in odd_in(profile.tables[curve.family], curve, date)]
    return sorted(result, key=lambda odd: -odd.seconds / odd.predicted_s)


def misses(error: float) -> bool:
    """Returns whether a left-out error may be that of a sample FAR_ABOVE: the predicted time is 1 / FAR_ABOVE of it
    or less."""
    return error >= 1.0 - 1.0 / FAR_ABOVE


def odd_in(table: SampleTable, curve: Curve, date: str) -> list[OddSample]:
    """Returns those of one curve's worst points that are far above the curve through its other samples."""
    # A curve's sizes repeat under other labels, so samples are found by labels and sizes.
    own = of_curve(table, curve)
    worst = bools(np.zeros(table.size))
    for point in curve.worst:
        if misses(point.error):
            same = [table.numbers[name] == size for name, size in point.sizes.items()]
            worst |= own & np.all(same, axis=0)
    # The curve itself passes near the suspected samples: they are judged by a fit without any of them.
    others = np.flatnonzero(own & ~worst)
    refitted = fit_table(table.take(others.astype(np.int64)))
    # Only samples of this date: those of earlier runs were reported when they were new.
    rows = np.flatnonzero(worst & table.date.equals(date))
    if not refitted or not rows.size:
        return []
    fitter = FITTERS[table.family]
    columns = {name: table.numbers[name][rows] for name in table.numbers if name not in fitter.flags}
    predicted_s = fitter.predict(refitted[0].arrays, columns, refitted[0].key).seconds
    seconds = table.medians_s()[rows]
    return [
        OddSample(case=case_at(table, int(row)), seconds=float(took_s), predicted_s=float(expected_s))
        for row, took_s, expected_s in zip(rows, seconds, predicted_s, strict=True)
        if np.isfinite(took_s) and took_s > FAR_ABOVE * expected_s
    ]


def of_curve(table: SampleTable, curve: Curve) -> BoolArray:
    """Returns which samples a curve was fitted to."""
    fitter = FITTERS[table.family]
    own: BoolArray = table.origin == int(curve.origin)
    for name in fitter.labels:
        own = own & table.labels[name].equals(curve.key[name])
    for name in fitter.flags:
        own = own & (table.numbers[name] == int(curve.key[name]))
    return own
