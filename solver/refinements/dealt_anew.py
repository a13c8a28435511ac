"""Plans whose stages hold other numbers of layers than the rule deals: as many as make the busiest stage work least.

Embedding, head and prediction blocks weigh on single stages, and layers rarely divide. Where the framework takes a layout
(Megatron-LM's --pipeline-model-parallel-layout) the layers of plans that would win by it are dealt anew
(solver.refinements.deal_program), within the memory of each stage.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from ops.recompute.layers import Recompute
from solver.contest import Contest, Entrants, Pipeline
from solver.memory.device_memory import limit_bytes
from solver.plans.plan_table import Plan
from solver.price import Sized, dealt_otherwise, least_ends_s, steps_s
from solver.question import Question
from solver.refinements.deal_program import SAME, Dealing, least_deal
from solver.refinements.entering import entered, fastest_s
from solver.times.layer_times import LayerTimes
from spec.arrays import FloatArray, IntArray, ints
from spec.model import ModelSpec
from spec.pipeline.layout import short_layout
from spec.settings.constraints import Constraints

# Assumption: the fastest plan is among the four kinds of plans that would be fastest with all their stages equally busy.
MOST_DEALT = 4
# Deals that are tried for a plan whose stages hold more than fits, a layer less on each of those each time.
MOST_CUTS = 12
# Assumption: hybrids that change their kind of layer more often are dealt by the rule: their program is no small one.
MOST_RUNS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """Plans that differ in what ZeRO shards alone, in order of their bounds; what each piece of their layers takes, and what
    the busiest stage of the first of them works on a micro-batch, and a bound if all its stages were equally busy."""

    owner: Entrants
    rows: IntArray
    pieces: list[LayerTimes]
    busiest_s: float
    balanced_s: float

    @property
    def table(self) -> Sized:
        """The plans."""
        return self.owner.table.take(self.rows)


def dealt_anew(question: Question, constraints: Constraints, contest: Contest) -> list[Entrants]:
    """The plans that could win with stages that are equally busy, with layers dealt so."""
    runs = len(question.model.blocks)
    if question.job.preset.pipeline.uneven_chunks != "layout" or runs > MOST_RUNS:
        return []
    limit = limit_bytes(question.cluster, constraints)
    best_s = float(contest.step_s[contest.played].min())
    cells = sorted(
        (cell for one in contest.entrants for cell in _cells(one, best_s)), key=lambda one: one.balanced_s
    )
    found: list[Entrants] = []
    for cell in cells[:MOST_DEALT]:
        if cell.balanced_s >= best_s:
            break
        for table in _dealt(question, cell, cell.table, limit):
            found.append(entered(question, table, cell.pieces))
            best_s = min(best_s, fastest_s(found[-1]))
    return found


def _cells(one: Entrants, best_s: float) -> Iterator[Cell]:
    """The cells of a table that could be faster than ``best_s``."""
    plans, pipeline = one.table.plans, one.pipeline
    turns = plans.schedule.route.turns or plans.schedule.splits_backward
    if (
        not isinstance(pipeline, Pipeline)
        or turns
        or plans.stage_layout
        or plans.recompute is Recompute.BLOCK
    ):
        return
    stages = one.table.stages
    busy_s = pipeline.timed.per_micro.seconds
    mean_s = np.add.reduceat(busy_s * stages.count, stages.starts) / plans.layout.pp
    busiest_s = np.maximum.reduceat(busy_s, stages.starts)
    spared_s = (busiest_s - mean_s) * plans.num_micro
    # Bounds, also of plans whose pipelines were played: what was played must not decide what is dealt.
    least_s = steps_s(one.table, pipeline.timed, least_ends_s(one.table, pipeline.timed))
    balanced_s = np.where(plans.layout.pp > 1, least_s - spared_s, np.inf)
    rows = np.flatnonzero(balanced_s < best_s)
    alike: dict[Plan, list[int]] = {}
    for row in rows[np.argsort(balanced_s[rows], kind="stable")].tolist():
        alike.setdefault(replace(plans.plan(row), zero_size=0, zero_stage=0), []).append(row)
    for same in alike.values():
        first = same[0]
        yield Cell(
            owner=one,
            rows=ints(same),
            pieces=pipeline.timed.pieces,
            busiest_s=float(busiest_s[first]),
            balanced_s=float(balanced_s[first]),
        )


def _dealt(question: Question, cell: Cell, table: Sized, limit: float) -> Iterator[Sized]:
    """The plans of a cell, of that ``table``, with their layers dealt anew, those that fit, where no stage then works ``cell.busiest_s``: with the prediction blocks beside the head and, where
    there are any, on the stage before it."""
    model, busiest_s = question.model, cell.busiest_s
    vpp, pp = int(table.plans.vpp[0]), int(table.plans.layout.pp[0])
    predicted = sum(run.count for run in model.blocks if run.block.mtp)
    last = pp * vpp - 1
    for predicting in (last, last - 1) if predicted and last > 1 else (last,):
        dealing = _dealing(model, cell, table, predicting)
        for _ in range(MOST_CUTS if dealing.may_work_less(busiest_s) else 0):
            layers = least_deal(dealing)
            if layers is None or dealing.stage_work_s(layers).max() >= busiest_s * (1.0 - SAME):
                break
            text = short_layout(layers.sum(axis=1).tolist(), predicted, predicting)
            anew = dealt_otherwise(model, question.job, table, text, question.cluster)
            fits = np.flatnonzero(anew.memory.needed_bytes <= limit).astype(np.int64)
            if fits.size:
                yield anew.take(fits)
            if fits.size and fits[0] == 0:
                break
            dealing = replace(dealing, most=_cut(dealing, anew, layers, limit))


def _cut(dealing: Dealing, table: Sized, layers: IntArray, limit: float) -> dict[int, int]:
    """A layer less than now for every stage of the first plan that needs more than the ``limit``."""
    stages = table.stages
    held = layers.sum(axis=1).reshape(dealing.vpp, dealing.pp).sum(axis=0)
    rows = np.flatnonzero((stages.plan == 0) & (table.bytes.cost.needed_bytes > limit))
    places = [
        place
        for row in rows
        for place in range(stages.position[row], stages.position[row] + stages.count[row])
    ]
    return {**dealing.most, **{int(place): int(held[place]) - 1 for place in places}}


def _dealing(model: ModelSpec, cell: Cell, table: Sized, predicting: int) -> Dealing:
    """What is dealt for the first plan of a cell, with the prediction blocks on that virtual stage."""
    plan, row = table.plans, table.layers.row[0]
    each_s = [float(one.forward.seconds[row] + one.backward.seconds[row]) for one in cell.pieces]
    stages = int(plan.layout.pp[0] * plan.vpp[0])
    ends_s: FloatArray = np.zeros(stages)
    ends_s[0] += each_s[-2]
    ends_s[-1] += each_s[-1]
    counts, work_s = [], []
    for run, of_layer_s in zip(model.blocks, each_s, strict=False):
        if run.block.mtp:
            ends_s[predicting] += run.count * of_layer_s
        else:
            counts.append(run.count)
            work_s.append(of_layer_s)
    return Dealing(
        counts=tuple(counts),
        work_s=tuple(work_s),
        ends_s=ends_s,
        pp=int(plan.layout.pp[0]),
        vpp=int(plan.vpp[0]),
        without=() if predicting == stages - 1 else (stages - 1,),
    )
