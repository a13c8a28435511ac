"""How long a pipeline takes: closed forms, and a discrete replay of 1F1B for many plans at once.

The closed forms are exact for equal stages and free hops (Narayanan et al. 2021, arXiv 2104.04473
sec. 2.2); everywhere else the replay rules.
"""

from dataclasses import dataclass

import numpy as np

from spec.arrays import BoolArray, FloatArray, IntArray, bools

SETTLED_ROUNDS = 6
LONGEST_REPLAY = 512
ALIKE = 1e-13
"""Relative, by how much ends may differ from being a period apart: rounding."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Period:
    """Of a pipeline that has settled: seconds for a micro-batch, and after how many it is again where it was;
    shape (N,).
    """

    seconds: FloatArray
    micro_batches: IntArray


def period_of(times: StageTimes) -> Period:
    """The period of 1F1B.

    A cycle of dependencies runs forward through stages i..j and back: j - i + 1 micro-batches advance
    while their forwards, backwards and 2 (j - i) hops pass, so the slowest contiguous run of stages
    decides: max over i <= j of (sum(f + b) + 2 (j - i) hop) / (j - i + 1).
    """
    work = times.forward_s + times.backward_s
    total = np.concatenate([np.zeros((1, work.shape[1])), np.cumsum(work, axis=0)])
    best: FloatArray = work.max(axis=0)
    widths = np.ones(work.shape[1], dtype=np.int64)
    for width in range(2, times.depth + 1):
        window = (total[width:] - total[:-width]).max(axis=0)
        mean = (window + 2.0 * (width - 1) * times.hop_s) / width
        widths[mean > best] = width
        best = np.maximum(best, mean)
    return Period(seconds=best, micro_batches=widths)


def replay_1f1b_s(times: StageTimes, num_micro: IntArray) -> FloatArray:
    """When each stage ends its last backward, shape (pp, N), in seconds after the step began.

    ``num_micro`` has length N and each entry is at least 1. Stage s of p warms up with w = p - s forwards,
    then runs one backward and one forward in turn: in round k every stage runs forward k and then backward k
    - w + 1. What a stage does next depends on when all stages ended their last work alone, so a pipeline
    whose ends are whole periods later than those periods before repeats that until its forwards run out:
    whole periods are left out and added. Beyond ``LONGEST_REPLAY`` micro-batches the rest is added at the
    settled period.
    """
    depth, plans = times.forward_s.shape
    longest = np.minimum(num_micro, np.maximum(LONGEST_REPLAY, SETTLED_ROUNDS * depth))
    played = longest.copy()
    period = period_of(times)
    stages = np.arange(depth)[:, None]
    warmup = depth - stages
    # A forward chain: forward of stage s ends no earlier than free[r] + the work and hops from r to s.
    chain = np.cumsum(times.forward_s + np.where(stages > 0, times.hop_s, 0.0), axis=0)
    before = chain - times.forward_s
    free = np.zeros((depth, plans))
    backward_end = np.full((depth, plans), -np.inf)
    kept: list[FloatArray] = []
    turn = 0
    while turn < int(played.max(initial=0)) + depth:
        forward_end = chain + np.maximum.accumulate(free - before, axis=0)
        free = np.where(turn < played, forward_end, free)
        arrived = np.vstack([backward_end[1:] + times.hop_s, np.full((1, plans), -np.inf)])
        ended = np.maximum(free, arrived) + times.backward_s
        micro = turn - warmup + 1
        runs = (micro >= 0) & (micro < played)
        backward_end = np.where(runs, ended, backward_end)
        free = np.where(runs, ended, free)
        # From turn depth - 1 on all stages run both; of the last ``depth`` turns and this one the ends are kept.
        if turn >= depth - 1:
            kept = [*kept[-depth:], backward_end]
            if len(kept) > depth and turn % depth == 0:
                left = np.where(
                    _repeats(np.stack(kept), period), (played - 1 - turn) // period.micro_batches, 0
                )
                played = played - np.maximum(left, 0) * period.micro_batches
        turn += 1
    return np.asarray(backward_end + (num_micro - played) * period.seconds, dtype=np.float64)


def _repeats(ends: FloatArray, period: Period) -> BoolArray:
    """Pipelines whose ``ends`` of this turn, the last of all (turns, pp, N), are a whole period later than a
    period ago.
    """
    columns = np.arange(ends.shape[2])
    ago = ends[len(ends) - 1 - period.micro_batches, :, columns].T
    off = np.abs(ends[-1] - ago - period.seconds * period.micro_batches)
    return bools((off <= ALIKE * ends[-1]).all(axis=0))
