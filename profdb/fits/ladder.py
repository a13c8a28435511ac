"""Monotone time over one size: what a transfer or a sweep of one number looks like.

Between samples log(seconds) is linear in log(size) after the samples are made monotone (isotonic
regression in log seconds, pool-adjacent-violators), so a larger message is never faster. Below the
smallest sample the time stays (latency floor); above the largest it grows by the marginal bytes/s of
the upper half of the curve (latency + bandwidth).
"""

from dataclasses import dataclass

import numpy as np

from spec.arrays import BoolArray, FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Ladder:
    """``log_size`` (log2, strictly increasing) and ``log_seconds`` (natural log, non-decreasing), both
    of length P >= 1; ``rate`` is bytes (or units of size) per second beyond the last rung."""

    log_size: FloatArray
    log_seconds: FloatArray
    rate: float


def pool_adjacent(values: FloatArray, weights: FloatArray) -> FloatArray:
    """The closest non-decreasing sequence in weighted least squares (Barlow et al. 1972)."""
    blocks: list[list[float]] = []
    for value, weight in zip(values.tolist(), weights.tolist(), strict=True):
        blocks.append([value, weight, 1.0])
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            last, before = blocks.pop(), blocks.pop()
            weight_sum = before[1] + last[1]
            mean = (before[0] * before[1] + last[0] * last[1]) / weight_sum
            blocks.append([mean, weight_sum, before[2] + last[2]])
    return np.repeat([block[0] for block in blocks], [int(block[2]) for block in blocks])


def fit_ladder(sizes: FloatArray, seconds: FloatArray) -> Ladder:
    """A ladder through samples (sizes >= 1, seconds > 0; several at one size are averaged in log)."""
    places, which = np.unique(np.log2(sizes), return_inverse=True)
    weights = np.bincount(which.reshape(-1)).astype(np.float64)
    means = np.bincount(which.reshape(-1), weights=np.log(seconds)) / weights
    rungs = pool_adjacent(means, weights)
    return Ladder(log_size=places, log_seconds=rungs, rate=_rate_beyond(places, rungs))


def _rate_beyond(log_size: FloatArray, log_seconds: FloatArray) -> float:
    """Marginal rate over the last factor of 8 in size, at least the mean rate of the last rung."""
    last_size, last_s = float(2.0 ** log_size[-1]), float(np.exp(log_seconds[-1]))
    mean_rate = last_size / last_s
    first = int(np.searchsorted(log_size, log_size[-1] - 3.0))
    if first >= log_size.shape[0] - 1:
        return mean_rate
    sizes, seconds = 2.0 ** log_size[first:], np.exp(log_seconds[first:])
    rise = float(seconds[-1] - seconds[0])
    marginal = float(sizes[-1] - sizes[0]) / rise if rise > 0.0 else mean_rate
    return float(np.clip(marginal, mean_rate, 2.0 * mean_rate))


def climb(ladder: Ladder, sizes: FloatArray) -> tuple[FloatArray, BoolArray]:
    """Seconds at ``sizes`` (>= 1) and whether each lies within the rungs; both of length Q."""
    wanted = np.log2(sizes)
    inner = np.exp(np.interp(wanted, ladder.log_size, ladder.log_seconds))
    beyond = np.maximum(sizes - 2.0 ** ladder.log_size[-1], 0.0) / ladder.rate
    within = (wanted >= ladder.log_size[0] - 1e-9) & (wanted <= ladder.log_size[-1] + 1e-9)
    return np.asarray(inner + beyond), np.asarray(within)
