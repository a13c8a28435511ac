"""Shapes that were priced are not asked about again, and keep their price."""

import numpy as np

from profdb.lookup.priced import TimeEstimate
from profdb.lookup.priced_shapes import PricedShapes
from spec.arrays import IntArray, ints


def test_what_was_priced_is_not_asked_again() -> None:
    asked: list[list[int]] = []

    def ask(columns: dict[str, IntArray]) -> TimeEstimate:
        asked.append(columns["m"].tolist())
        return TimeEstimate(
            seconds=columns["m"] * 10.0 + columns["n"],
            relative_std=columns["m"] / 100.0,
            origin=columns["m"] % 3,
        )

    shapes = PricedShapes()
    shapes.priced({"m": ints([4, 1]), "n": ints([7, 8])}, ask)
    found = shapes.priced({"m": ints([1, 5, 4, 4]), "n": ints([8, 7, 8, 7])}, ask)
    # (4, 8) is none of the first two, though both of its numbers are.
    assert asked == [[4, 1], [5, 4]]
    assert found.seconds.tolist() == [18.0, 57.0, 48.0, 47.0]
    assert found.relative_std.tolist() == [0.01, 0.05, 0.04, 0.04]
    assert found.origin.dtype == np.int64
    assert found.origin.tolist() == [1, 2, 1, 1]
