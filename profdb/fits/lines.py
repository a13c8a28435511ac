"""Interpolation over bundles of lines: the shape most sweeps have.

A sweep varies one number finely (tokens, sequence length, elements) for a coarser grid of the
others (matrix sides, heads). Samples that share the others form a *line*. A look-up takes the
nearest lines, reads each at the query's coordinate by linear interpolation (constant beyond its ends) and
blends the readings by distance, with a local plane where that cross-validates better. Coordinates
are log2 of the sizes and the values are log(seconds / roofline seconds), so a constant continuation
is a constant efficiency. Axes of the arrays: Q queries, L lines, K nearest lines of a query, D coordinates.

Fitted: neighbours, distance weights, plane or mean and metric are those with the smallest median
error when whole lines are left out.

Beyond its end a line continues with the efficiency of its end. The error of that is measured: every line is cut off 1, 2
and 3 octaves before its end and read at its end. The error is smaller than that of lines left out altogether, because
efficiency settles as sizes grow, while from one line to another it does not.
"""

from dataclasses import dataclass

import numpy as np

from spec.arrays import BoolArray, FloatArray, IntArray

CHUNK_CELLS = 4_000_000
"""Distances in memory at once during a look-up (32 MB of float64)."""

TINY = 1e-6
"""Added to squared distances (log2 units) so that a sample's own line outweighs every other."""

Arrays = dict[str, FloatArray]
"""A fitted curve as it is stored: named 1-D or 2-D float64 arrays, nothing else."""

OCTAVES = (1.0, 2.0, 3.0)
FEWEST_LINES = 8
"""Assumption: the ends of fewer lines do not predict those of others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePrediction:
    """``seconds``, ``relative_std`` and ``inside`` (interpolated inside the samples), length Q."""

    seconds: FloatArray
    relative_std: FloatArray
    inside: BoolArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Blend:
    """How readings of the nearest lines become one value: their number, the power of the distance in their weights,
    and whether a plane is fitted through them (with the relative ``ridge`` on its slopes)."""

    neighbours: int = 6
    power: float = 2.0
    plane: bool = True
    ridge: float = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class LineReading:
    """``value`` of the target; ``distance`` to the nearest sample and how much of it lies ``beyond`` the long end of
    that sample's line (log2 units); ``inside``: the lines used lie on both sides of the query in every coordinate.
    All of length Q."""

    value: FloatArray
    distance: FloatArray
    beyond: FloatArray
    inside: BoolArray


def scaled_lines(arrays: Arrays, metric: FloatArray) -> Arrays:
    """Returns the lines with coordinates in the metric's units; the factor of the lines' own coordinate has to be 1."""
    return arrays | {"coords": arrays["coords"] * np.delete(metric, int(arrays["axis"][0]))}


def line_axis(points: FloatArray) -> int:
    """Returns the coordinate along which the samples form the fewest lines."""
    counts = [np.unique(np.delete(points, axis, axis=1), axis=0).shape[0] for axis in range(points.shape[1])]
    return int(np.argmin(counts))


def build_lines(points: FloatArray, values: FloatArray, axis: int) -> Arrays:
    """Returns samples (``points`` Q x D in log2, ``values`` Q) sorted into lines along ``axis``.

    Samples at one point are replaced by their mean value.
    """
    places, which = np.unique(points, axis=0, return_inverse=True)
    which = which.reshape(-1)
    means = np.bincount(which, weights=values) / np.bincount(which)
    others = np.delete(places, axis, axis=1)
    coords, line = np.unique(others, axis=0, return_inverse=True)
    line = line.reshape(-1)
    # Lines one after another, each in ascending order of its own coordinate. coords: L x (D - 1), starts and ends: L,
    # along and values: one element per point.
    order = np.lexsort((places[:, axis], line))
    along = places[order, axis]
    ends = np.cumsum(np.bincount(line, minlength=coords.shape[0]))
    starts = np.concatenate([[0], ends[:-1]])
    return {
        "axis": np.asarray([float(axis)]),
        "coords": coords,
        "starts": starts.astype(np.float64),
        "low": along[starts],
        "high": along[ends - 1],
        "along": along,
        "line": line[order].astype(np.float64),
        "values": means[order],
    }


def line_of(points: FloatArray, axis: int) -> IntArray:
    """Returns the line of each of the samples given to build_lines."""
    _, line = np.unique(np.delete(points, axis, axis=1), axis=0, return_inverse=True)
    return np.asarray(line.reshape(-1), dtype=np.int64)


def read_lines(arrays: Arrays, blend: Blend, points: FloatArray, skip: IntArray | None = None) -> LineReading:
    """Returns the bundle's readings at ``points`` (Q x D, log2). ``skip`` (Q) names for each query a line that must
    not be used."""
    size = points.shape[0]
    lines = arrays["coords"].shape[0]
    # Distances are a Q x L array: queries are taken in parts that fit CHUNK_CELLS.
    rows = max(1, CHUNK_CELLS // max(1, lines))
    value, distance, beyond = np.empty(size), np.empty(size), np.empty(size)
    inside = np.empty(size, dtype=np.bool_)
    for start in range(0, size, rows):
        part = slice(start, min(size, start + rows))
        value[part], distance[part], beyond[part], inside[part] = _read_part(
            arrays, blend, points[part], None if skip is None else skip[part]
        )
    return LineReading(value=value, distance=distance, beyond=beyond, inside=inside)


def _read_part(
    arrays: Arrays, blend: Blend, points: FloatArray, skip: IntArray | None
) -> tuple[FloatArray, FloatArray, FloatArray, BoolArray]:
    axis = int(arrays["axis"][0])
    along, others = points[:, axis], np.delete(points, axis, axis=1)
    # Squared distances between queries and lines (Q x L) in the other coordinates. Arithmetic is in place: these are the
    # largest arrays of a fit, and it reads lines hundreds of times.
    squared = np.zeros((points.shape[0], arrays["coords"].shape[0]))
    term = np.empty_like(squared)
    for column in range(others.shape[1]):
        np.subtract(others[:, column, None], arrays["coords"][None, :, column], out=term)
        squared += np.square(term, out=term)
    # Along the line: the distance to its nearer end, negative or 0 inside its ends.
    gap = np.subtract(along[:, None], arrays["high"][None, :])
    np.maximum(gap, np.subtract(arrays["low"][None, :], along[:, None], out=term), out=gap)
    squared += np.square(np.maximum(gap, 0.0, out=term), out=term)
    if skip is not None:
        # A line to be skipped is infinitely far; ``count`` is at most the number of the others.
        squared[np.arange(points.shape[0]), skip] = np.inf
    count = min(blend.neighbours, squared.shape[1] - (skip is not None))
    # The K nearest lines of each query, in no order; readings and away are Q x K.
    nearest = np.argpartition(squared, count - 1, axis=1)[:, :count]
    near = np.take_along_axis(squared, nearest, axis=1)
    readings, away = _interpolate(arrays, nearest, along)
    # Inverse-distance weights (Shepard 1968) with the blend's power.
    weights = (near + TINY) ** (-blend.power / 2.0)
    weights /= weights.sum(axis=1, keepdims=True)
    offsets = arrays["coords"][nearest] - others[:, None, :]
    value = _blend(readings, weights, offsets, blend)
    # Inside: in every other coordinate some line lies at or below the query and some at or above it, and along the
    # lines at least one of them reaches it.
    low = offsets.min(axis=1, initial=np.inf) <= 1e-9
    high = offsets.max(axis=1, initial=-np.inf) >= -1e-9
    reached = np.maximum(np.take_along_axis(gap, nearest, axis=1), 0.0).min(axis=1) <= 1e-9
    # The nearest sample need not lie on the nearest line: the distance along a coarsely sampled line counts too.
    away_squared = np.square(offsets).sum(axis=2) + away**2
    first = away_squared.argmin(axis=1)[:, None]
    distance = np.sqrt(np.take_along_axis(away_squared, first, axis=1)[:, 0])
    end = arrays["high"][np.take_along_axis(nearest, first, axis=1)[:, 0]]
    return value, distance, np.maximum(along - end, 0.0), (low & high).all(axis=1) & reached


def _interpolate(arrays: Arrays, nearest: IntArray, along: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Returns the value of each of the nearest lines at ``along``, constant beyond its ends, and the distance along
    the line to its nearest sample; both Q x K."""
    places, values = arrays["along"], arrays["values"]
    # All lines are searched at once: the key of a point is its line times a span wider than any line, plus its place
    # on the line, and such keys ascend over the whole array.
    span = float(places.max() - places.min()) + 2.0
    origin = float(places.min()) - 1.0
    keys = arrays["line"] * span + (places - origin)
    clipped = np.clip(along[:, None], arrays["low"][nearest], arrays["high"][nearest])
    right = np.searchsorted(keys, nearest * span + (clipped - origin) - 1e-12)
    right = np.minimum(right, keys.shape[0] - 1)
    left = np.maximum(right - 1, arrays["starts"][nearest].astype(np.int64))
    # A line of one sample, or a reading exactly at a sample, has no width: the value of the right neighbour.
    width = places[right] - places[left]
    share = np.where(width > 0.0, (clipped - places[left]) / np.where(width > 0.0, width, 1.0), 1.0)
    away = np.minimum(np.abs(along[:, None] - places[left]), np.abs(along[:, None] - places[right]))
    return values[left] + (values[right] - values[left]) * np.clip(share, 0.0, 1.0), away


def _blend(readings: FloatArray, weights: FloatArray, offsets: FloatArray, blend: Blend) -> FloatArray:
    """Returns the weighted mean of the readings (Q x K), or the value at the query of a weighted plane through them."""
    mean = np.einsum("qk,qk->q", weights, readings)
    if not blend.plane or offsets.shape[2] == 0:
        return np.asarray(mean)
    # Weighted least squares of the readings over the offsets (Q x K x D) from the query. The ridge, relative to the
    # trace of the normal matrix, keeps slopes near 0 in directions in which the lines do not spread.
    centre = np.einsum("qk,qkd->qd", weights, offsets)
    spread = offsets - centre[:, None, :]
    gram = np.einsum("qk,qkd,qke->qde", weights, spread, spread)
    scale = np.einsum("qdd->q", gram)[:, None, None] + 1e-9
    gram = gram + blend.ridge * scale * np.eye(offsets.shape[2])[None, :, :]
    moment = np.einsum("qk,qkd,qk->qd", weights, spread, readings - mean[:, None])
    slope = np.linalg.solve(gram, moment[:, :, None])[:, :, 0]
    # The plane at offset 0, which is the query.
    return np.asarray(mean - np.einsum("qd,qd->q", slope, centre))


def end_slope(arrays: Arrays, otherwise: float) -> float:
    """Returns the relative standard error per octave beyond the end of a line; ``otherwise`` where too few lines are
    long enough.

    It is the 68th percentile over lines and cuts, as for lines left out (profdb.fits.surface).
    """
    starts = arrays["starts"].astype(np.int64)
    ends = np.append(starts[1:], len(arrays["along"])) - 1
    # The error at a distance of n octaves counts as n times that of one, as ``predict_surface`` uses the slope.
    missed = [_end_errors(arrays, starts, ends, octaves) / octaves for octaves in OCTAVES]
    if len(missed[0]) < FEWEST_LINES:
        return otherwise
    return min(float(np.quantile(np.concatenate(missed), 0.683)), otherwise)


def _end_errors(arrays: Arrays, starts: IntArray, ends: IntArray, octaves: float) -> FloatArray:
    """Returns for each line of at least ``octaves`` the relative error of its end, if the value ``octaves`` before it
    continued."""
    along, values = arrays["along"], arrays["values"]
    places = along[ends] - octaves
    chosen = np.flatnonzero((places >= along[starts]) & (ends > starts))
    missed = [
        np.interp(places[one], along[starts[one] : ends[one] + 1], values[starts[one] : ends[one] + 1])
        - values[ends[one]]
        for one in chosen
    ]
    return np.abs(np.expm1(np.asarray(missed, dtype=np.float64)))


def fit_error(arrays: Arrays) -> dict[str, float]:
    """Returns the cross-validated errors of a stored curve as shares: median, p90, worst (0 if unknown)."""
    errors = arrays.get("cv_error", np.zeros(0))
    if not errors.size:
        return {"median": 0.0, "p90": 0.0, "worst": 0.0}
    return {"median": float(np.median(errors)), "p90": float(np.quantile(errors, 0.9)), "worst": float(errors.max())}
