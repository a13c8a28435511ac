"""Collectives: a monotone time over size for every measured group shape, and a model between shapes.

A group shape is (intra, inter, siblings) as in profdb.cases.CollectiveCase. A shape that was measured
is read from its own ladder. Another one is restated from the nearest measured shape of the same reach
(inside one domain, or across domains): the latency part grows with the number of steps, log2 of the
ranks, and the rest with the bytes each rank must move, the bus-bandwidth factor of spec.collectives.
"""

import numpy as np

from profdb.fits.ladder import Ladder, climb, fit_ladder
from profdb.fits.prediction import Arrays, Prediction
from spec.arrays import BoolArray, FloatArray, IntArray
from spec.collectives import Collective, busbw_factor

VERSION = 1
CURVE_WORDS: tuple[str, ...] = ("collective",)
CURVE_FLAGS: tuple[str, ...] = ()
SHAPE = ("intra", "inter", "siblings")

RESTATED_STD = 0.25
"""Assumption: relative error of a group shape restated from another one's curve."""


def fit(columns: dict[str, IntArray], words: dict[str, str], seconds: FloatArray, noise: float) -> Arrays:
    """One ladder for each group shape among the samples."""
    shapes, which = np.unique(
        np.stack([columns[name] for name in SHAPE], axis=1), axis=0, return_inverse=True
    )
    ladders: list[Ladder] = []
    errors: list[FloatArray] = []
    for index in range(shapes.shape[0]):
        rows = np.flatnonzero(which.reshape(-1) == index)
        sizes = columns["size_bytes"][rows].astype(np.float64)
        ladders.append(fit_ladder(sizes, seconds[rows]))
        errors.append(_left_out_errors(sizes, seconds[rows]))
    counts = [ladder.log_size.shape[0] for ladder in ladders]
    return {
        "shapes": shapes.astype(np.float64),
        "ends": np.cumsum(counts).astype(np.float64),
        "log_size": np.concatenate([ladder.log_size for ladder in ladders]),
        "log_seconds": np.concatenate([ladder.log_seconds for ladder in ladders]),
        "rates": np.asarray([ladder.rate for ladder in ladders]),
        "noise": np.asarray([noise]),
        "cv_error": np.concatenate(errors),
    }


def _left_out_errors(sizes: FloatArray, seconds: FloatArray) -> FloatArray:
    """Relative error at each inner size when it is left out of the ladder."""
    places = np.unique(sizes)
    errors = []
    for place in places[1:-1]:
        keep = sizes != place
        told, _ = climb(fit_ladder(sizes[keep], seconds[keep]), np.asarray([place]))
        errors.append(abs(float(told[0]) / float(np.median(seconds[~keep])) - 1.0))
    return np.asarray(errors, dtype=np.float64)


def _ladder(arrays: Arrays, index: int) -> Ladder:
    ends = arrays["ends"].astype(np.int64)
    part = slice(int(ends[index - 1]) if index else 0, int(ends[index]))
    return Ladder(
        log_size=arrays["log_size"][part],
        log_seconds=arrays["log_seconds"][part],
        rate=float(arrays["rates"][index]),
    )


def predict(arrays: Arrays, columns: dict[str, IntArray], words: dict[str, str]) -> Prediction:
    """Seconds of collectives over groups of two ranks or more and sizes >= 1 byte.

    ``seconds`` is NaN for a reach (across domains or within one) of which nothing was measured; the
    caller turns that into MissingCurveError.
    """
    wanted = np.stack([columns[name] for name in SHAPE], axis=1)
    sizes = columns["size_bytes"].astype(np.float64)
    seconds = np.full(sizes.shape, np.nan)
    spread = np.full(sizes.shape, RESTATED_STD)
    inside: BoolArray = np.zeros(sizes.shape, dtype=np.bool_)
    told = float(np.median(arrays["cv_error"])) * 1.4826 if arrays["cv_error"].size else RESTATED_STD
    kind = Collective(words["collective"])
    for shape in np.unique(wanted, axis=0):
        rows = np.flatnonzero((wanted == shape).all(axis=1))
        source = _nearest_shape(arrays["shapes"], shape)
        if source is None:
            continue
        ladder = _ladder(arrays, source)
        measured = arrays["shapes"][source]
        times, within = climb(ladder, sizes[rows])
        if (measured == shape).all():
            seconds[rows], inside[rows] = times, within
            spread[rows] = np.hypot(arrays["noise"][0], np.where(within, told, RESTATED_STD))
        else:
            seconds[rows] = _restated(
                kind, ladder, times, int(measured[0] * measured[1]), int(shape[0] * shape[1])
            )
    return Prediction(seconds=seconds, relative_std=spread, inside=inside)


def _nearest_shape(shapes: FloatArray, wanted: IntArray) -> int | None:
    """Index of the closest measured shape of the same reach in log2 of (intra, inter, siblings)."""
    same_reach = (shapes[:, 1] > 1) == (wanted[1] > 1)
    if not same_reach.any():
        return None
    away = np.abs(np.log2(shapes) - np.log2(wanted.astype(np.float64))).sum(axis=1)
    away[~same_reach] = np.inf
    return int(np.argmin(away))


def _restated(
    kind: Collective, ladder: Ladder, times: FloatArray, from_ranks: int, to_ranks: int
) -> FloatArray:
    latency = np.minimum(np.exp(ladder.log_seconds[0]), times)
    steps = np.log2(to_ranks) / np.log2(from_ranks)
    wire = float(busbw_factor(kind, to_ranks) / busbw_factor(kind, from_ranks))
    return np.asarray(latency * steps + (times - latency) * wire)
