"""Plans that fit with other layers on their stages alone: as they are, or with less than all of their layers
run again.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from ops.recompute.layers import Recompute
from solver.contest import Pipeline
from solver.estimate import Estimate
from solver.memory.stage_memory import Tables
from solver.plans.constraints import constraint_rules
from solver.plans.rules import RULES, Rule
from solver.question import Question
from solver.refinements.deal_bounds import DealBounds
from solver.refinements.entering import keeps, laid_out
from solver.refinements.module_sets import sets_of
from solver.refinements.stage_room import rooms_of, stage_rooms, tables_of
from solver.refinements.tight import Tight, may_be_dealt
from solver.refinements.under_sets import UnderSets, running_again, under_sets
from spec.arrays import FloatArray, IntArray, ceil_div, ints
from spec.settings.constraints import Constraints


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Drafts:
    """Plans that fit with other layers on their stages alone, not priced yet, and a bound below the steps of all."""

    table: Estimate
    bound_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortOfRoom:
    """Plans that do not fit as they are, with their bounds, and what is asked of them with layers dealt
    otherwise: rules to keep, and bytes and seconds below which to stay."""

    plain: Estimate
    bounds: DealBounds
    rules: tuple[Rule, ...]
    limit: tuple[float, float]

    def bound_s(self, question: Question, tables: Tables, of: IntArray) -> FloatArray:
        """A bound below the steps of ``tables``, each the plan ``of`` those that do not fit, however their
        layers are dealt. What runs again only takes longer: layers as they are give a bound."""
        rooms = rooms_of(question, tables, self.limit[0])
        return self.bounds.take(of).bound_s(question, rooms, tables.plans)

    def drafts(self, question: Question, lighter: Estimate, of: IntArray) -> Iterator[Drafts]:
        """Those of a table that do not fit and could be faster; ``of`` as in bound_s."""
        limit_bytes, best_s = self.limit
        kept = keeps(question, lighter.plans, self.rules) & (lighter.needed_bytes > limit_bytes)
        rows = ints(np.flatnonzero(kept))
        if not rows.size:
            return
        table = lighter.take(rows)
        bound_s = self.bound_s(question, tables_of(question, table), of[rows])
        rest = ints(np.flatnonzero(bound_s < best_s))
        if rest.size:
            yield Drafts(table=table.take(rest), bound_s=float(bound_s[rest].min()))


def tight_drafts(
    question: Question, constraints: Constraints, tight: Tight, limit: tuple[float, float]
) -> Iterator[Drafts]:
    """Of plans that do not fit those that would with other layers on their stages and could be faster: as
    they are, with parts of all layers run again, with some layers of every chunk run again. ``limit`` is of
    bytes, and of seconds."""
    limit_bytes, best_s = limit
    one = tight.owner
    if not isinstance(one.pipeline, Pipeline) or not may_be_dealt(question, one.table.plans):
        return
    known = DealBounds.of(one, one.pipeline)
    rows = ints(np.flatnonzero(known.balanced_s < best_s))
    if rows.size:
        # Of all ways the one that keeps least is all layers run again.
        plain = one.table.take(rows)
        whole = replace(plain.plans, recompute=Recompute.FULL, recompute_modules=())
        table = laid_out(question, whole, plain)
        least_s = known.take(rows).bound_s(question, stage_rooms(question, table, limit_bytes), whole)
        rows = rows[least_s < best_s]
    if rows.size:
        short = ShortOfRoom(
            plain=one.table.take(rows),
            bounds=known.take(rows),
            rules=(*constraint_rules(constraints), *RULES),
            limit=limit,
        )
        yield from short.drafts(question, short.plain, ints(np.arange(len(rows))))
        yield from _under_sets(question, short)
        yield from _by_layers(question, short)


def _under_sets(question: Question, short: ShortOfRoom) -> Iterator[Drafts]:
    """With parts of all layers run again, in every way."""
    sets = sets_of(question, short.plain.layers.ops.blocks)
    if not sets:
        return
    tried = under_sets(question, short.plain, sets)
    bound_s = bounds_under_sets(question, short, tried)
    for place, of_set_s in enumerate(bound_s):
        rest = ints(np.flatnonzero(of_set_s < short.limit[1]))
        if rest.size:
            yield Drafts(table=tried.table(place, rest), bound_s=float(of_set_s[rest].min()))


def bounds_under_sets(question: Question, short: ShortOfRoom, tried: UnderSets) -> FloatArray:
    """Bounds of plans under each set, of shape (sets, plans); infinite where they fit, break a rule, or some
    set around this one leaves no deal that could be faster: more parts run again never need more memory
    (solver.refinements.module_sets)."""
    limit_bytes, best_s = short.limit
    kept = np.stack(
        [keeps(question, running_again(short.plain.plans, one), short.rules) for one in tried.sets]
    )
    wanted = kept & ~tried.fits(limit_bytes)
    bound_s = np.full(wanted.shape, np.inf)
    may = np.ones_like(wanted)
    for size in sorted({len(one) for one in tried.sets}, reverse=True):
        asked = np.zeros_like(wanted)
        for place, one in enumerate(tried.sets):
            if len(one) == size:
                around = [at for at, other in enumerate(tried.sets) if set(one) < set(other)]
                may[place] = may[around].all(axis=0)
                asked[place] = may[place] & wanted[place]
        rows = ints(np.flatnonzero(asked))
        if rows.size:
            bound_s.flat[rows] = short.bound_s(
                question, tried.tables.take(rows), ints(rows % wanted.shape[1])
            )
            may &= ~asked | (bound_s < best_s)
    return np.where(bound_s < best_s, bound_s, np.inf)


def _by_layers(question: Question, short: ShortOfRoom) -> Iterator[Drafts]:
    """With some layers of every chunk run again whole, in every number."""
    plans = short.plain.plans
    layers = np.full(len(plans), question.model.num_layers, dtype=np.int64)
    most = ceil_div(layers, plans.layout.pp * plans.vpp)
    if question.job.preset.recomputation.partial and most.max() > 1:
        again = np.tile(np.arange(1, most.max()), len(plans))
        which = np.repeat(np.arange(len(plans)), most.max() - 1)
        fewer = np.flatnonzero(again < most[which])
        partly = replace(plans.take(ints(which[fewer])), recompute=Recompute.BLOCK)
        table = laid_out(question, replace(partly, num_recompute_layers=ints(again[fewer])), short.plain)
        yield from short.drafts(question, table, ints(which[fewer]))
