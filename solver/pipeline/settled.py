"""Pipelines under any schedule: played until they have settled, then continued by what a round adds.

A program is a system of max-plus equations: work begins when the last of what it needs is there. Where all
work of the levels in which it looks back ends by one and the same time later than its like a round earlier,
so does all that follows (adding a constant to all inputs of a maximum of sums adds it to the outputs), until
the order of work changes: every further round adds that time, exactly. What has not settled is played for
more rounds, in the end for all.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from solver.pipeline.program import FORWARD, NONE, PAIR, Program, program
from solver.pipeline.side_by_side import ChunkTimes, ends_side_by_side, first_and_last
from solver.schedules.registry import Schedule
from spec.arrays import FloatArray, IntArray

FIRST_ROUNDS = 4
"""Rounds of pp micro-batches that are played first, and as many again whenever that was too few; it moves no answer."""

ALIKE = 1e-11
"""Relative to a round, by how much ends may differ from being a round apart: rounding, not unlike cycles."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """N plans under one schedule, pipelines of one ``shape`` (pp, vpp, num_micro)."""

    schedule: Schedule
    shape: tuple[int, int, int]
    times: ChunkTimes

    def rounds_left(self, played: int) -> int:
        """Rounds of the step that are not played when so many are; none where nothing comes again."""
        pp, _, num_micro = self.shape
        if not self.schedule.habits.rounds:
            return 0
        return max((num_micro - played * pp) // pp, 0)

    def program(self, played: int) -> Program:
        """The program of that many rounds and of what is less than a round."""
        pp, vpp, num_micro = self.shape
        count = num_micro - self.rounds_left(played) * pp
        return program(self.schedule, (pp, vpp, count), waited=self.times.waited)


def spans_s(asked: Sequence[Timeline]) -> list[FloatArray]:
    """Until each stage's last work, from the step's beginning or, where stages begin their next step as they are done,
    from the stage's own first work; arrays of shape (pp, N)."""
    found: list[FloatArray] = [np.zeros((one.shape[0], one.times.hop_s.shape[0])) for one in asked]
    waiting = [(index, np.arange(one.times.hop_s.shape[0])) for index, one in enumerate(asked)]
    played = FIRST_ROUNDS
    while waiting:
        unsettled: list[tuple[int, IntArray]] = []
        runs = [(asked[index].program(played), asked[index].times.take(plans)) for index, plans in waiting]
        for place, columns, ends in ends_side_by_side(runs):
            index, plans = waiting[place]
            one, part = asked[index], runs[place][1].take(columns)
            first, last = first_and_last(runs[place][0])
            spans = ends[last]
            if one.times.updates_apart:
                spans = spans - (ends[first] - _first_s(runs[place][0], part, first))
            rounds = one.rounds_left(played)
            if rounds:
                round_s = added_by_a_round_s(runs[place][0], ends, one.schedule.route.ways)
                spans = spans + rounds * round_s
                if np.isnan(round_s).any():
                    unsettled.append((index, plans[columns][np.isnan(round_s)]))
            found[index][:, plans[columns]] = spans
        waiting, played = unsettled, 2 * played
    return found


def _first_s(one: Program, times: ChunkTimes, first: Sequence[int]) -> FloatArray:
    return np.asarray(times.by_kind()[one.kind[first], one.stage[first], one.chunk[first]], dtype=np.float64)


def added_by_a_round_s(one: Program, ends_s: FloatArray, ways: int) -> FloatArray:
    """By how much later a step with a round more ends, NaN for the plans (columns of ``ends_s``) that have not
    settled. ``ways``: copies of the model that share a round's micro-batches."""
    rows, earlier = _settling(one, one.shape[0] // ways)
    if not len(rows):
        return np.full(ends_s.shape[1], np.nan)
    later_s = ends_s[rows] - ends_s[earlier]
    least, most = later_s.min(axis=0), later_s.max(axis=0)
    return np.where(most - least <= ALIKE * most, most, np.nan)


@lru_cache(maxsize=512)
def _settling(one: Program, shift: int) -> tuple[IntArray, IntArray]:
    """The rows that decide what follows the last levels before a stage runs out of forwards, and their like ``shift``
    micro-batches earlier; none where that was in another order."""
    none = np.zeros(0, dtype=np.int64)
    like = np.full((int(one.kind.max()) + 1, *one.shape[:2], int(one.micro.max()) + 1), NONE, dtype=np.int64)
    like[one.kind, one.stage, one.chunk, one.micro] = np.arange(len(one))
    found = like[one.kind, one.stage, one.chunk, np.maximum(one.micro - shift, 0)]
    earlier = np.where(one.micro >= shift, found, NONE)
    moved = np.append(earlier, NONE)
    regular = earlier != NONE
    back = 0
    for needed in (one.before, *one.needs):
        regular &= needed[earlier] == moved[needed]
        regular &= (needed == NONE) == (moved[needed] == NONE)
        back = max(back, int(np.where(regular & (needed != NONE), one.level - one.level[needed], 0).max()))
    regular &= one.exchanges[one.before] == one.exchanges[one.before[earlier]]
    ahead = (one.kind == FORWARD) | (one.kind == PAIR)
    last = min(int(one.level[ahead & (one.stage == stage)].max()) for stage in range(one.shape[0]))
    odd = np.unique(np.append(one.level[~regular & (one.level <= last)], NONE))
    # The last run of levels without an odd one that is long enough.
    ends = np.append(odd[1:], last + 1) - 1
    long = np.flatnonzero(ends - odd >= back)
    if not len(long):
        return none, none
    rows = np.flatnonzero((one.level > ends[long[-1]] - back) & (one.level <= ends[long[-1]]))
    return rows, earlier[rows]
