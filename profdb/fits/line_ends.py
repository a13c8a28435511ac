"""How far off a line is beyond its longest sample, as its own samples tell.

Beyond its end a line goes on with the efficiency of its end (profdb.fits.lines). How well that holds is measured: every
line is cut off 1, 2 and 3 octaves before its end and asked for its end. That says less error than lines left out
altogether do, because efficiency settles as sizes grow, while from one line to another it does not.
"""

import numpy as np

from profdb.fits.prediction import Arrays
from spec.arrays import FloatArray, IntArray

OCTAVES = (1.0, 2.0, 3.0)
FEWEST_LINES = 8
"""Assumption: fewer ends say nothing about others."""


def end_slope(arrays: Arrays, otherwise: float) -> float:
    """Relative standard error per octave beyond the end of a line; ``otherwise`` where too few lines are long enough.

    The 68th percentile over lines and cuts, as of lines left out (profdb.fits.surface).
    """
    starts = arrays["starts"].astype(np.int64)
    ends = np.append(starts[1:], len(arrays["along"])) - 1
    missed = [_missed(arrays, starts, ends, octaves) / octaves for octaves in OCTAVES]
    if len(missed[0]) < FEWEST_LINES:
        return otherwise
    return min(float(np.quantile(np.concatenate(missed), 0.683)), otherwise)


def _missed(arrays: Arrays, starts: IntArray, ends: IntArray, octaves: float) -> FloatArray:
    """Of lines that reach so far back, the relative miss of the end by the value that they have there."""
    along, values = arrays["along"], arrays["values"]
    places = along[ends] - octaves
    chosen = np.flatnonzero((places >= along[starts]) & (ends > starts))
    missed = [
        np.interp(places[one], along[starts[one] : ends[one] + 1], values[starts[one] : ends[one] + 1])
        - values[ends[one]]
        for one in chosen
    ]
    return np.abs(np.expm1(np.asarray(missed, dtype=np.float64)))
