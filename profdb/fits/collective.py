"""Collectives and messages: a monotone time over size for every measured group shape, and a model
between shapes.

A group shape is (intra, inter, siblings) as in profdb.cases.CollectiveCase. A measured shape is read from its own curve
(profdb.fits.monotone_curve). Another one is estimated by profdb.fits.group_shape and is never ``inside``. Fitted: the
bend of the chords is the one with the smallest error on left-out sizes, over all shapes of one collective.
"""

import numpy as np

from profdb.fits import protocol_changes as shared_changes
from profdb.fits.group_shape import ShapeCurve, restate, shape_error
from profdb.fits.lines import Arrays, CurvePrediction
from profdb.fits.monotone_curve import BENDS, MonotoneCurve, climb, fit_monotone_curve, holdout_errors
from spec.arrays import BoolArray, FloatArray, IntArray
from spec.collectives import Collective

MOST_SHAPES_TESTED = 32
"""Group shapes whose sizes are left out one by one: enough for a median over some 500 errors."""

BEYOND_STD = 0.15
"""Assumption: relative error of latency + bandwidth beyond the measured sizes."""


def fit(columns: dict[str, IntArray], labels: dict[str, str], seconds: FloatArray, noise: float) -> Arrays:
    """Returns the arrays of one collective's fit: a monotone curve for each group shape among the samples."""
    stacked = np.stack((columns["intra"], columns["inter"], columns["siblings"]), axis=1)
    shapes, which = np.unique(stacked, axis=0, return_inverse=True)
    sizes = columns["size_bytes"].astype(np.float64)
    groups = [np.flatnonzero(which.reshape(-1) == index) for index in range(shapes.shape[0])]
    # errors: B x P, one row per candidate bend. One bend for all shapes, chosen by the mean of log(1 + error), in
    # which a single bad size counts little.
    errors, rows = _holdout_errors(groups, sizes, seconds)
    best = int(np.argmin(np.log1p(errors).mean(axis=1))) if errors.size else 0
    monotones = [fit_monotone_curve(sizes[rows], seconds[rows], BENDS[best]) for rows in groups]
    curves = [
        ShapeCurve(intra=int(shape[0]), inter=int(shape[1]), siblings=int(shape[2]), monotone=monotone)
        for shape, monotone in zip(shapes, monotones, strict=True)
    ]
    # Each shape's curve then takes part of its form between two measured sizes from the other shapes.
    weight = _shared_weight(curves)
    monotones = [
        shared_changes.fill_gaps(curve, curves[:at] + curves[at + 1 :], weight) for at, curve in enumerate(curves)
    ]
    return {
        # Curves lie end to end; ``ends`` says where each one stops.
        "shapes": shapes.astype(np.float64),
        "ends": np.cumsum([monotone.log_size.shape[0] for monotone in monotones]).astype(np.float64),
        "log_size": np.concatenate([monotone.log_size for monotone in monotones]),
        "log_seconds": np.concatenate([monotone.log_seconds for monotone in monotones]),
        "rates": np.asarray([monotone.rate for monotone in monotones]),
        "bend": np.asarray([BENDS[best]]),
        "noise": np.asarray([noise]),
        "cv_error": errors[best],
        "cv_row": rows,
        "shape_error": np.asarray([shape_error(Collective(labels["collective"]), curves)]),
    }


def _holdout_errors(groups: list[IntArray], sizes: FloatArray, seconds: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Returns the errors on left-out sizes, one row per bend, and the sample each belongs to. If there are many group
    shapes, an even selection is tested."""
    step = -(-len(groups) // MOST_SHAPES_TESTED)
    result = [(rows, holdout_errors(sizes[rows], seconds[rows])) for rows in groups[::step]]
    errors = np.concatenate([errors for _, (errors, _) in result], axis=1)
    return errors, np.concatenate([rows[at] for rows, (_, at) in result]).astype(np.float64)


def _shared_weight(curves: list[ShapeCurve]) -> float:
    """Returns the weight of other groups' measurements between two sizes of a group (profdb.fits.protocol_changes)."""
    step = -(-len(curves) // MOST_SHAPES_TESTED) if curves else 1
    errors = shared_changes.holdout_errors(curves[::step])
    return shared_changes.WEIGHTS[int(np.argmin(np.log1p(errors).mean(axis=1)))] if errors.size else 0.0


def shape_curves(arrays: Arrays) -> list[ShapeCurve]:
    """Returns the measured group shapes of a stored fit."""
    ends = arrays["ends"].astype(np.int64).tolist()
    curves = []
    for index, (shape, start, stop) in enumerate(
        zip(arrays["shapes"].astype(np.int64).tolist(), [0, *ends[:-1]], ends, strict=True)
    ):
        monotone = MonotoneCurve(
            log_size=arrays["log_size"][start:stop],
            log_seconds=arrays["log_seconds"][start:stop],
            rate=float(arrays["rates"][index]),
            bend=float(arrays["bend"][0]),
        )
        curves.append(ShapeCurve(intra=shape[0], inter=shape[1], siblings=shape[2], monotone=monotone))
    return curves


def predict(arrays: Arrays, columns: dict[str, IntArray], labels: dict[str, str]) -> CurvePrediction:
    """Returns the times of collectives over groups of two ranks or more and sizes >= 1 byte.

    ``seconds`` is NaN for a reach (across domains or within one) of which nothing was measured; the caller turns that
    into MissingCurveError.
    """
    requested = np.stack((columns["intra"], columns["inter"], columns["siblings"]), axis=1)
    sizes = columns["size_bytes"].astype(np.float64)
    seconds, spread = np.full(sizes.shape, np.nan), np.zeros(sizes.shape)
    inside: BoolArray = np.zeros(sizes.shape, dtype=np.bool_)
    curves = shape_curves(arrays)
    errors = arrays["cv_error"]
    # The 68th percentile of absolute errors: the standard deviation, if they are normal.
    between = float(np.quantile(errors, 0.683)) if errors.size else BEYOND_STD
    own_noise, predicted_noise = float(arrays["noise"][0]), float(arrays["shape_error"][0])
    # Group shapes repeat within a query: each is looked up or restated once, then read at all its sizes.
    shapes, which = np.unique(requested, axis=0, return_inverse=True)
    for index, shape in enumerate(shapes):
        rows = np.flatnonzero(which.reshape(-1) == index)
        same = (one for one in curves if (one.intra, one.inter, one.siblings) == tuple(shape))
        own = next((one.monotone for one in same), None)
        monotone = own or restate(Collective(labels["collective"]), curves, shape)
        if monotone is None:
            continue
        seconds[rows], within = climb(monotone, sizes[rows])
        near = np.where(within, between, BEYOND_STD)
        inside[rows] = within & (own is not None)
        # Independent errors: noise of the trials, the chord between two sizes, and the group shape unless it is a
        # measured one.
        spread[rows] = np.hypot(np.hypot(own_noise, near), 0.0 if own is not None else predicted_noise)
    return CurvePrediction(seconds=seconds, relative_std=spread, inside=inside)
