"""The curve between two measured sizes of one group, from groups of other numbers of ranks.

Where sizes are far apart, a chord does not know at which size between them a collective changes protocol or
algorithm. In a ring every step moves S/n bytes (S the array, n the ranks) and costs a step latency and S/n over
a rate, both of the protocol: protocols cross at one S/n for every n. Other groups sampled at the same S/n
therefore show where in the gap the time rises.

Source of the ring's cost: NVIDIA/nccl, src/graph/tuning.cc (steps x step latency + bytes over rate, by
protocol). Fitted: the weight of the other groups' rise (WEIGHTS; 0 uses the chord alone), by sizes left out of
all groups at once.
"""

from dataclasses import replace

import numpy as np

from profdb.fits.group_shape import ShapeCurve
from profdb.fits.monotone_curve import MonotoneCurve, climb, without_size
from spec.arrays import FloatArray

WEIGHTS: tuple[float, ...] = (0.0, 0.25)
"""Candidates for the weight of the other groups' share of the rise."""

NEIGHBOURS = 2
"""Groups used: those of the nearest numbers of ranks."""

CLOSEST = 0.25
"""log2: a size nearer than this to a measured one adds nothing to it."""

LEAST_RISE = 0.05
"""Relative rise below which a gap of another group does not show where the time rises."""


def fill_gaps(
    curve: ShapeCurve, others: list[ShapeCurve], weight: float, *, around: float | None = None
) -> MonotoneCurve:
    """Returns the shape's monotone curve with sizes added between its own where other groups of its reach have
    samples; unchanged for a weight of 0. Its own sizes stay and the time never falls. With ``around`` (log2 of a
    size) only the gap around it is filled, which is enough to read the curve there."""
    # Without neighbours or weight the curve stays as it is: no gap is visited.
    near = _neighbours(curve, others) if weight else []
    monotone = curve.monotone
    # log2 of S/n, in which the groups are compared.
    own = monotone.log_size - np.log2(curve.ranks)
    places: list[float] = []
    times: list[float] = []
    gaps = range(own.shape[0] - 1)
    if around is not None:
        at = int(np.searchsorted(monotone.log_size, around)) - 1
        gaps = range(max(at, 0), min(at + 1, own.shape[0] - 1))
    for low in gaps if near else ():
        start, stop = float(own[low]), float(own[low + 1])
        rise = float(monotone.log_seconds[low + 1] - monotone.log_seconds[low])
        for place, shares in _shares_in(near, start, stop).items():
            predicted, _ = climb(monotone, np.asarray([2.0 ** (place + np.log2(curve.ranks))]))
            # Both are rises in log time above the gap's start: ``chord`` by interpolation, ``shared`` by the other
            # groups' mean share of their own rise. The new point lies between the two.
            chord = float(np.log(predicted[0]) - monotone.log_seconds[low])
            shared = float(np.clip(np.mean(shares), 0.0, 1.0)) * rise
            places.append(place + float(np.log2(curve.ranks)))
            times.append(float(monotone.log_seconds[low]) + chord + weight * (shared - chord))
    log_size = np.concatenate([monotone.log_size, places])
    order = np.argsort(log_size, kind="stable")
    # A filled point may not make a larger message faster.
    log_seconds = np.maximum.accumulate(np.concatenate([monotone.log_seconds, times])[order])
    return replace(monotone, log_size=log_size[order], log_seconds=log_seconds)


def holdout_errors(curves: list[ShapeCurve]) -> FloatArray:
    """Returns the relative errors of sizes left out of all groups at once, for each of WEIGHTS (W x P). The smallest
    and largest size of a curve are never left out."""
    sizes = np.unique(np.concatenate([curve.monotone.log_size for curve in curves])) if curves else np.zeros(0)
    errors: list[list[float]] = []
    for size in sizes.tolist():
        rest = [replace(curve, monotone=without_size(curve.monotone, size)) for curve in curves]
        for index, curve in enumerate(curves):
            inner = np.flatnonzero(curve.monotone.log_size[1:-1] == size)
            if not inner.size:
                continue
            real = float(curve.monotone.log_seconds[1 + int(inner[0])])
            others = rest[:index] + rest[index + 1 :]
            predicted = [
                climb(fill_gaps(rest[index], others, weight, around=size), np.asarray([2.0**size]))[0]
                for weight in WEIGHTS
            ]
            errors.append([abs(float(time[0]) / np.exp(real) - 1.0) for time in predicted])
    return np.asarray(errors).reshape(-1, len(WEIGHTS)).T


def _neighbours(curve: ShapeCurve, others: list[ShapeCurve]) -> list[ShapeCurve]:
    """Returns the groups of the same reach and siblings whose numbers of ranks are nearest."""
    reach = [
        other
        for other in others
        if (other.inter > 1) == (curve.inter > 1) and other.siblings == curve.siblings and other.ranks != curve.ranks
    ]
    return sorted(reach, key=lambda other: abs(np.log2(other.ranks / curve.ranks)))[:NEIGHBOURS]


def _shares_in(near: list[ShapeCurve], start: float, stop: float) -> dict[float, list[float]]:
    """Returns log2 of S/n between ``start`` and ``stop`` at which another group was sampled -> the shares of those
    groups' rise over the gap that lie before it."""
    shares: dict[float, list[float]] = {}
    for other in near:
        shift = float(np.log2(other.ranks))
        theirs = other.monotone.log_size - shift
        inside = theirs[(theirs > start + CLOSEST) & (theirs < stop - CLOSEST)]
        if not inside.size:
            continue
        # The other group must have samples at or beyond both ends of the gap, and rise over it.
        ends, within = climb(other.monotone, 2.0 ** (np.asarray([start, stop]) + shift))
        rise = float(np.log(ends[1] / ends[0]))
        if not within.all() or rise <= LEAST_RISE:
            continue
        times, _ = climb(other.monotone, 2.0 ** (inside + shift))
        for place, time in zip(inside.tolist(), times.tolist(), strict=True):
            shares.setdefault(round(place, 6), []).append(float(np.log(time / ends[0])) / rise)
    return shares
