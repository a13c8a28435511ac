"""Tables of as many feasible plans as asked for, and how fast each plan of them is priced with memory and all parts."""

import resource
import time
from dataclasses import dataclass, replace

import numpy as np

from ops.recompute import Recompute
from solver.estimate import Estimate, estimate_memory, step_time, timed_pieces
from solver.memory.device import usable_bytes
from solver.plans.plan_table import PlanTable
from solver.plans.space import enumerate_block, full_space
from solver.problem.loading import load_problem
from solver.problem.problem import Problem
from solver.problem.request import Request
from spec.arrays import IntArray, ints

ROWS_AT_ONCE = 20_000
"""Plans priced at once: what they take then stays in a core's cache and the memory of any table small; it
moves no price.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """A table of ``plans``, of which ``distinct`` are different, priced in ``cpu_s``; the fastest step and
    the most bytes that one needs."""

    interleaved: bool
    plans: int
    distinct: int
    fastest_s: float
    most_bytes: float
    cpu_s: float
    peak_rss_bytes: int


def table_rate(asked: Request, plans: int, *, interleaved: bool) -> Rate:
    """Price a table of so many feasible plans: the memory of their worst stage, every pipeline replayed, all
    parts of the step with their origins and errors. Opening the question and making the table is not counted;
    nothing is known from before."""
    problem = load_problem(asked).problem
    tables = feasible(problem, interleaved=interleaved)
    distinct = sum(len(one) for one in tables)
    needed_bytes: list[float] = []
    steps_s: list[float] = []
    began = time.process_time()
    for table, share in zip(tables, _shares([len(one) for one in tables], plans), strict=True):
        # Parts of a table share its layers, which are written down and timed once.
        whole, pieces = _laid_out(problem, table), None
        # Spread over the whole table; where there are fewer plans than asked for, each stands there several times.
        spread = np.arange(share) * len(table) // share
        for first in range(0, share, ROWS_AT_ONCE):
            rows = ints(spread[first : first + ROWS_AT_ONCE])
            part = _laid_out(problem, table.take(rows), whole)
            pieces = pieces or timed_pieces(part, problem.pricer)
            cost = step_time(problem.model, problem.job, part, problem.pricer, pieces)
            needed_bytes.append(float(part.needed_bytes.max()))
            steps_s.append(float(cost.step_s.min()))
    return Rate(
        interleaved=interleaved,
        plans=plans,
        distinct=min(distinct, plans),
        fastest_s=min(steps_s),
        most_bytes=max(needed_bytes),
        cpu_s=time.process_time() - began,
        peak_rss_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    )


def _laid_out(problem: Problem, plans: PlanTable, like: Estimate | None = None) -> Estimate:
    return estimate_memory(problem.model, problem.job, plans, problem.cluster, like=like)


def feasible(problem: Problem, *, interleaved: bool) -> list[PlanTable]:
    """Every plan that fits, with every number of recomputed layers, in one table for each strategy."""
    space = full_space(problem.model, problem.job)
    found = []
    for block in space.blocks:
        if block[1] is not Recompute.FULL:
            continue
        plans = enumerate_block(problem.model, problem.job, problem.cluster, space, block).plans
        plans = plans.take(np.flatnonzero((plans.vpp > 1) == interleaved).astype(np.int64))
        partly = _partly(plans, problem.model.num_layers)
        fits = [_fits(problem, partly, rows) for rows in _parts(len(partly))]
        found.append(partly.take(ints(np.concatenate(fits))))
    return [one for one in found if len(one)]


def _parts(rows: int) -> list[IntArray]:
    return [ints(np.arange(first, min(first + ROWS_AT_ONCE, rows))) for first in range(0, rows, ROWS_AT_ONCE)]


def _fits(problem: Problem, plans: PlanTable, rows: IntArray) -> IntArray:
    """Those of the rows whose plans fit."""
    table = _laid_out(problem, plans.take(rows))
    return ints(rows[table.needed_bytes <= usable_bytes(problem.cluster)])


def _partly(plans: PlanTable, num_layers: int) -> PlanTable:
    """Each plan with 1, 2, ... recomputed layers a chunk."""
    most = np.maximum(num_layers // (plans.layout.pp * plans.vpp), 1)
    rows: IntArray = np.repeat(np.arange(len(plans)), most)
    layers = np.arange(len(rows)) - np.repeat(np.cumsum(most) - most, most) + 1
    return replace(plans.take(rows), recompute=Recompute.BLOCK, num_recompute_layers=ints(layers))


def _shares(sizes: list[int], plans: int) -> list[int]:
    """How many of ``plans`` each table gives, by its size."""
    ends = np.round(np.cumsum(sizes) * plans / sum(sizes)).astype(int)
    return [int(one) for one in np.diff(np.append(0, ends))]
