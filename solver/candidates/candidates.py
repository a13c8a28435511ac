"""The candidates of a search, and which of them are simulated: those that a bound cannot keep out of the result.

A plan's step is bounded from below in closed form (solver.pipeline.spans). A search displays the ``top_k`` fastest
plans, the best of each strategy, and the Pareto front of step time and memory. A plan whose bound is slower than the
last of the top_k, than the best of its strategy, and than some plan that needs no more memory can be none of these,
whatever its pipeline does: it is not simulated. So the result is that of simulating every plan."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ops.layout import unique_rows
from ops.op import Axis, Comm, Lane
from solver.estimate import (
    Estimate,
    StageTimes,
    StepTime,
    assemble_step,
    least_ends_s,
    pipelines,
    stage_times,
    steps_s,
    timer_of,
)
from solver.pipeline.spans import spans_of
from solver.plans.layers import LayerTable, layer_keys, layer_table
from solver.plans.plan_table import Plan, PlanTable
from solver.plans.simplicity import num_switches
from solver.problem.problem import Problem, cost_under
from solver.times.layer_times import KERNELS, LayerTimes
from spec.arrays import BoolArray, FloatArray, IntArray, bools, ints
from spec.errors import MissingCurveError

ROUNDING = 1e-9
"""Relative amount by which a bound is lowered: sums in another order differ by less."""

FIRST_ROUND = 4
"""Times ``top_k``: plans with the least bounds that are simulated first; it moves no answer."""


ABOUT_AS_FAST = 1.01
"""Far below what a prediction can tell apart (solver.problem.interval)."""


@dataclass(slots=True, kw_only=True)
class SimilarPlans:
    """The fastest plan, its place in the ranking, and the others that it stands for with their places and steps."""

    place: int
    plan: Plan
    step_s: float
    others: list[tuple[int, float, Plan]] = field(default_factory=list)

    @property
    def members(self) -> list[tuple[int, float, Plan]]:
        """Returns place, step and plan of all."""
        return [(self.place, self.step_s, self.plan), *self.others]

    @property
    def simplest(self) -> int:
        """Returns the place of the simplest plan, of equals the fastest."""
        return min(self.members, key=lambda one: (num_switches(one[2]), one[0]))[0]

    def led_by(self, leader: int) -> "SimilarPlans":
        """Returns the group with the plan of that place as the one that stands for all."""
        place, step_s, plan = next(one for one in self.members if one[0] == leader)
        others = [one for one in self.members if one[0] != leader]
        return SimilarPlans(place=place, plan=plan, step_s=step_s, others=others)


def group_similar(ranked: Iterable[tuple[int, float, Plan]], most: int) -> list[SimilarPlans]:
    """Returns the first ``most`` groups of plans in order of their step; ``ranked`` gives place, seconds and plan."""
    groups: list[SimilarPlans] = []
    newest: dict[Plan, SimilarPlans] = {}
    for place, step_s, plan in ranked:
        if len(groups) == most and step_s > ABOUT_AS_FAST * groups[-1].step_s:
            break
        leader = next((newest[key] for key in _group_keys(plan) if key in newest), None)
        if leader is not None and step_s <= ABOUT_AS_FAST * leader.step_s:
            leader.others.append((place, step_s, plan))
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
    """When the stages of a block's plans end: as simulated, or a lower bound."""

    table: Estimate
    times: StageTimes
    end_s: FloatArray

    @property
    def step_s(self) -> FloatArray:
        """Returns the step of stages that end then."""
        return steps_s(self.table, self.times, self.end_s)


@dataclass(slots=True, kw_only=True)
class Candidates:
    """Plans of one block; ``step_s`` is the step where ``simulated``, else a bound below it."""

    table: Estimate
    pipeline: StageEnds | StepTime
    needed_bytes: FloatArray
    step_s: FloatArray
    simulated: BoolArray

    @staticmethod
    def of(table: Estimate, times: StageTimes) -> "Candidates":
        """Returns the plans of a table with their bounds, none of them simulated."""
        pipeline = StageEnds(table=table, times=times, end_s=least_ends_s(table, times))
        return Candidates(
            table=table,
            pipeline=pipeline,
            needed_bytes=table.needed_bytes,
            step_s=pipeline.step_s * (1.0 - ROUNDING),
            simulated=np.zeros(len(table.plans), dtype=np.bool_),
        )

    @staticmethod
    def with_step_time(table: Estimate, cost: StepTime) -> "Candidates":
        """Returns plans whose step is known already, as under a calibration."""
        return Candidates(
            table=table,
            pipeline=cost,
            needed_bytes=table.needed_bytes,
            step_s=cost.step_s,
            simulated=np.ones(len(table.plans), dtype=np.bool_),
        )

    def stage_rows(self, selected: BoolArray) -> BoolArray:
        """Returns which stage rows are of ``selected`` plans."""
        return selected[self.table.stages.plan]


def simulate(plans: Sequence[tuple[Candidates, BoolArray]]) -> None:
    """Simulates the pipelines of the selected plans of each block side by side, and writes their ends and steps."""
    waiting = [
        (block, block.pipeline, selected)
        for block, selected in plans
        if isinstance(block.pipeline, StageEnds) and selected.any()
    ]
    ends = spans_of([pipelines(block.table, of.times, selected=selected) for block, of, selected in waiting])
    for (block, of, selected), end_s in zip(waiting, ends, strict=True):
        of.end_s = np.where(block.stage_rows(selected), end_s, of.end_s)
        block.step_s = np.where(selected, of.step_s, block.step_s)
        block.simulated = block.simulated | selected


def candidates_of(problem: Problem, table: Estimate, pieces: list[LayerTimes] | None = None) -> Candidates:
    """Returns the plans of a table with a bound below each step, or under a calibration with the step itself;
    ``pieces`` as in solver.estimate.stage_times."""
    if problem.calibration is not None:
        return Candidates.with_step_time(table, cost_under(problem, table))
    return Candidates.of(table, stage_times(problem.model, problem.job, table, problem.op_timer, pieces))


WAITED_AXES = (Axis.TP, Axis.CP, Axis.EP, Axis.ETP)


@dataclass(slots=True, kw_only=True)
class LeastSteps:
    """Lower bounds of steps that need no memory and no stages: of the kernels of the whole model and the collectives
    inside a replica that it waits for, however they are spread over stages.

    Few columns decide these, whatever ZeRO shards: one table after another shares ``layers``."""

    problem: Problem
    layers: LayerTable | None = None

    def of(self, plans: PlanTable) -> FloatArray:
        """Returns the bound of every plan's step; 0 under a calibration, which scales times."""
        if self.problem.calibration is not None:
            return np.zeros(len(plans))
        model, job, traits = self.problem.model, self.problem.job, plans.schedule.traits
        whole = replace(plans, layout=replace(plans.layout, zero_stage=plans.layout.constant(0)))
        first, row = unique_rows(layer_keys(job, whole.layout))
        layers = self.layers = layer_table(model, job, whole.take(first), self.layers)
        timer = timer_of(layers, self.problem.op_timer)
        # Kernels may take less in a layer than alone; of two chunks that run together one hides the other's exchange.
        kernels, axes = KERNELS if timer.layers is None else (), () if traits.pairs else WAITED_AXES
        # Where some layers are recomputed, those that are not come last.
        pieces = (*layers.ops.blocks[-len(model.blocks) :], layers.ops.embedding, layers.ops.head)
        pass_s = np.zeros(len(layers.layout))
        for piece, count in zip(pieces, (*(run.count for run in model.blocks), 1, 1), strict=True):
            for op in (*piece.forward, *piece.backward):
                waited = isinstance(op, kernels) or (isinstance(op, Comm) and op.axis in axes)
                if waited and op.lane is Lane.MAIN:
                    # What no profile has measured may be of plans that do not fit.
                    with suppress(MissingCurveError):
                        pass_s = pass_s + timer.time(op, layers.layout).seconds * count
        # The busiest of equal stages works through its part of every micro-batch. A stage of one chunk waits besides, for
        # the first forward and with the last backward, for those before it: t[0] + ... + t[s-1] + num_micro t[s] is least
        # at its largest where it is the same for all stages s, of which each then takes 1 - 1 / num_micro of the one
        # before.
        pp, num_micro = plans.layout.pp, plans.num_micro
        in_order = (plans.vpp == 1) & bools(plans.schedule.placement.looped and not traits.splits_backward)
        passes = np.where(in_order, 1.0 / (1.0 - (1.0 - 1.0 / num_micro) ** pp), num_micro / pp)
        return pass_s[layers.row][row] * passes * (1.0 - ROUNDING)


def with_own_layers(problem: Problem, table: Estimate, rows: IntArray) -> Estimate:
    """Returns these plans of the table with the layer rows of no others, as every layer row is timed next."""
    selected = table.take(rows)
    return replace(selected, layers=layer_table(problem.model, problem.job, selected.plans))


def fastest_s(one: Candidates) -> float:
    """Returns the step of the plan with the least bound, which is simulated if it is not yet."""
    row = np.argmin(one.step_s)
    if not one.simulated[row]:
        simulate([(one, bools(np.arange(len(one.step_s)) == row))])
    return float(one.step_s[row])


def costs(plans: Sequence[tuple[Candidates, IntArray]]) -> list[StepTime]:
    """Returns the step times of all plans of each block with their parts. They are exact in the given rows, which were
    simulated; only there is the time of messages told apart from the bubble."""
    with_masks = [(block, np.bincount(rows, minlength=len(block.simulated)) > 0) for block, rows in plans]
    simulated = [(block, block.pipeline, mask) for block, mask in with_masks if isinstance(block.pipeline, StageEnds)]
    # The second simulation, with free messages, is made for displayed plans alone.
    free = spans_of([pipelines(block.table, of.times, free=True, selected=mask) for block, of, mask in simulated])
    steps = {
        id(block): assemble_step(block.table, of.times, (of.end_s, np.where(block.stage_rows(mask), free_s, of.end_s)))
        for (block, of, mask), free_s in zip(simulated, free, strict=True)
    }
    return [block.pipeline if isinstance(block.pipeline, StepTime) else steps[id(block)] for block, _ in plans]


class CandidatePool:
    """The plans of all blocks by one running number, block after block: plan ``i`` is row ``row[i]`` of
    ``candidates[owner[i]]``. ``top_k`` groups of plans alike are displayed; nothing else of a ``quick`` answer."""

    def __init__(
        self, candidates: Sequence[Candidates], top_k: int, *, everything: bool = False, quick: bool = False
    ) -> None:
        sizes = ints([len(one.simulated) for one in candidates])
        self.candidates = list(candidates)
        self.top_k = top_k
        self.everything = everything
        self.quick = quick
        self.owner = np.repeat(np.arange(len(sizes)), sizes)
        self.row: IntArray = _concatenate([np.arange(size) for size in sizes], np.int64)
        self.needed_bytes: FloatArray = _concatenate([one.needed_bytes for one in candidates], np.float64)
        self.modes = np.array([one.table.plans.strategy for one in candidates], dtype=np.str_)[self.owner]

    @property
    def step_s(self) -> FloatArray:
        """Returns the steps of simulated plans, and bounds of the others."""
        steps: FloatArray = _concatenate([one.step_s for one in self.candidates], np.float64)
        return steps

    @property
    def simulated(self) -> BoolArray:
        """Returns which plans are simulated."""
        simulated: BoolArray = _concatenate([one.simulated for one in self.candidates], np.bool_)
        return simulated

    @property
    def incumbent_s(self) -> float:
        """Returns the shortest step so far, infinite where there is no plan."""
        return float(self.step_s[self.simulated].min(initial=np.inf))

    def merge(self, more: Sequence[Candidates]) -> "CandidatePool":
        """Returns the pool with ``more`` plans, the contenders among them simulated."""
        if not more:
            return self
        pool = CandidatePool([*self.candidates, *more], self.top_k, everything=self.everything)
        pool.simulate_contenders()
        return pool

    def plan(self, number: int) -> Plan:
        """Returns the plan of that number."""
        return self.candidates[int(self.owner[number])].table.plans.plan(int(self.row[number]))

    def rank(self) -> IntArray:
        """Returns the simulated plans, fastest first; ties go to the plan that needs less memory."""
        simulated = np.flatnonzero(self.simulated)
        order = np.lexsort((self.needed_bytes[simulated], self.step_s[simulated]))
        return ints(simulated[order])

    def groups(self) -> list[SimilarPlans]:
        """Returns the first groups of plans alike among those simulated; a group's place is the one in ``rank``."""
        step_s = self.step_s
        in_order = ((place, float(step_s[i]), self.plan(i)) for place, i in enumerate(self.rank()))
        return group_similar(in_order, self.top_k)

    def near_best(self) -> list[SimilarPlans]:
        """Returns all groups of plans alike that are about as fast as the fastest, each led by its simplest plan,
        simple ones first; ``simulate_contenders`` simulates all of them."""
        step_s, ranked = self.step_s, self.rank()
        near = ranked[step_s[ranked] <= ABOUT_AS_FAST * step_s[ranked[0]]]
        groups = group_similar(((place, float(step_s[i]), self.plan(i)) for place, i in enumerate(near)), len(near))
        led = [one.led_by(one.simplest) for one in groups]
        return sorted(led, key=lambda one: (num_switches(one.plan), one.step_s))

    def front(self) -> IntArray:
        """Returns the simulated plans that no faster one needs less memory than, fastest first."""
        return pareto(self.rank(), self.needed_bytes)

    def simulate_contenders(self) -> None:
        """Simulates plans until no other can be displayed, or all of them with ``everything``."""
        self._simulate(np.ones_like(self.simulated) if self.everything else self._likely())
        while not self.simulated.all():
            waiting = self._contenders()
            if not waiting.any():
                return
            self._simulate(waiting)

    def _likely(self) -> BoolArray:
        """Returns the plans that are likely to be displayed: those with the least bounds, in all and of each strategy,
        and the Pareto front of bounds; enough for ``top_k`` groups."""
        order = np.lexsort((self.needed_bytes, self.step_s))
        likely = np.zeros(len(order), dtype=np.bool_)
        if not self.quick:
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
        """Returns the plans that are not simulated and that their bound does not keep out of the result."""
        step_s, simulated = self.step_s, self.simulated
        groups = self.groups()
        # Of the top_k: a slower plan still joins a group of plans alike that are about as fast.
        last_s = ABOUT_AS_FAST * groups[-1].step_s if len(groups) == self.top_k else np.inf
        contends = step_s <= last_s
        if self.quick:
            return ~simulated & contends
        # Best of its strategy.
        for mode in np.unique(self.modes):
            of_mode = self.modes == mode
            incumbent_s = step_s[of_mode & simulated].min(initial=np.inf)
            contends |= of_mode & (step_s <= incumbent_s)
        return ~simulated & (contends | self._on_front(step_s))

    def _on_front(self, step_s: FloatArray) -> BoolArray:
        """Returns the plans that no simulated plan beats in both step time and memory."""
        ranked = self.rank()
        # least[i]: the least memory among the i fastest simulated plans.
        least = np.minimum.accumulate(np.concatenate([[np.inf], self.needed_bytes[ranked]]))
        num_faster = np.searchsorted(step_s[ranked], step_s, side="left")
        return np.asarray(least[num_faster] > self.needed_bytes, dtype=np.bool_)

    def _simulate(self, selected: BoolArray) -> None:
        simulate([(one, selected[self.owner == index] & ~one.simulated) for index, one in enumerate(self.candidates)])


def _concatenate(arrays: Sequence[Any], of: type) -> Any:
    """Returns the arrays as one, empty where there are none."""
    return np.concatenate([np.zeros(0, dtype=of), *arrays])


def pareto(order: IntArray, needed_bytes: FloatArray) -> IntArray:
    """Returns the rows of ``order``, from fast to slow, that need less memory than every faster one."""
    needed = needed_bytes[order]
    least_of_faster = np.minimum.accumulate(np.concatenate([[np.inf], needed[:-1]]))
    front: IntArray = order[needed < least_of_faster].astype(np.int64)
    return front
