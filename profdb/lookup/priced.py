"""The answer of every look-up: seconds, their relative standard error, and where they come from."""

from dataclasses import dataclass, field

import numpy as np

from spec.arrays import BoolArray, FloatArray, IntArray

NOTHING_CARRIED: FloatArray = np.zeros(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeEstimate:
    """``seconds``, ``relative_std`` (standard error / seconds) and ``origin`` (spec.origin.Origin values),
    each a 1-D array of the length asked for. ``carried_std``: what a constant that was measured on another
    GPU or shape adds to the error; all that rest on it err together."""

    seconds: FloatArray
    relative_std: FloatArray
    origin: IntArray
    carried_std: FloatArray = field(default_factory=lambda: NOTHING_CARRIED)

    def where(self, chosen: BoolArray, other: "TimeEstimate") -> "TimeEstimate":
        """These where ``chosen``, ``other`` elsewhere; both of its length."""
        return TimeEstimate(
            seconds=np.where(chosen, self.seconds, other.seconds),
            relative_std=np.where(chosen, self.relative_std, other.relative_std),
            origin=np.where(chosen, self.origin, other.origin),
            carried_std=np.where(chosen, self.carried_std, other.carried_std),
        )
