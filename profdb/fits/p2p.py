"""Messages between two ranks, inside a domain or between two: a ladder for each measured pairing."""

from profdb.fits import collective
from profdb.fits.prediction import Arrays, Prediction
from spec.arrays import FloatArray, IntArray

VERSION = 1
CURVE_WORDS: tuple[str, ...] = ("collective",)
CURVE_FLAGS: tuple[str, ...] = ()


def fit(columns: dict[str, IntArray], words: dict[str, str], seconds: FloatArray, noise: float) -> Arrays:
    """One ladder for each (intra, inter, siblings)."""
    return collective.fit(columns, words, seconds, noise)


def predict(arrays: Arrays, columns: dict[str, IntArray], words: dict[str, str]) -> Prediction:
    """Seconds of messages of at least one byte; NaN for a reach of which nothing was measured."""
    return collective.predict(arrays, columns, words)
