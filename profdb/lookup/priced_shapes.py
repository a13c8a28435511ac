"""Shapes of one curve that were priced before: a search asks about the same few again and again."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from profdb.lookup.priced import TimeEstimate
from spec.arrays import FloatArray, IntArray


@dataclass(slots=True)
class PricedShapes:
    """Each shape's place, and what is known by place: (seconds, relative_std, origin)."""

    places: dict[bytes, int] = field(default_factory=dict)
    known: FloatArray = field(default_factory=lambda: np.zeros((3, 0)))

    def priced(
        self, columns: dict[str, IntArray], ask: Callable[[dict[str, IntArray]], TimeEstimate]
    ) -> TimeEstimate:
        """The price of different shapes (``columns`` of one length); ``ask`` is called once with those not known."""
        keys = [row.tobytes() for row in np.stack(list(columns.values()), axis=1)]
        fresh = [row for row, key in enumerate(keys) if key not in self.places]
        if fresh:
            told = ask({name: column[fresh] for name, column in columns.items()})
            first = len(self.places)
            self.places.update((keys[row], first + place) for place, row in enumerate(fresh))
            added = np.stack([told.seconds, told.relative_std, told.origin.astype(np.float64)])
            self.known = np.concatenate([self.known, added], axis=1)
        seconds, relative_std, origin = self.known[:, [self.places[key] for key in keys]]
        return TimeEstimate(seconds=seconds, relative_std=relative_std, origin=origin.astype(np.int64))
