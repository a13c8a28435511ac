"""Monotone time over one size: what a transfer or a sweep of one number looks like.

Samples are made monotone by isotonic regression in least absolute deviations (a slow outlier moves
nothing but itself), then joined by chords that are straight in size**bend against seconds**bend:
bend 1 is latency + bandwidth between two rungs, bend towards 0 a straight line in log-log. Either way
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
class Ladder:
    """``log_size`` (log2, strictly increasing) and ``log_seconds`` (natural log, non-decreasing), both
    of length P >= 1; ``rate`` is units of size per second beyond the last rung."""

    log_size: FloatArray
    log_seconds: FloatArray
    rate: float
    bend: float = 1.0


def isotonic_median(values: FloatArray) -> FloatArray:
    """The closest non-decreasing sequence in least absolute deviations: adjacent violators are pooled
    to their median (Robertson and Wright 1980, Ann. Statist. 8(3), algorithms for isotonic medians)."""
    blocks: list[tuple[float, list[float]]] = []
    for value in values.tolist():
        level, members = value, [value]
        while blocks and blocks[-1][0] > level:
            members = blocks.pop()[1] + members
            level = median(members)
        blocks.append((level, members))
    return np.repeat([level for level, _ in blocks], [len(members) for _, members in blocks])


def fit_ladder(sizes: FloatArray, seconds: FloatArray, bend: float = 1.0) -> Ladder:
    """A ladder through samples (sizes >= 1, seconds > 0; several at one size give their median)."""
    places = np.unique(np.log2(sizes))
    which = np.searchsorted(places, np.log2(sizes))
    logs = np.log(seconds)
    if places.shape[0] != sizes.shape[0]:
        logs = np.asarray([float(np.median(logs[which == rung])) for rung in range(places.shape[0])])
    else:
        logs = logs[np.argsort(which)]
    rungs = isotonic_median(logs)
    return Ladder(log_size=places, log_seconds=rungs, rate=_rate_beyond(places, rungs), bend=bend)


def _rate_beyond(log_size: FloatArray, log_seconds: FloatArray) -> float:
    """Marginal rate at the end, held between the mean rate of the last rung and twice that: a time
    cannot grow slower than bandwidth allows, and half of it is at most latency."""
    last_size, last_s = float(2.0 ** log_size[-1]), float(np.exp(log_seconds[-1]))
    mean_rate = last_size / last_s
    first = int(np.searchsorted(log_size, log_size[-1] - END_SPAN - 1e-9))
    if first >= log_size.shape[0] - 1:
        return mean_rate
    rise = last_s - float(np.exp(log_seconds[first]))
    if rise <= 0.0:
        return mean_rate
    marginal = (last_size - float(2.0 ** log_size[first])) / rise
    return float(np.clip(marginal, mean_rate, 2.0 * mean_rate))


def climb(ladder: Ladder, sizes: FloatArray) -> tuple[FloatArray, BoolArray]:
    """Seconds at ``sizes`` (>= 1) and whether each lies within the rungs; both of length Q."""
    wanted = np.log2(sizes)
    bent_sizes = 2.0 ** (ladder.bend * ladder.log_size)
    bent_seconds = np.exp(ladder.bend * ladder.log_seconds)
    inner = np.interp(sizes**ladder.bend, bent_sizes, bent_seconds) ** (1.0 / ladder.bend)
    beyond = np.maximum(sizes - 2.0 ** ladder.log_size[-1], 0.0) / ladder.rate
    within = (wanted >= ladder.log_size[0] - 1e-9) & (wanted <= ladder.log_size[-1] + 1e-9)
    return np.asarray(inner + beyond), np.asarray(within)


def without_size(ladder: Ladder, log_size: float) -> Ladder:
    """The ladder without the rung at ``log_size``; itself where it has none there, or nothing but its ends."""
    keep = ladder.log_size != log_size
    if keep.all() or np.count_nonzero(keep) < 2:
        return ladder
    return replace(ladder, log_size=ladder.log_size[keep], log_seconds=ladder.log_seconds[keep])


def left_out_errors(sizes: FloatArray, seconds: FloatArray) -> tuple[FloatArray, IntArray]:
    """Relative error at each size but the smallest and largest when it is left out of the ladder, for
    each of BENDS (B x P), and the row of a sample of that size (P)."""
    places = np.unique(sizes)
    errors = np.zeros((len(BENDS), max(places.shape[0] - 2, 0)))
    rows = np.zeros(errors.shape[1], dtype=np.int64)
    for column, place in enumerate(places[1:-1]):
        keep = sizes != place
        rows[column] = np.flatnonzero(~keep)[0]
        ladder, real = fit_ladder(sizes[keep], seconds[keep]), float(np.median(seconds[~keep]))
        for line, bend in enumerate(BENDS):
            told, _ = climb(replace(ladder, bend=bend), places[column + 1 : column + 2])
            errors[line, column] = abs(float(told[0]) / real - 1.0)
    return errors, rows
