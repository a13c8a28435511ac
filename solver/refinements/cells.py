"""Which plans are worth other layers on their stages: cells of plans alike, with a bound of what any deal of
layers leaves.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from solver.contest import Entrants, Pipeline
from solver.plans.plan_table import Plan
from solver.question import Question
from solver.refinements.deal_bounds import DealBounds
from solver.refinements.entering import entered
from solver.refinements.stage_room import stage_rooms
from solver.refinements.tight import may_be_dealt
from solver.refinements.tight_drafts import Drafts
from spec.arrays import IntArray, ints


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Cell:
    """Plans of a table that differ in what ZeRO shards alone, in order of their bounds; what the first of
    them takes a micro-batch at least, hops apart (infinite where it does not fit as it is), and a bound below
    its step however its layers are dealt; ``beside_s`` is what a step takes beside the spans of its
    micro-batches."""

    owner: Entrants
    rows: IntArray
    span_s: float
    beside_s: float
    bound_s: float


def fitting_cells(question: Question, one: Entrants, limit: tuple[float, float]) -> Iterator[Cell]:
    """The cells of plans that fit and could be faster with other layers on their stages; ``limit`` is of bytes, and of
    seconds."""
    if isinstance(one.pipeline, Pipeline) and may_be_dealt(question, one.table.plans):
        yield from _cells(question, one, limit, fits=True)


def drafted_cells(question: Question, drafts: Drafts, limit: tuple[float, float]) -> Iterator[Cell]:
    """The cells of drafts, priced; ``limit`` as in fitting_cells."""
    yield from _cells(question, entered(question, drafts.table), limit, fits=False)


def _cells(question: Question, one: Entrants, limit: tuple[float, float], *, fits: bool) -> Iterator[Cell]:
    """The cells of a table that could be faster than the second of ``limit`` within the first, of bytes."""
    assert isinstance(one.pipeline, Pipeline)
    limit_bytes, best_s = limit
    plans = one.table.plans
    known = DealBounds.of(one, one.pipeline)
    rows = ints(np.flatnonzero(known.balanced_s < best_s))
    alike: dict[Plan, list[int]] = {}
    for row in rows[np.argsort(known.balanced_s[rows], kind="stable")].tolist():
        alike.setdefault(replace(plans.plan(row), zero_size=0, zero_stage=0), []).append(row)
    if not alike:
        return
    # What needs least memory of those alike bounds all of them.
    leanest = ints([min(same, key=lambda row: float(one.needed_bytes[row])) for same in alike.values()])
    table = one.table.take(leanest)
    bounds_s = known.take(ints([same[0] for same in alike.values()])).bound_s(
        question, stage_rooms(question, table, limit_bytes), table.plans
    )
    for same, bound_s in zip(alike.values(), bounds_s.tolist(), strict=True):
        if bound_s < best_s:
            span_s = float(known.span_s[same[0]])
            yield Cell(
                owner=one,
                rows=ints(same),
                span_s=span_s if fits else np.inf,
                beside_s=float(known.least_s[same[0]]) - span_s * int(plans.num_micro[same[0]]),
                bound_s=bound_s,
            )
