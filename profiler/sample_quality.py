"""Quality of the samples of a run: noisy cases, the better of two samples of a case, samples far above their curve, and the
report's lines."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from profdb.cases import Case
from profdb.fits.families import FITTERS
from profdb.fitting import Curve, curves_of, fit_table
from profdb.sample import ProfileDatabase, Sample, case_at
from profdb.store.columns import SampleTable
from profiler.cases.sweep_plan import describe
from spec.arrays import BoolArray, bools
from spec.origin import Origin

NOISY = 0.2
"""Spread of the trials above which a case is measured again at the end of a sweep."""

LONGEST_SHARE = 0.25
"""Largest share of a sweep's time for measuring again: where half of all cases are noisy the machine is busy with
something else, and a second sample is no better."""

AGAIN = "measured_again"
SPREAD, CLOCK = "spread", "clock"
"""Values of AGAIN in the notes of a sample that was measured again: its reason."""

MAX_LISTED = 5


def spread_of(sample: Sample) -> float:
    """Returns the relative width of the middle half of a sample's trials; 0 without trials."""
    return float(sample.launched.get("spread", 0.0)) if sample.status == "ok" else 0.0


def noisy_cases(samples: Iterable[tuple[Case, Sample]]) -> list[Case]:
    """Returns the cases whose samples spread by more than NOISY, the noisiest first. Trials are the slowest rank's,
    so every rank returns the same."""
    noisy = [(spread_of(sample), case) for case, sample in samples if spread_of(sample) > NOISY]
    return [case for _, case in sorted(noisy, key=lambda row: -row[0])]


def quieter_samples(samples: Sequence[Sample]) -> list[Sample]:
    """Returns the quieter of the two samples of a case that was measured again for its spread; the other samples
    unchanged."""
    result: list[Sample] = []
    place: dict[Case, int] = {}
    for sample in samples:
        at = place.get(sample.case)
        # The second sample replaces the first one in its place, or is dropped.
        if sample.launched.get(AGAIN) == SPREAD and at is not None:
            if sample.status == "ok" and spread_of(sample) < spread_of(result[at]):
                result[at] = sample
            continue
        place[sample.case] = len(result)
        result.append(sample)
    return result


# Samples far above the curve through the others: measured while something else ran, or a bad shape of a kernel.

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


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleQuality:
    """Numbers of samples measured again for their spread and for a falling clock and of those that still spread by
    more than NOISY, and the samples far above their curve."""

    for_spread: int = 0
    for_clock: int = 0
    still_noisy: int = 0
    far_above: tuple[OddSample, ...] = ()


def sample_quality(measured: Sequence[Sample], samples: Sequence[Sample], profile: ProfileDatabase) -> SampleQuality:
    """Returns the quality of the samples ``measured`` by a run, of which ``samples`` are stored in ``profile``."""
    again = Counter(sample.launched.get(AGAIN) for sample in measured)
    dates = {sample.date for sample in measured}
    return SampleQuality(
        for_spread=again[SPREAD],
        for_clock=again[CLOCK],
        still_noisy=sum(spread_of(sample) > NOISY for sample in samples),
        far_above=tuple(odd for date in sorted(dates) for odd in far_above(profile, date)),
    )


def quality_lines(quality: SampleQuality) -> list[str]:
    """Returns the counts, and the oddest samples by name."""
    return [
        f"measured again: {quality.for_spread} for a spread above {NOISY:.0%} ({quality.still_noisy} still above it), "
        f"{quality.for_clock} for a falling clock; {len(quality.far_above)} samples far above their curve"
        + (":" if quality.far_above else ""),
        *(
            f"  {describe(odd.case)}: {odd.seconds * 1e6:.4g} us, {odd.predicted_s * 1e6:.4g} us by its neighbours"
            for odd in quality.far_above[:MAX_LISTED]
        ),
    ]
