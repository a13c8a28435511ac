"""Which plans of a search are replayed: those that a bound cannot keep out of the answer.

A plan's step is bounded from below in closed form (solver.pipeline.least_spans). A plan whose bound is slower than the
last plan shown, than the best of its mode, and than some plan that needs no more memory can be none of the plans
that the search shows, whatever its pipeline does: it is not replayed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from solver.estimate import Estimate, StageTimes, StepTime, assembled_step, least_ends_s, pipelines, steps_s
from solver.pipeline.spans import spans_of
from solver.plans.plan_table import Plan
from solver.result import ABOUT_AS_FAST, Alike, grouped
from spec.arrays import BoolArray, FloatArray, IntArray, ints

ROUNDING = 1e-9
"""A bound is taken as this much lower, relatively: sums in another order differ by less."""

FIRST_ROUND = 4
"""Of the plans with the least bounds so many times those shown are replayed first; it moves no answer."""


@dataclass(slots=True, kw_only=True)
class Pipeline:
    """When the stages of a block's plans end: by a replay, or at the least."""

    table: Estimate
    timed: StageTimes
    end_s: FloatArray

    @property
    def step_s(self) -> FloatArray:
        """The step of stages that end then."""
        return steps_s(self.table, self.timed, self.end_s)


@dataclass(slots=True, kw_only=True)
class Entrants:
    """Plans of one block; ``step_s`` is the step where ``played``, else a bound below it."""

    table: Estimate
    pipeline: Pipeline | StepTime
    needed_bytes: FloatArray
    step_s: FloatArray
    played: BoolArray

    @staticmethod
    def of(table: Estimate, timed: StageTimes) -> "Entrants":
        """Bounded, none played."""
        pipeline = Pipeline(table=table, timed=timed, end_s=least_ends_s(table, timed))
        return Entrants(
            table=table,
            pipeline=pipeline,
            needed_bytes=table.needed_bytes,
            step_s=pipeline.step_s * (1.0 - ROUNDING),
            played=np.zeros(len(table.plans), dtype=np.bool_),
        )

    @staticmethod
    def priced(table: Estimate, cost: StepTime) -> "Entrants":
        """Plans whose cost is known, as that of calibrated ones."""
        return Entrants(
            table=table,
            pipeline=cost,
            needed_bytes=table.needed_bytes,
            step_s=cost.step_s,
            played=np.ones(len(table.plans), dtype=np.bool_),
        )

    def rows_of(self, which: BoolArray) -> BoolArray:
        """The stage rows of these plans."""
        return which[self.table.stages.plan]


def play(asked: Sequence[tuple[Entrants, BoolArray]]) -> None:
    """Replay the pipelines of these plans, not yet played, side by side."""
    waiting = [
        (one, one.pipeline, which)
        for one, which in asked
        if isinstance(one.pipeline, Pipeline) and which.any()
    ]
    ends = spans_of([pipelines(one.table, of.timed, which=which) for one, of, which in waiting])
    for (one, of, which), end_s in zip(waiting, ends, strict=True):
        of.end_s = np.where(one.rows_of(which), end_s, of.end_s)
        one.step_s = np.where(which, of.step_s, one.step_s)
        one.played = one.played | which


def costs(asked: Sequence[tuple[Entrants, IntArray]]) -> list[StepTime]:
    """The costs of all plans of each table, exact in those of its ``rows`` that are given, which were played:
    there what hops cost is told apart."""
    shown = [(one, np.bincount(rows, minlength=len(one.played)) > 0) for one, rows in asked]
    replayed = [(one, one.pipeline, which) for one, which in shown if isinstance(one.pipeline, Pipeline)]
    free = spans_of([pipelines(one.table, of.timed, free=True, which=which) for one, of, which in replayed])
    found = {
        id(one): assembled_step(
            one.table, of.timed, (of.end_s, np.where(one.rows_of(which), free_s, of.end_s))
        )
        for (one, of, which), free_s in zip(replayed, free, strict=True)
    }
    return [one.pipeline if isinstance(one.pipeline, StepTime) else found[id(one)] for one, _ in asked]


class Contest:
    """The plans of all blocks by one running number, block after block. ``top_k`` groups of plans alike are shown."""

    def __init__(self, entrants: Sequence[Entrants], top_k: int, *, everything: bool = False) -> None:
        sizes = ints([len(one.played) for one in entrants])
        self.entrants = list(entrants)
        self.top_k = top_k
        self.everything = everything
        self.owner = np.repeat(np.arange(len(sizes)), sizes)
        self.row: IntArray = _joined([np.arange(size) for size in sizes], np.int64)
        self.needed_bytes: FloatArray = _joined([one.needed_bytes for one in entrants], np.float64)
        self.modes = np.array([one.table.plans.strategy for one in entrants], dtype=np.str_)[self.owner]

    @property
    def step_s(self) -> FloatArray:
        """Steps, or bounds below them."""
        joined: FloatArray = _joined([one.step_s for one in self.entrants], np.float64)
        return joined

    @property
    def played(self) -> BoolArray:
        """Whose step is one."""
        joined: BoolArray = _joined([one.played for one in self.entrants], np.bool_)
        return joined

    @property
    def best_s(self) -> float:
        """The shortest step of all, infinite where there is no plan."""
        return float(self.step_s[self.played].min(initial=np.inf))

    def joined(self, more: Sequence[Entrants]) -> "Contest":
        """Decided with ``more`` plans."""
        if not more:
            return self
        contest = Contest([*self.entrants, *more], self.top_k, everything=self.everything)
        contest.decide()
        return contest

    def plan(self, number: int) -> Plan:
        """The plan of that number."""
        return self.entrants[int(self.owner[number])].table.plans.plan(int(self.row[number]))

    def ranked(self) -> IntArray:
        """The plans played, fastest first; ties go to the plan that needs less memory."""
        played = np.flatnonzero(self.played)
        chosen: IntArray = played[np.lexsort((self.needed_bytes[played], self.step_s[played]))].astype(
            np.int64
        )
        return chosen

    def groups(self) -> list[Alike]:
        """The first groups of plans alike among those played; a group's place is the one in ``ranked``."""
        step_s = self.step_s
        in_order = ((place, float(step_s[i]), self.plan(i)) for place, i in enumerate(self.ranked()))
        return grouped(in_order, self.top_k)

    def front(self) -> IntArray:
        """Of the plans played those that no faster one needs less memory than, fastest first."""
        return pareto(self.ranked(), self.needed_bytes)

    def decide(self) -> None:
        """Replay plans until no other can be shown, or all where ``everything`` is asked for."""
        self._play(np.ones_like(self.played) if self.everything else self._likely())
        while not self.played.all():
            waiting = self._may_be_shown()
            if not waiting.any():
                return
            self._play(waiting)

    def _likely(self) -> BoolArray:
        """Plans of the least bounds: in all, of each mode, and for their memory; enough for ``top_k`` groups."""
        order = np.lexsort((self.needed_bytes, self.step_s))
        likely = np.zeros(len(order), dtype=np.bool_)
        likely[pareto(order, self.needed_bytes)] = True
        for mode in np.unique(self.modes):
            likely[order[self.modes[order] == mode][: self.top_k]] = True
        first = FIRST_ROUND * self.top_k
        while not likely.all():
            likely[order[:first]] = True
            found = grouped(((place, 0.0, self.plan(i)) for place, i in enumerate(order[:first])), self.top_k)
            if len(found) == self.top_k:
                break
            first *= 2
        return likely

    def _may_be_shown(self) -> BoolArray:
        """Plans not played whose bound does not keep them out."""
        step_s, played = self.step_s, self.played
        groups = self.groups()
        last_s = ABOUT_AS_FAST * groups[-1].step_s if len(groups) == self.top_k else np.inf
        may = step_s <= last_s
        for mode in np.unique(self.modes):
            of_mode = self.modes == mode
            best_s = step_s[of_mode & played].min(initial=np.inf)
            may |= of_mode & (step_s <= best_s)
        return ~played & (may | self._unbeaten(step_s))

    def _unbeaten(self, step_s: FloatArray) -> BoolArray:
        """Plans than which none played is faster and needs no more memory."""
        ranked = self.ranked()
        least = np.minimum.accumulate(np.concatenate([[np.inf], self.needed_bytes[ranked]]))
        faster = np.searchsorted(step_s[ranked], step_s, side="left")
        return np.asarray(least[faster] > self.needed_bytes, dtype=np.bool_)

    def _play(self, which: BoolArray) -> None:
        play([(one, which[self.owner == index] & ~one.played) for index, one in enumerate(self.entrants)])


def _joined(arrays: Sequence[Any], of: type) -> Any:
    """One array, empty where there are none."""
    return np.concatenate([np.zeros(0, dtype=of), *arrays])


def pareto(order: IntArray, needed_bytes: FloatArray) -> IntArray:
    """Walking from fast to slow, the rows that need less memory than every faster one."""
    ordered = needed_bytes[order]
    lowest = np.minimum.accumulate(np.concatenate([[np.inf], ordered[:-1]]))
    front: IntArray = order[ordered < lowest].astype(np.int64)
    return front
