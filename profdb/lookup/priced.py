"""The answer of every look-up: seconds, their relative standard error, and where they come from."""

from dataclasses import dataclass

from spec.arrays import FloatArray, IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Priced:
    """``seconds``, ``relative_std`` (standard error / seconds) and ``origin`` (spec.origin.Origin
    values), each a 1-D array of the length asked for."""

    seconds: FloatArray
    relative_std: FloatArray
    origin: IntArray
