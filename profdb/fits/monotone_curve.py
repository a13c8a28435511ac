"""Monotone time over one size: what a transfer or a sweep of one number looks like.

Samples are made monotone by isotonic regression in least absolute deviations (a slow outlier moves
nothing but itself), then joined by chords that are straight in size**bend against seconds**bend:
bend 1 is latency + bandwidth between two sizes measured, bend towards 0 a straight line in log-log. Either way
a larger message is never faster. Below the smallest sample the time stays (latency floor); above the
largest it grows by the marginal rate of the end of the curve (latency + bandwidth).
"""

from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from spec.arrays import BoolArray, FloatArray, IntArray

BENDS: tuple[float, ...] = (1.0, 0.75, 0.5, 0.25)
"""Candidates for the chord; the fit takes the one that misses left-out sizes least."""

END_SPAN = 2.0
"""log2 of the factor in size over which the marginal rate at the end is taken: two doublings, so that
one noisy last sample does not set it alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MonotoneCurve:
    """Time over one size. ``log_size`` (log2, strictly increasing) and ``log_seconds`` (natural log, non-decreasing)
    have length P >= 1; ``rate`` is units of size per second beyond the largest size."""

    log_size: FloatArray
    log_seconds: FloatArray
    rate: float
    bend: float = 1.0


def isotonic_median(values: FloatArray) -> FloatArray:
    """Returns the closest non-decreasing sequence in least absolute deviations: adjacent violators are pooled to
    their median (Robertson and Wright 1980, Ann. Statist. 8(3), algorithms for isotonic medians)."""
    blocks: list[tuple[float, list[float]]] = []
    for value in values.tolist():
        # Pooled blocks have non-decreasing levels. A value below the last level joins that block, whose new median
        # may fall below the block before, and so on.
        level, members = value, [value]
        while blocks and blocks[-1][0] > level:
            members = blocks.pop()[1] + members
            level = median(members)
        blocks.append((level, members))
    levels, pooled = zip(*blocks, strict=True)
    return np.repeat(levels, list(map(len, pooled)))


def fit_monotone_curve(sizes: FloatArray, seconds: FloatArray, bend: float = 1.0) -> MonotoneCurve:
    """Returns a monotone curve through samples (sizes >= 1, seconds > 0; several at one size give their median)."""
    places = np.unique(np.log2(sizes))
    which = np.searchsorted(places, np.log2(sizes))
    logs = np.log(seconds)
    if places.shape[0] != sizes.shape[0]:
        logs = np.asarray([float(np.median(logs[which == level])) for level in range(places.shape[0])])
    else:
        logs = logs[np.argsort(which)]
    levels = isotonic_median(logs)
    return MonotoneCurve(log_size=places, log_seconds=levels, rate=_rate_beyond(places, levels), bend=bend)


def _rate_beyond(log_size: FloatArray, log_seconds: FloatArray) -> float:
    """Returns the marginal rate at the end, bounded by the mean rate of the largest size and twice that: a time
    cannot grow slower than bandwidth allows, and at most half of it is latency."""
    last_size, last_s = float(2.0 ** log_size[-1]), float(np.exp(log_seconds[-1]))
    mean_rate = last_size / last_s
    # The rate over END_SPAN doublings before the end; a curve shorter than that, or flat there, has its mean rate.
    first = int(np.searchsorted(log_size, log_size[-1] - END_SPAN - 1e-9))
    if first >= log_size.shape[0] - 1:
        return mean_rate
    rise = last_s - float(np.exp(log_seconds[first]))
    if rise <= 0.0:
        return mean_rate
    marginal = (last_size - float(2.0 ** log_size[first])) / rise
    return float(np.clip(marginal, mean_rate, 2.0 * mean_rate))


def climb(monotone: MonotoneCurve, sizes: FloatArray) -> tuple[FloatArray, BoolArray]:
    """Returns the seconds at ``sizes`` (>= 1) and whether each lies within the measured sizes; both of length Q."""
    log_sizes = np.log2(sizes)
    bent_sizes = 2.0 ** (monotone.bend * monotone.log_size)
    bent_seconds = np.exp(monotone.bend * monotone.log_seconds)
    # np.interp is constant outside: below the smallest size that is the latency floor, above the largest one
    # ``beyond`` adds the marginal rate.
    inner = np.interp(sizes**monotone.bend, bent_sizes, bent_seconds) ** (1.0 / monotone.bend)
    beyond = np.maximum(sizes - 2.0 ** monotone.log_size[-1], 0.0) / monotone.rate
    within = (log_sizes >= monotone.log_size[0] - 1e-9) & (log_sizes <= monotone.log_size[-1] + 1e-9)
    return np.asarray(inner + beyond), np.asarray(within)


def without_size(monotone: MonotoneCurve, log_size: float) -> MonotoneCurve:
    """Returns the curve without the sample at ``log_size``; unchanged if it has none there, or nothing but its ends."""
    keep = monotone.log_size != log_size
    if keep.all() or np.count_nonzero(keep) < 2:
        return monotone
    return replace(monotone, log_size=monotone.log_size[keep], log_seconds=monotone.log_seconds[keep])


def holdout_errors(sizes: FloatArray, seconds: FloatArray) -> tuple[FloatArray, IntArray]:
    """Returns the relative error at each size but the smallest and largest when that size is left out of the curve,
    for each of BENDS (B x P), and the row of a sample of that size (P)."""
    places = np.unique(sizes)
    errors = np.zeros((len(BENDS), max(places.shape[0] - 2, 0)))
    rows = np.zeros(errors.shape[1], dtype=np.int64)
    for column, place in enumerate(places[1:-1]):
        keep = sizes != place
        rows[column] = np.flatnonzero(~keep)[0]
        # The levels do not depend on the bend: one fit serves all of them.
        monotone, real = fit_monotone_curve(sizes[keep], seconds[keep]), float(np.median(seconds[~keep]))
        for line, bend in enumerate(BENDS):
            predicted, _ = climb(replace(monotone, bend=bend), places[column + 1 : column + 2])
            errors[line, column] = abs(float(predicted[0]) / real - 1.0)
    return errors, rows
