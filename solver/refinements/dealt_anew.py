"""Plans whose stages hold other numbers of layers than the rule deals: as many as let a step end soonest.

Embedding, head and prediction blocks weigh on single stages, layers rarely divide, and early stages hold most
micro-batches. Where the framework takes a layout (Megatron-LM's --pipeline-model-parallel-layout) layers are
dealt anew (solver.refinements.deal_program) within the memory of each stage, of plans that would win by it:
of those that fit, and of those that fit so alone, with each way in which less of their layers runs again. So
what runs again and where layers stand are chosen together.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from solver.contest import Entrants, Pipeline
from solver.estimate import Estimate, repartitioned
from solver.question import Question
from solver.refinements.cells import Cell, drafted_cells, fitting_cells
from solver.refinements.chain_deals import least_chain_span_s
from solver.refinements.deal_program import SAME, Dealing, least_deal
from solver.refinements.entering import entered, fastest_s
from solver.refinements.stage_room import Room, stage_rooms
from solver.refinements.tight import Fallen, Tight
from solver.refinements.tight_drafts import Drafts, tight_drafts
from spec.arrays import FloatArray, IntArray, ints
from spec.model import BlockRun
from spec.pipeline.layout import short_layout
from spec.settings.constraints import Constraints

# Assumption: the fastest plan is among the four kinds of plans with the least bounds for which there is a deal.
MOST_DEALT = 4
# Of kinds of plans without one so many are asked about, and so many tables of plans are priced that fit so alone.
MOST_ASKED = 16
MOST_PRICED = 12
# Programs for one plan, each with tangents where the last one's deal needs more than fits.
MOST_CUTS = 12
# In layers: by less than this a room may be mistaken, a hundred times a program's own tolerance. What is
# closer is solved.
CLOSE = 1e-4
# Relative, by how much two sums of the same seconds may differ.
ROUNDING = 1e-9


def dealt_anew(
    question: Question,
    constraints: Constraints,
    known: tuple[Fallen, Sequence[Tight]],
    best_s: float,
) -> list[Entrants]:
    """The plans that could be faster than ``best_s`` with stages that are equally busy, with layers dealt so."""
    fallen, tight = known
    limit = fallen.limit_bytes
    waiting: list[Cell | Drafts] = []
    for one in fallen.fitting:
        waiting += fitting_cells(question, one, (limit, best_s))
    for short in tight:
        waiting += tight_drafts(question, constraints, short, (limit, best_s))
    found: list[Entrants] = []
    dealt = asked = priced = 0
    while waiting and dealt < MOST_DEALT and asked < MOST_ASKED:
        first = min(waiting, key=lambda one: one.bound_s)
        waiting.remove(first)
        if first.bound_s >= best_s:
            break
        if isinstance(first, Drafts):
            priced += 1
            waiting += drafted_cells(question, first, (limit, best_s)) if priced <= MOST_PRICED else ()
            continue
        asked += 1
        tables = list(_dealt(question, first, limit, best_s))
        dealt += bool(tables)
        pieces = first.owner.pipeline.timed.pieces if isinstance(first.owner.pipeline, Pipeline) else None
        for table in tables:
            found.append(entered(question, table, pieces))
            best_s = min(best_s, fastest_s(found[-1]))
    return found


def _dealt(question: Question, cell: Cell, limit: float, best_s: float) -> Iterator[Estimate]:
    """The plans of a cell with their layers dealt anew, those that fit and could be faster than ``best_s``:
    with the prediction blocks beside the head and, where there are any, on the stage before it."""
    table = cell.owner.table.take(cell.rows)
    plans = table.plans
    last = int(plans.vpp[0] * plans.layout.pp[0]) - 1
    predicted = sum(run.count for run in question.model.blocks if run.block.mtp)
    span_s = min(cell.span_s, (best_s - cell.beside_s) / int(plans.num_micro[0]))
    rooms = stage_rooms(question, table, limit)
    for predicting in (last, last - 1) if predicted and last > 1 else (last,):
        # Where prediction blocks may stand elsewhere the rule's deal does not tell the room.
        moved = {last % plans.layout.pp[0], (last - 1) % plans.layout.pp[0]} if predicted else set()
        for row, of_owner in enumerate(cell.rows.tolist()):
            known = [room for room in rooms.of_plan(row) if room.place not in moved]
            dealing = _dealing(cell, of_owner, question.model.blocks, predicting)
            if not dealing.may_work_less(span_s):
                break
            text = fitting_layout(
                question,
                table.take(ints([row])),
                replace(dealing, rooms=tuple(known)),
                (span_s, limit),
            )
            if text is None:
                break
            if text:
                anew = repartitioned(question.model, question.job, table, text, question.cluster)
                yield anew.take(ints(np.flatnonzero(anew.needed_bytes <= limit)))
                break


def fitting_layout(
    question: Question, plan: Estimate, dealing: Dealing, limit: tuple[float, float]
) -> str | None:
    """The layout of the best deal of one plan that fits, "" where none does and None where none has a shorter
    span; ``limit`` is of that, and of bytes."""
    span_s, limit_bytes = limit
    below_s = span_s * (1.0 - SAME)
    for _ in range(MOST_CUTS):
        if _is_longer(dealing, below_s):
            return None
        layers = least_deal(dealing)
        if layers is None:
            break
        if dealing.span_s(layers) >= below_s:
            return None
        text = _written(question, layers, dealing)
        table = repartitioned(question.model, question.job, plan, text, question.cluster)
        if table.needed_bytes[0] <= limit_bytes:
            return text
        dealing = replace(dealing, rooms=(*dealing.rooms, *_cut(question, table, limit_bytes)))
    return ""


def _is_longer(dealing: Dealing, than_s: float) -> bool:
    """Whether there are deals, and it is plain without a program that none has a span shorter ``than_s``."""
    return (
        dealing.vpp == 1
        and least_chain_span_s(dealing, spare=CLOSE) >= than_s * (1.0 + ROUNDING)
        and bool(np.isfinite(least_chain_span_s(dealing, spare=-CLOSE)))
    )


def _cut(question: Question, table: Estimate, limit: float) -> tuple[Room, ...]:
    """The room of the stages of one plan that need more than the ``limit``, as told where they stand."""
    return stage_rooms(question, table, limit).of_short()


def _written(question: Question, layers: IntArray, dealing: Dealing) -> str:
    """The deal as a layout."""
    predicted = sum(run.count for run in question.model.blocks if run.block.mtp)
    return short_layout(layers.sum(axis=1).tolist(), predicted, dealing.predicting)


def _dealing(cell: Cell, row: int, runs: Sequence[BlockRun], predicting: int) -> Dealing:
    """What is dealt for one plan of a cell, with the prediction blocks on that virtual stage."""
    plans, pipeline = cell.owner.table.plans, cell.owner.pipeline
    assert isinstance(pipeline, Pipeline)
    at = cell.owner.table.layers.row[row]
    each_s = [float(one.forward.seconds[at] + one.backward.seconds[at]) for one in pipeline.timed.pieces]
    kinds = (len(each_s) - 2) // 2
    stages = int(plans.layout.pp[row] * plans.vpp[row])
    ends_s: FloatArray = np.zeros(stages)
    ends_s[0] += each_s[-2]
    ends_s[-1] += each_s[-1]
    for run, of_layer_s in zip(runs, each_s[kinds - len(runs) :], strict=False):
        ends_s[predicting] += run.count * of_layer_s if run.block.mtp else 0.0
    return Dealing(
        counts=tuple(run.count for run in runs if not run.block.mtp),
        work_s=tuple(each_s[kind] for kind in range(kinds) if not runs[kind % len(runs)].block.mtp),
        ends_s=ends_s,
        pp=int(plans.layout.pp[row]),
        vpp=int(plans.vpp[row]),
        num_micro=int(plans.num_micro[row]),
        again=int(plans.num_recompute_layers[row]) if kinds > len(runs) else 0,
        predicting=predicting,
        without=() if predicting == stages - 1 else (stages - 1,),
    )
