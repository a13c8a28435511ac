"""The candidates of a search, and which of them are simulated: those that a bound cannot keep out of the answer.

A plan's step is bounded from below in closed form (solver.pipeline.spans). A plan whose bound is slower than the
last plan shown, than the best of its strategy, and than some plan that needs no more memory can be none of the plans
that the search shows, whatever its pipeline does: it is not simulated.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from solver.estimate import (
    Estimate,
    StageTimes,
    StepTime,
    assemble_step,
    least_ends_s,
    pipelines,
    stage_times,
    steps_s,
)
from solver.pipeline.spans import spans_of
from solver.plans.layers import layer_table
from solver.plans.plan_table import Plan
from solver.problem.problem import Problem, cost_under
from solver.times.layer_times import LayerTimes
from spec.arrays import BoolArray, FloatArray, IntArray, bools, ints

ROUNDING = 1e-9
"""A bound is taken as this much lower, relatively: sums in another order differ by less."""

FIRST_ROUND = 4
"""Of the plans with the least bounds so many times those shown are simulated first; it moves no answer."""


ABOUT_AS_FAST = 1.01
"""Far below what a prediction can tell apart (solver.problem.interval)."""


@dataclass(slots=True, kw_only=True)
class SimilarPlans:
    """The fastest plan, its place in the ranking, and the others that it stands for."""

    place: int
    plan: Plan
    step_s: float
    others: list[Plan] = field(default_factory=list)


def group_similar(ranked: Iterable[tuple[int, float, Plan]], most: int) -> list[SimilarPlans]:
    """Returns the first ``most`` groups of plans in order of their step; ``ranked`` gives place, seconds and plan."""
    groups: list[SimilarPlans] = []
    newest: dict[Plan, SimilarPlans] = {}
    for place, step_s, plan in ranked:
        if len(groups) == most and step_s > ABOUT_AS_FAST * groups[-1].step_s:
            break
        leader = next((newest[key] for key in _group_keys(plan) if key in newest), None)
        if leader is not None and step_s <= ABOUT_AS_FAST * leader.step_s:
            leader.others.append(plan)
        elif len(groups) < most:
            groups.append(SimilarPlans(place=place, plan=plan, step_s=step_s))
            newest.update(dict.fromkeys(_group_keys(plan), groups[-1]))
    return groups


def _group_keys(plan: Plan) -> tuple[Plan, ...]:
    """The plan without its zero_size, as itself and as one that shards nothing, of whatever ZeRO stage."""
    alone = replace(plan, zero_size=1, zero_stage=0)
    return (replace(plan, zero_size=0), alone) if plan.zero_size > 1 else (alone,)


@dataclass(slots=True, kw_only=True)
class StageEnds:
    """When the stages of a block's plans end: by a simulation, or at the least."""

    table: Estimate
    timed: StageTimes
    end_s: FloatArray

    @property
    def step_s(self) -> FloatArray:
        """The step of stages that end then."""
        return steps_s(self.table, self.timed, self.end_s)


@dataclass(slots=True, kw_only=True)
class Candidates:
    """Plans of one block; ``step_s`` is the step where ``simulated``, else a bound below it."""

    table: Estimate
    pipeline: StageEnds | StepTime
    needed_bytes: FloatArray
    step_s: FloatArray
    simulated: BoolArray

    @staticmethod
    def of(table: Estimate, timed: StageTimes) -> "Candidates":
        """Bounded, none simulated."""
        pipeline = StageEnds(table=table, timed=timed, end_s=least_ends_s(table, timed))
        return Candidates(
            table=table,
            pipeline=pipeline,
            needed_bytes=table.needed_bytes,
            step_s=pipeline.step_s * (1.0 - ROUNDING),
            simulated=np.zeros(len(table.plans), dtype=np.bool_),
        )

    @staticmethod
    def priced(table: Estimate, cost: StepTime) -> "Candidates":
        """Plans whose cost is known, as that of calibrated ones."""
        return Candidates(
            table=table,
            pipeline=cost,
            needed_bytes=table.needed_bytes,
            step_s=cost.step_s,
            simulated=np.ones(len(table.plans), dtype=np.bool_),
        )

    def rows_of(self, which: BoolArray) -> BoolArray:
        """The stage rows of these plans."""
        return which[self.table.stages.plan]


def simulate(wanted: Sequence[tuple[Candidates, BoolArray]]) -> None:
    """Simulate the pipelines of these plans, not yet simulated, side by side."""
    waiting = [
        (one, one.pipeline, which) for one, which in wanted if isinstance(one.pipeline, StageEnds) and which.any()
    ]
    ends = spans_of([pipelines(one.table, of.timed, selected=which) for one, of, which in waiting])
    for (one, of, which), end_s in zip(waiting, ends, strict=True):
        of.end_s = np.where(one.rows_of(which), end_s, of.end_s)
        one.step_s = np.where(which, of.step_s, one.step_s)
        one.simulated = one.simulated | which


def candidates_of(problem: Problem, table: Estimate, pieces: list[LayerTimes] | None = None) -> Candidates:
    """The plans of a table with a bound below each step, or under a calibration with the step itself; ``pieces`` as in
    solver.estimate.stage_times."""
    if problem.calibration is not None:
        return Candidates.priced(table, cost_under(problem, table))
    return Candidates.of(table, stage_times(problem.model, problem.job, table, problem.op_timer, pieces))


def with_own_layers(problem: Problem, table: Estimate, rows: IntArray) -> Estimate:
    """These plans of the table, with no layer rows but theirs: what is timed next is timed for each."""
    selected = table.take(rows)
    return replace(selected, layers=layer_table(problem.model, problem.job, selected.plans))


def fastest_s(one: Candidates) -> float:
    """The step of the plan whose bound is least, simulated."""
    row = np.argmin(one.step_s)
    if not one.simulated[row]:
        simulate([(one, bools(np.arange(len(one.step_s)) == row))])
    return float(one.step_s[row])


def costs(wanted: Sequence[tuple[Candidates, IntArray]]) -> list[StepTime]:
    """The costs of all plans of each table, exact in those of its ``rows`` that are given, which were simulated:
    there what messages cost is apart."""
    shown = [(one, np.bincount(rows, minlength=len(one.simulated)) > 0) for one, rows in wanted]
    simulated = [(one, one.pipeline, which) for one, which in shown if isinstance(one.pipeline, StageEnds)]
    free = spans_of([pipelines(one.table, of.timed, free=True, selected=which) for one, of, which in simulated])
    assembled = {
        id(one): assemble_step(one.table, of.timed, (of.end_s, np.where(one.rows_of(which), free_s, of.end_s)))
        for (one, of, which), free_s in zip(simulated, free, strict=True)
    }
    return [one.pipeline if isinstance(one.pipeline, StepTime) else assembled[id(one)] for one, _ in wanted]


class CandidatePool:
    """The plans of all blocks by one running number, block after block. ``top_k`` groups of plans alike are shown."""

    def __init__(self, candidates: Sequence[Candidates], top_k: int, *, everything: bool = False) -> None:
        sizes = ints([len(one.simulated) for one in candidates])
        self.candidates = list(candidates)
        self.top_k = top_k
        self.everything = everything
        self.owner = np.repeat(np.arange(len(sizes)), sizes)
        self.row: IntArray = _concatenated([np.arange(size) for size in sizes], np.int64)
        self.needed_bytes: FloatArray = _concatenated([one.needed_bytes for one in candidates], np.float64)
        self.modes = np.array([one.table.plans.strategy for one in candidates], dtype=np.str_)[self.owner]

    @property
    def step_s(self) -> FloatArray:
        """Steps, or bounds below them."""
        joined: FloatArray = _concatenated([one.step_s for one in self.candidates], np.float64)
        return joined

    @property
    def simulated(self) -> BoolArray:
        """Whose step is one."""
        joined: BoolArray = _concatenated([one.simulated for one in self.candidates], np.bool_)
        return joined

    @property
    def incumbent_s(self) -> float:
        """The shortest step of all, infinite where there is no plan."""
        return float(self.step_s[self.simulated].min(initial=np.inf))

    def merge(self, more: Sequence[Candidates]) -> "CandidatePool":
        """Decided with ``more`` plans."""
        if not more:
            return self
        pool = CandidatePool([*self.candidates, *more], self.top_k, everything=self.everything)
        pool.simulate_contenders()
        return pool

    def plan(self, number: int) -> Plan:
        """The plan of that number."""
        return self.candidates[int(self.owner[number])].table.plans.plan(int(self.row[number]))

    def ranked(self) -> IntArray:
        """The plans simulated, fastest first; ties go to the plan that needs less memory."""
        simulated = np.flatnonzero(self.simulated)
        chosen: IntArray = simulated[np.lexsort((self.needed_bytes[simulated], self.step_s[simulated]))].astype(
            np.int64
        )
        return chosen

    def groups(self) -> list[SimilarPlans]:
        """The first groups of plans alike among those simulated; a group's place is the one in ``ranked``."""
        step_s = self.step_s
        in_order = ((place, float(step_s[i]), self.plan(i)) for place, i in enumerate(self.ranked()))
        return group_similar(in_order, self.top_k)

    def front(self) -> IntArray:
        """Returns the simulated plans that no faster one needs less memory than, fastest first."""
        return pareto(self.ranked(), self.needed_bytes)

    def simulate_contenders(self) -> None:
        """Simulate plans until no other can be shown, or all where ``everything`` is asked for."""
        self._simulate(np.ones_like(self.simulated) if self.everything else self._likely())
        while not self.simulated.all():
            waiting = self._contenders()
            if not waiting.any():
                return
            self._simulate(waiting)

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
            result = group_similar(((place, 0.0, self.plan(i)) for place, i in enumerate(order[:first])), self.top_k)
            if len(result) == self.top_k:
                break
            first *= 2
        return likely

    def _contenders(self) -> BoolArray:
        """Plans not simulated whose bound does not keep them out."""
        step_s, simulated = self.step_s, self.simulated
        groups = self.groups()
        last_s = ABOUT_AS_FAST * groups[-1].step_s if len(groups) == self.top_k else np.inf
        may = step_s <= last_s
        for mode in np.unique(self.modes):
            of_mode = self.modes == mode
            incumbent_s = step_s[of_mode & simulated].min(initial=np.inf)
            may |= of_mode & (step_s <= incumbent_s)
        return ~simulated & (may | self._unbeaten(step_s))

    def _unbeaten(self, step_s: FloatArray) -> BoolArray:
        """Plans than which none simulated is faster and needs no more memory."""
        ranked = self.ranked()
        least = np.minimum.accumulate(np.concatenate([[np.inf], self.needed_bytes[ranked]]))
        faster = np.searchsorted(step_s[ranked], step_s, side="left")
        return np.asarray(least[faster] > self.needed_bytes, dtype=np.bool_)

    def _simulate(self, which: BoolArray) -> None:
        simulate([(one, which[self.owner == index] & ~one.simulated) for index, one in enumerate(self.candidates)])


def _concatenated(arrays: Sequence[Any], of: type) -> Any:
    """One array, empty where there are none."""
    return np.concatenate([np.zeros(0, dtype=of), *arrays])


def pareto(order: IntArray, needed_bytes: FloatArray) -> IntArray:
    """Walking from fast to slow, the rows that need less memory than every faster one."""
    ordered = needed_bytes[order]
    lowest = np.minimum.accumulate(np.concatenate([[np.inf], ordered[:-1]]))
    front: IntArray = order[ordered < lowest].astype(np.int64)
    return front
