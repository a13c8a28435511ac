"""Boosted regression trees as plain arrays: the candidate for samples that form no dense lines.

Fitted by scikit-learn's GradientBoostingRegressor (Friedman 2001, Ann. Statist. 29(5)) with the absolute
error in the logarithm of the time, then kept as arrays of nodes, so that reading needs numpy alone.
"""

import numpy as np

from profdb.fits.prediction import Arrays
from spec.arrays import FloatArray, IntArray

TREES = 80
DEPTH = 5
LEARNING_RATE = 0.1
"""Friedman's shrinkage: small steps and many trees; errors on left-out lines decide whether it is used."""

PREFIX = "tree_"


def fit_trees(points: FloatArray, target: FloatArray) -> Arrays:
    """Trees for ``target`` (Q) over ``points`` (Q x D). Imports scikit-learn."""
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
    starts = np.cumsum([0] + [tree.node_count for tree in trees[:-1]])
    return {
        PREFIX + "start": starts.astype(np.float64),
        PREFIX + "left": _joined([tree.children_left + at for tree, at in zip(trees, starts, strict=True)]),
        PREFIX + "right": _joined([tree.children_right + at for tree, at in zip(trees, starts, strict=True)]),
        PREFIX + "feature": _joined([tree.feature for tree in trees]),
        PREFIX + "threshold": _joined([tree.threshold for tree in trees]),
        PREFIX + "value": _joined([LEARNING_RATE * tree.value[:, 0, 0] for tree in trees]),
        PREFIX + "base": np.asarray([float(np.median(target))]),
    }


def _joined(parts: list[FloatArray]) -> FloatArray:
    return np.concatenate(parts).astype(np.float64)


def read_trees(arrays: Arrays, points: FloatArray) -> FloatArray:
    """The trees' value at ``points`` (Q x D)."""
    left = arrays[PREFIX + "left"].astype(np.int64)
    right = arrays[PREFIX + "right"].astype(np.int64)
    feature = arrays[PREFIX + "feature"].astype(np.int64)
    threshold, value = arrays[PREFIX + "threshold"], arrays[PREFIX + "value"]
    predicted = np.full(points.shape[0], arrays[PREFIX + "base"][0])
    rows = np.arange(points.shape[0])
    # scikit-learn compares in float32
    compared = points.astype(np.float32).astype(np.float64)
    for start in arrays[PREFIX + "start"].astype(np.int64).tolist():
        node: IntArray = np.full(points.shape[0], start, dtype=np.int64)
        for _ in range(DEPTH):
            inner = feature[node] >= 0
            if not inner.any():
                break
            goes_left = compared[rows, np.maximum(feature[node], 0)] <= threshold[node]
            node = np.where(inner, np.where(goes_left, left[node], right[node]), node)
        predicted += value[node]
    return predicted
