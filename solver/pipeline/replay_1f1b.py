"""How long a pipeline takes: closed forms, and a discrete replay of 1F1B for many plans at once.

The closed forms are exact for equal stages and free hops (Narayanan et al. 2021, arXiv 2104.04473
sec. 2.2); everywhere else the replay rules.
"""

from dataclasses import dataclass

import numpy as np

from spec.arrays import FloatArray, IntArray

SETTLED_ROUNDS = 6
LONGEST_REPLAY = 512


def equal_stages_s(
    pp: IntArray, vpp: IntArray, num_micro: IntArray, forward_s: FloatArray, backward_s: FloatArray
) -> FloatArray:
    """(m + (p - 1) / v) (t_f + t_b): ideal time plus the bubble of (interleaved) 1F1B.

    ``forward_s`` and ``backward_s`` of one micro-batch on one whole stage.
    """
    return (num_micro + (pp - 1) / vpp) * (forward_s + backward_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTimes:
    """Times of N pipelines of one depth, stages along the first axis: arrays of shape (pp, N).

    ``forward_s`` and ``backward_s`` of one micro-batch; ``hop_s`` from one stage to the next, shape
    (N,).
    """

    forward_s: FloatArray
    backward_s: FloatArray
    hop_s: FloatArray

    @property
    def depth(self) -> int:
        """Stages."""
        return int(self.forward_s.shape[0])


def period_s(times: StageTimes) -> FloatArray:
    """Seconds per micro-batch once 1F1B has settled, shape (N,).

    A cycle of dependencies runs forward through stages i..j and back: j - i + 1 micro-batches advance
    while their forwards, backwards and 2 (j - i) hops pass, so the slowest contiguous run of stages
    decides: max over i <= j of (sum(f + b) + 2 (j - i) hop) / (j - i + 1).
    """
    work = times.forward_s + times.backward_s
    total = np.concatenate([np.zeros((1, work.shape[1])), np.cumsum(work, axis=0)])
    best: FloatArray = work.max(axis=0)
    for width in range(2, times.depth + 1):
        window = (total[width:] - total[:-width]).max(axis=0)
        best = np.maximum(best, (window + 2.0 * (width - 1) * times.hop_s) / width)
    return best


def replay_1f1b_s(times: StageTimes, num_micro: IntArray) -> FloatArray:
    """When each stage ends its last backward, shape (pp, N), in seconds after the step began.

    ``num_micro`` has length N and each entry is at least 1. Stage s of p warms up with w = p - s
    forwards, then runs one backward and one forward in turn: in round k every stage runs forward k
    and then backward k - w + 1. Beyond ``LONGEST_REPLAY`` micro-batches the rest is added at the
    settled period.
    """
    depth, plans = times.forward_s.shape
    played = np.minimum(num_micro, np.maximum(LONGEST_REPLAY, SETTLED_ROUNDS * depth))
    stages = np.arange(depth)[:, None]
    warmup = depth - stages
    # A forward chain: forward of stage s ends no earlier than free[r] + the work and hops from r to s.
    chain = np.cumsum(times.forward_s + np.where(stages > 0, times.hop_s, 0.0), axis=0)
    before = chain - times.forward_s
    free = np.zeros((depth, plans))
    backward_end = np.full((depth, plans), -np.inf)
    for turn in range(int(played.max(initial=0)) + depth):
        forward_end = chain + np.maximum.accumulate(free - before, axis=0)
        free = np.where(turn < played, forward_end, free)
        arrived = np.vstack([backward_end[1:] + times.hop_s, np.full((1, plans), -np.inf)])
        ended = np.maximum(free, arrived) + times.backward_s
        micro = turn - warmup + 1
        runs = (micro >= 0) & (micro < played)
        backward_end = np.where(runs, ended, backward_end)
        free = np.where(runs, ended, free)
    beyond = num_micro - played
    if beyond.any():
        backward_end = backward_end + beyond * period_s(times)
    return backward_end
