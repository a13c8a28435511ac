"""Which plans are worth other layers on their stages: cells of plans alike, with a bound of what any deal of layers leaves."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from ops.recompute.layers import Recompute
from solver.contest import Entrants, Pipeline
from solver.pipeline.least_spans import least_spans_s
from solver.pipeline.spans import Hops
from solver.plans.constraints import constraint_rules
from solver.plans.plan_table import Plan, PlanTable
from solver.plans.rules import RULES
from solver.price import Sized, least_ends_s, steps_s
from solver.question import Question
from solver.refinements.entering import entered, keeps, laid_out
from solver.refinements.module_sets import sets_of
from solver.refinements.stage_room import StageRooms, stage_rooms
from solver.refinements.tight import Tight, may_be_dealt
from solver.refinements.under_sets import under_sets
from spec.arrays import FloatArray, IntArray, ceil_div, ints
from spec.settings.constraints import Constraints


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Cell:
    """Plans of a table that differ in what ZeRO shards alone, in order of their bounds; what the first of them takes a
    micro-batch at least, hops apart (infinite where it does not fit as it is), and a bound below its step however its layers
    are dealt; ``beside_s`` is what a step takes beside the spans of its micro-batches."""

    owner: Entrants
    rows: IntArray
    span_s: float
    beside_s: float
    bound_s: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Drafts:
    """Plans that fit with other layers on their stages alone, not priced yet, and a bound below the steps of all."""

    table: Sized
    bound_s: float


def fitting_cells(question: Question, one: Entrants, limit: tuple[float, float]) -> Iterator[Cell]:
    """The cells of plans that fit and could be faster with other layers on their stages; ``limit`` is of bytes, and of
    seconds."""
    if isinstance(one.pipeline, Pipeline) and may_be_dealt(question, one.table.plans):
        yield from _cells(question, one, limit, fits=True)


def drafted_cells(question: Question, drafts: Drafts, limit: tuple[float, float]) -> Iterator[Cell]:
    """The cells of drafts, priced; ``limit`` as in fitting_cells."""
    yield from _cells(question, entered(question, drafts.table), limit, fits=False)


def tight_drafts(
    question: Question, constraints: Constraints, tight: Tight, limit: tuple[float, float]
) -> Iterator[Drafts]:
    """Of plans that do not fit those that would with other layers on their stages and could be faster: as they are, with
    parts of all layers run again, with some layers of every chunk run again. ``limit`` is of bytes, and of seconds."""
    limit_bytes, best_s = limit
    one = tight.owner
    if not isinstance(one.pipeline, Pipeline) or not may_be_dealt(question, one.table.plans):
        return
    known = _Known.of(one, one.pipeline)
    rows = ints(np.flatnonzero(known.balanced_s < best_s))
    if rows.size:
        # Of all ways the one that keeps least is all layers run again.
        plain = one.table.take(rows)
        whole = replace(plain.plans, recompute=Recompute.FULL, recompute_modules=())
        table = laid_out(question, whole, plain)
        least_s = known.take(rows).bound_s(question, stage_rooms(question, table, limit_bytes), whole)
        rows = rows[least_s < best_s]
    rules = (*constraint_rules(constraints), *RULES)
    for lighter, of in _lighter(question, tight, rows) if rows.size else ():
        kept = ints(np.flatnonzero(keeps(question, lighter.plans, rules)))
        if not kept.size:
            continue
        table = lighter.take(kept)
        # What runs again only takes longer: layers as they are give a bound.
        bound_s = known.take(of[kept]).bound_s(
            question, stage_rooms(question, table, limit_bytes), table.plans
        )
        rest = np.flatnonzero((bound_s < best_s) & (table.needed_bytes > limit_bytes))
        if rest.size:
            yield Drafts(table=table.take(ints(rest)), bound_s=float(bound_s[rest].min()))


def _lighter(question: Question, tight: Tight, rows: IntArray) -> Iterator[tuple[Sized, IntArray]]:
    """Those plans, and every way in which less than all of their layers runs again, each with the plans' rows."""
    plain = tight.owner.table.take(rows)
    yield plain, rows
    sets = sets_of(question, plain.layers.ops.blocks)
    if sets:
        tried = under_sets(question, plain, sets)
        yield from ((tried.table(place, ints(np.arange(len(rows)))), rows) for place in range(len(sets)))
    plans = plain.plans
    layers = np.full(len(plans), question.model.num_layers, dtype=np.int64)
    most = ceil_div(layers, plans.layout.pp * plans.vpp)
    if question.job.preset.recomputation.partial and most.max() > 1:
        again = np.tile(np.arange(1, most.max()), len(plans))
        which = np.repeat(np.arange(len(plans)), most.max() - 1)
        fewer = np.flatnonzero(again < most[which])
        partly = replace(plans.take(ints(which[fewer])), recompute=Recompute.BLOCK)
        table = laid_out(question, replace(partly, num_recompute_layers=ints(again[fewer])), plain)
        yield table, rows[which[fewer]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    """Of every plan as the rule deals it: a bound below its step, one if all its stages were equally busy, what a
    micro-batch takes at least, and seconds of its pieces, of shape (pieces, N)."""

    least_s: FloatArray
    balanced_s: FloatArray
    span_s: FloatArray
    pieces_s: FloatArray

    @staticmethod
    def of(one: Entrants, pipeline: Pipeline) -> "_Known":
        """Bounds, also of plans whose pipelines were played: what was played must not decide what is dealt."""
        plans, stages, timed = one.table.plans, one.table.stages, pipeline.timed
        busy_s = timed.per_micro.seconds
        mean_s = np.add.reduceat(busy_s * stages.count, stages.starts) / plans.layout.pp
        spared_s = (np.maximum.reduceat(busy_s, stages.starts) - mean_s) * plans.num_micro
        free = Hops(seconds=np.zeros_like(timed.hops.seconds))
        total_s = busy_s * plans.num_micro[stages.plan]
        spans_s = least_spans_s(plans, stages, timed.chunk_passes, free, total_s)
        least_s = steps_s(one.table, timed, least_ends_s(one.table, timed))
        return _Known(
            least_s=least_s,
            balanced_s=np.where(plans.layout.pp > 1, least_s - spared_s, np.inf),
            span_s=np.maximum.reduceat(spans_s, stages.starts) / plans.num_micro,
            pieces_s=np.stack([each.forward.seconds + each.backward.seconds for each in timed.pieces])[
                :, one.table.layers.row
            ],
        )

    def take(self, rows: IntArray) -> "_Known":
        """The plans asked for."""
        return _Known(
            least_s=self.least_s[rows],
            balanced_s=self.balanced_s[rows],
            span_s=self.span_s[rows],
            pieces_s=self.pieces_s[:, rows],
        )

    def bound_s(self, question: Question, rooms: StageRooms, plans: PlanTable) -> FloatArray:
        """A bound below the step of every one of ``plans`` however layers of its longest run are dealt within ``rooms``."""
        runs = question.model.blocks
        dealt = [run.count for run in runs if not run.block.mtp]
        most = int(np.argmax(dealt))
        kind = [at for at, run in enumerate(runs) if not run.block.mtp][most]
        plain = kind + (len(self.pieces_s) - 2) // 2 - len(runs)
        again = plans.num_recompute_layers * plans.vpp
        each_s = self.pieces_s[(len(self.pieces_s) - 2) // 2 - len(runs) :]
        predicted_s = sum(run.count * each_s[at] for at, run in enumerate(runs) if run.block.mtp)
        seconds = np.stack([*self.pieces_s[[kind, plain, -2, -1]], predicted_s + 0.0 * self.least_s])
        span_s = rooms.least_span_s(most, dealt[most], again, seconds)
        with_rooms_s = self.least_s + (span_s - self.span_s) * plans.num_micro
        return np.maximum(self.balanced_s, with_rooms_s)


def _cells(question: Question, one: Entrants, limit: tuple[float, float], *, fits: bool) -> Iterator[Cell]:
    """The cells of a table that could be faster than the second of ``limit`` within the first, of bytes."""
    assert isinstance(one.pipeline, Pipeline)
    limit_bytes, best_s = limit
    plans = one.table.plans
    known = _Known.of(one, one.pipeline)
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
