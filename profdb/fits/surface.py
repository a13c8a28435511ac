"""A kernel's time over several sizes: a roofline, and what measurements add to it.

Model: seconds = roofline * exp(residual), roofline = max(flops / peak, bytes / rate) + floor_s
(Williams et al. 2009, "Roofline", plus a launch floor), residual read from profdb.fits.lines.
Fitted: peak, rate and floor are the best rates and the shortest time among the samples; the residual's
blend, and the share of boosted trees far from every line, are the candidates with
the smallest error when whole lines are left out.

Boosted regression trees are the candidate for samples that form no dense lines: fitted by scikit-learn's
GradientBoostingRegressor (Friedman 2001, Ann. Statist. 29(5)) with the absolute error in the logarithm of the time, then
kept as arrays of nodes, so that reading needs numpy alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from profdb.fits.lines import (
    Arrays,
    Blend,
    CurvePrediction,
    build_lines,
    end_slope,
    line_axis,
    line_of,
    read_lines,
    scaled_lines,
)
from spec.arrays import FloatArray, IntArray

CANDIDATES: tuple[Blend, ...] = (
    Blend(neighbours=1, plane=False),
    Blend(neighbours=4, power=4.0, plane=True),
    Blend(neighbours=6, power=2.0, plane=False),
    Blend(neighbours=10, power=2.0, plane=True),
    Blend(neighbours=10, power=4.0, plane=False),
    Blend(neighbours=24, power=4.0, plane=True),
)

METRIC_FACTORS = (0.4, 2.5)
"""Factors by which a coordinate's distances are tried smaller and larger."""

CV_POINTS = 1500
"""Samples on which candidates are compared; enough that a p90 is stable to a tenth of itself."""

TREES_FROM_SCORE = 0.03
"""Median + p90 / 4 of the lines' left-out error above which trees are tried: below it they gain nothing
that the noise of measurements leaves visible."""

TREES_SAMPLES = (80, 5000)
"""Fewer samples overfit; more form lines, and trees of them are slow to fit."""

TREES_FROM_DISTANCE = 0.25
"""log2 units from the nearest sample at which trees have half their share."""

TREE_SHARES = (0.5, 0.9)
FOLDS = 4

TREES = 80
DEPTH = 5
LEARNING_RATE = 0.1
"""Friedman's shrinkage: small steps and many trees; errors on left-out lines decide whether it is used."""

PREFIX = "tree_"

UNTESTED_STD = 0.5
"""Assumption: relative error where too few lines exist to leave any out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelShapes:
    """Q kernel calls: ``sizes`` (D arrays, each 1 or more), ``flops`` and ``size_bytes`` (Q)."""

    sizes: Sequence[FloatArray]
    flops: FloatArray
    size_bytes: FloatArray


def fit_rates(shapes: KernelShapes, seconds: FloatArray) -> FloatArray:
    """Returns (peak FLOP/s, bytes/s, floor seconds), which no sample exceeds by more than noise.

    The best half percent of the rates counts as noise; the floor is the first percentile of the times.
    """
    peak = float(np.quantile(shapes.flops / seconds, 0.995)) if shapes.flops.any() else 0.0
    rate = float(np.quantile(shapes.size_bytes / seconds, 0.995))
    return np.asarray([peak, rate, float(np.quantile(seconds, 0.01))])


def roofline_s(rates: FloatArray, shapes: KernelShapes) -> FloatArray:
    """Returns the shortest time by peak rate and bandwidth plus the launch floor, seconds (Q)."""
    peak, rate, floor_s = rates.tolist()
    # Families that only move bytes have no peak.
    compute_s = shapes.flops / peak if peak > 0.0 else np.zeros_like(shapes.flops)
    return np.asarray(np.maximum(compute_s, shapes.size_bytes / rate) + floor_s)


def fit_surface(shapes: KernelShapes, seconds: FloatArray, noise: float) -> Arrays:
    """Returns the arrays of the fitted surface. ``noise`` is the relative spread of one sample's trials."""
    rates = fit_rates(shapes, seconds)
    target = np.log(seconds / roofline_s(rates, shapes))
    points = np.log2(np.stack(shapes.sizes, axis=1))
    # Points are Q x D. The target is the log of the inefficiency: 0 at the roofline.
    lines = build_lines(points, target, line_axis(points))
    trial = _choose(lines, points, target)
    # Stored in the chosen metric's units, so that a look-up only scales its query.
    arrays = scaled_lines(lines, trial.metric)
    arrays["metric"] = trial.metric
    arrays["rates"] = rates
    arrays["blend"] = np.asarray([CANDIDATES.index(trial.blend)], dtype=np.float64)
    arrays["noise"] = np.asarray([noise])
    if worth_trees(trial, target.shape[0]):
        trial = _with_trees(trial, lines, points, target)
        if trial.tree_share > 0.0:
            arrays |= fit_trees(points, target)
    arrays["tree_share"] = np.asarray([trial.tree_share])
    arrays["cv_error"] = trial.errors
    arrays["cv_row"] = trial.rows.astype(np.float64)
    arrays["error_slope"] = np.asarray([_error_slope(trial.errors, trial.distances)])
    return arrays


def predict_surface(arrays: Arrays, shapes: KernelShapes) -> CurvePrediction:
    """Returns the times at ``shapes`` by a fitted surface."""
    blend = CANDIDATES[int(arrays["blend"][0])]
    points = np.log2(np.stack(shapes.sizes, axis=1))
    reading = read_lines(arrays, blend, points * arrays["metric"])
    # Distance from the nearest sample in two parts: beyond the end of its line, where the error per octave is small,
    # and across to that line.
    slope = float(arrays["error_slope"][0])
    across = slope * np.sqrt(np.maximum(reading.distance**2 - reading.beyond**2, 0.0))
    along = end_slope(arrays, slope) * reading.beyond if reading.beyond.any() else 0.0 * across
    spread = np.sqrt(arrays["noise"][0] ** 2 + across**2 + along**2)
    value, share = reading.value, float(arrays["tree_share"][0])
    if share > 0.0:
        value = _mix(value, read_trees(arrays, points), share, reading.distance)
    return CurvePrediction(
        seconds=roofline_s(arrays["rates"], shapes) * np.exp(value), relative_std=spread, inside=reading.inside
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A blend and metric with their results on left-out lines: values ``predicted`` with ``errors`` at ``distances``
    from the nearest sample, for the samples ``rows``. ``tree_share`` is the weight of the trees far from every line."""

    blend: Blend
    metric: FloatArray
    errors: FloatArray
    distances: FloatArray
    rows: IntArray
    predicted: FloatArray
    tree_share: float = 0.0

    @property
    def score(self) -> float:
        """Returns the median error plus a quarter of the 90th percentile; 0 when nothing could be left out."""
        if not self.errors.size:
            return 0.0
        return float(np.median(self.errors) + np.quantile(self.errors, 0.9) / 4.0)


def _choose(lines: Arrays, points: FloatArray, target: FloatArray) -> Trial:
    """Returns the blend and metric with the smallest left-out error. Every blend is tried, then the metric in two
    passes over the coordinates (each with a smaller and a larger factor), with every blend again after each pass.
    Combinations that come up again, as most do in the second pass, are not tried again."""
    axis = int(lines["axis"][0])
    metric: FloatArray = np.ones(points.shape[1])
    if lines["coords"].shape[0] < 3:
        none = np.zeros(0)
        return Trial(
            blend=CANDIDATES[0], metric=metric, errors=none, distances=none, predicted=none, rows=none.astype(np.int64)
        )
    # Fixed seeds here and in ``_with_trees``: the same samples give the same fit.
    rows = np.random.default_rng(0).permutation(target.shape[0])[:CV_POINTS]
    holdout = Holdout(rows=rows, points=points[rows], target=target[rows], skip=line_of(points, axis)[rows])
    tried: dict[tuple[Blend, tuple[float, ...]], Trial] = {}

    def trial(metric: FloatArray, blend: Blend) -> Trial:
        key = (blend, tuple(metric.tolist()))
        if key not in tried:
            tried[key] = _holdout_trial(lines, holdout, metric, blend)
        return tried[key]

    best = min((trial(metric, blend) for blend in CANDIDATES), key=lambda t: t.score)
    # The lines' own coordinate has factor 1, since ``scaled_lines`` requires it; a coordinate with one value has no
    # distance.
    varying = [d for d in range(points.shape[1]) if d != axis and np.ptp(points[:, d]) > 0.0]
    for _ in range(2):
        for dimension in varying:
            for factor in METRIC_FACTORS:
                metric = best.metric.copy()
                metric[dimension] *= factor
                best = min(best, trial(metric, best.blend), key=lambda t: t.score)
        best = min([best, *(trial(best.metric, blend) for blend in CANDIDATES)], key=lambda t: t.score)
    return best


@dataclass(frozen=True, slots=True, kw_only=True)
class Holdout:
    """Samples that are predicted without their own line (``skip``)."""

    rows: IntArray
    points: FloatArray
    target: FloatArray
    skip: IntArray


def _holdout_trial(lines: Arrays, holdout: Holdout, metric: FloatArray, blend: Blend) -> Trial:
    """Returns the errors of a metric and blend on samples whose own line may not be used."""
    reading = read_lines(scaled_lines(lines, metric), blend, holdout.points * metric, holdout.skip)
    return Trial(
        blend=blend,
        metric=metric,
        errors=np.abs(np.expm1(reading.value - holdout.target)),
        distances=reading.distance,
        rows=holdout.rows,
        predicted=reading.value,
    )


def worth_trees(trial: Trial, samples: int) -> bool:
    """Returns whether trees are tried: lines alone leave enough error, and samples are neither too few nor too many."""
    return trial.score > TREES_FROM_SCORE and TREES_SAMPLES[0] <= samples <= TREES_SAMPLES[1]


def _mix(lines: FloatArray, trees: FloatArray, share: float, distance: FloatArray) -> FloatArray:
    """Returns the value of lines and trees together. The weight of the trees grows with the distance to the nearest
    sample; near one, the lines decide."""
    weight = share * distance**2 / (distance**2 + TREES_FROM_DISTANCE**2)
    return np.asarray(lines + weight * (trees - lines))


def _with_trees(trial: Trial, lines: Arrays, points: FloatArray, target: FloatArray) -> Trial:
    """Returns the trial with the share of trees whose error on left-out lines is smallest (folds of whole lines)."""
    # Folds of whole lines: samples of one line are alike, so trees that saw part of it would look too good.
    fold = np.random.default_rng(1).permutation(lines["coords"].shape[0]) % FOLDS
    fold_of: IntArray = fold[line_of(points, int(lines["axis"][0]))]
    trees: FloatArray = np.zeros(trial.rows.shape[0])
    for part in range(FOLDS):
        inside = fold_of != part
        holdout = ~inside[trial.rows]
        if holdout.any() and inside.any():
            trees[holdout] = read_trees(fit_trees(points[inside], target[inside]), points[trial.rows[holdout]])
    best = trial
    for share in TREE_SHARES:
        value = _mix(trial.predicted, trees, share, trial.distances)
        errors = np.abs(np.expm1(value - target[trial.rows]))
        best = min(best, replace(trial, errors=errors, tree_share=share), key=lambda t: t.score)
    return best


def _error_slope(errors: FloatArray, distances: FloatArray) -> float:
    """Returns the relative standard error per log2 unit from the nearest sample.

    The 68th percentile of normal errors is their standard deviation; for heavier tails it says more than the median.
    """
    if not errors.size:
        return UNTESTED_STD
    return float(np.quantile(errors / np.maximum(distances, 0.1), 0.683))


def fit_trees(points: FloatArray, target: FloatArray) -> Arrays:
    """Returns the arrays of trees for ``target`` (Q) over ``points`` (Q x D). Imports scikit-learn."""
    from sklearn.ensemble import GradientBoostingRegressor

    model = GradientBoostingRegressor(
        loss="absolute_error",
        n_estimators=TREES,
        max_depth=DEPTH,
        learning_rate=LEARNING_RATE,
        min_samples_leaf=3,
        subsample=0.7,
        random_state=0,
    ).fit(points, target)
    trees = [stage[0].tree_ for stage in model.estimators_]
    # Nodes of all trees lie end to end; child indices are shifted to point into the common arrays.
    starts = np.cumsum([0] + [tree.node_count for tree in trees[:-1]])
    return {
        PREFIX + "start": starts.astype(np.float64),
        PREFIX + "left": _concatenate([tree.children_left + at for tree, at in zip(trees, starts, strict=True)]),
        PREFIX + "right": _concatenate([tree.children_right + at for tree, at in zip(trees, starts, strict=True)]),
        PREFIX + "feature": _concatenate([tree.feature for tree in trees]),
        PREFIX + "threshold": _concatenate([tree.threshold for tree in trees]),
        PREFIX + "value": _concatenate([LEARNING_RATE * tree.value[:, 0, 0] for tree in trees]),
        PREFIX + "base": np.asarray([float(np.median(target))]),
    }


def _concatenate(parts: list[FloatArray]) -> FloatArray:
    return np.concatenate(parts).astype(np.float64)


def read_trees(arrays: Arrays, points: FloatArray) -> FloatArray:
    """Returns the trees' value at ``points`` (Q x D)."""
    left = arrays[PREFIX + "left"].astype(np.int64)
    right = arrays[PREFIX + "right"].astype(np.int64)
    feature = arrays[PREFIX + "feature"].astype(np.int64)
    threshold, value = arrays[PREFIX + "threshold"], arrays[PREFIX + "value"]
    predicted = np.full(points.shape[0], arrays[PREFIX + "base"][0])
    rows = np.arange(points.shape[0])
    # scikit-learn compares in float32
    compared = points.astype(np.float32).astype(np.float64)
    for start in arrays[PREFIX + "start"].astype(np.int64).tolist():
        # All queries descend one tree together, at most DEPTH levels. A leaf has feature -1 and keeps its queries.
        node: IntArray = np.full(points.shape[0], start, dtype=np.int64)
        for _ in range(DEPTH):
            inner = feature[node] >= 0
            if not inner.any():
                break
            goes_left = compared[rows, np.maximum(feature[node], 0)] <= threshold[node]
            node = np.where(inner, np.where(goes_left, left[node], right[node]), node)
        predicted += value[node]
    return predicted
