"""Plans that do not fit as they are, and may once something of them runs again, waits on the host or stands
elsewhere.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ops.data_parallel.offloaded_modules import LAYER_INPUT
from ops.recompute.layers import Recompute
from solver.contest import Entrants
from solver.estimate import Estimate
from solver.plans.plan_table import PlanTable
from solver.plans.rules import RULES
from solver.question import Question
from solver.refinements.entering import chosen, entered, keeps, laid_out
from solver.refinements.stage_room import stage_rooms
from spec.arrays import IntArray, bools, ints

# A recomputed forward is at most a quarter of forward, forward again and twice as much backward.
LEAST_SHARE = 0.75
# Assumption: a block's 300 fastest plans of this kind hold its fastest eased one.
MOST_EASED = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Tight:
    """Plans of a block that do not fit, without recomputation, with bounds below their steps."""

    owner: Entrants

    def under(self, step_s: float) -> Estimate | None:
        """Those that could be faster than ``step_s``."""
        rows = np.flatnonzero(self.owner.step_s < step_s).astype(np.int64)
        return self.owner.table.take(rows) if rows.size else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fallen:
    """What a search knows when its blocks are priced: the plans that fit, and the rows of those without
    recomputation that do not, in their tables."""

    fitting: Sequence[Entrants]
    short: Sequence[tuple[Estimate, IntArray]]
    limit_bytes: float


def tight_plans(question: Question, fallen: Fallen, best_s: float) -> Iterator[Tight]:
    """Of every block those that could be faster than ``best_s``: where plans fit that run all layers again,
    these without, as no plan gains more than its recomputation takes, and those that fit so with inputs on the
    host alone; else, as where no layer may run again whole, those that parts run again, layers on the host or on
    other stages could make fit."""
    for one in fallen.fitting:
        if one.table.plans.recompute is Recompute.FULL:
            tight = _of_recomputed(question, one, best_s, fallen.limit_bytes)
            if tight is not None:
                yield tight
    recomputed = {
        (one.table.plans.strategy, one.table.plans.schedule)
        for one in fallen.fitting
        if one.table.plans.recompute is Recompute.FULL
    }
    for whole, fell in fallen.short:
        table = whole.take(fell)
        if (whole.plans.strategy, whole.plans.schedule) not in recomputed:
            rows = _may_fit(question, table, fallen.limit_bytes)
        elif sends_inputs(question):
            rows = _only_with_inputs(question, table, fallen.limit_bytes)
        else:
            continue
        if rows.size:
            yield from _fastest(question, chosen(question, table, rows), best_s)


def _of_recomputed(question: Question, whole: Entrants, best_s: float, limit: float) -> Tight | None:
    """Of fully recomputed plans those that do not fit without recomputation, but would then be faster than
    ``best_s``.
    """
    order = np.argsort(whole.step_s, kind="stable")[:MOST_EASED]
    rows = order[whole.step_s[order] * LEAST_SHARE < best_s].astype(np.int64)
    if not rows.size:
        return None
    plain = laid_out(question, replace(whole.table.plans.take(rows), recompute=Recompute.NONE))
    short = np.flatnonzero(plain.needed_bytes > limit).astype(np.int64)
    return Tight(owner=entered(question, chosen(question, plain, short))) if short.size else None


def _fastest(question: Question, table: Estimate, best_s: float) -> Iterator[Tight]:
    """The MOST_EASED of the plans with the least bounds."""
    least_s = entered(question, table).step_s
    order = np.argsort(least_s, kind="stable")[:MOST_EASED]
    rows = ints(order[least_s[order] < best_s])
    if rows.size:
        yield Tight(owner=entered(question, chosen(question, table, rows)))


def _may_fit(question: Question, table: Estimate, limit: float) -> IntArray:
    """The plans that could fit with every part run again that may, with all layers but one on the host, or
    with other layers on their stages, run again or not (what of that is asked for is left to those who do
    it)."""
    plans = table.plans
    fits = np.zeros(len(plans), dtype=np.bool_)
    layers, preset = question.model.num_layers, question.job.preset
    alone = np.flatnonzero(plans.layout.pp == 1)
    if preset.offload.activations and question.cluster.host is not None and layers > 1 and alone.size:
        some = plans.take(ints(alone))
        held = replace(some, layout=replace(some.layout, offloaded_layers=np.full(len(some), layers - 1)))
        fits[alone] = laid_out(question, held).needed_bytes <= limit
    if sends_inputs(question):
        fits |= laid_out(question, with_inputs_away(plans)).needed_bytes <= limit
    again = _parts(question, plans)
    if again:
        fits |= laid_out(question, replace(plans, recompute_modules=again)).needed_bytes <= limit
    staged = np.flatnonzero(plans.layout.pp > 1)
    if may_be_dealt(question, plans) and staged.size:
        some = plans.take(ints(staged))
        counts = [run.count for run in question.model.blocks if not run.block.mtp]
        # Of all ways the one that keeps least is all layers run again.
        for held in (some, replace(some, recompute=Recompute.FULL, recompute_modules=())):
            fits[staged] |= stage_rooms(question, laid_out(question, held), limit).may_hold(counts)
    return ints(np.flatnonzero(bools(fits)))


def sends_inputs(question: Question) -> bool:
    """Whether layers that run again may keep their inputs on the host."""
    preset = question.job.preset
    offered = LAYER_INPUT in preset.offload.modules and preset.recomputation.layers
    return offered and question.cluster.host is not None


def with_inputs_away(plans: PlanTable) -> PlanTable:
    """The plans with all layers run again, and their inputs on the host."""
    return replace(plans, recompute=Recompute.FULL, recompute_modules=(), offload_modules=(LAYER_INPUT,))


def _only_with_inputs(question: Question, table: Estimate, limit: float) -> IntArray:
    """The plans that do not fit with all layers run again, and do once their inputs wait on the host."""
    again = replace(table.plans, recompute=Recompute.FULL, recompute_modules=())
    here = laid_out(question, again).needed_bytes > limit
    away = laid_out(question, with_inputs_away(table.plans)).needed_bytes <= limit
    return ints(np.flatnonzero(here & away))


def _parts(question: Question, plans: PlanTable) -> tuple[str, ...]:
    """Every part that the framework runs again in the first of plans that keep its rules."""
    one = plans.take(ints([0]))
    names = question.job.preset.recomputation.modules
    return tuple(
        name for name in names if keeps(question, replace(one, recompute_modules=(name,)), RULES).all()
    )


# Assumption: hybrids that change their kind of layer more often are dealt by the rule: their program is no small one.
MOST_RUNS = 6


def may_be_dealt(question: Question, plans: PlanTable) -> bool:
    """Whether the framework takes layouts, and these plans are none yet, their stages a chain, their runs few."""
    schedule = plans.schedule
    return (
        question.job.preset.pipeline.uneven_chunks == "layout"
        and len(question.model.blocks) <= MOST_RUNS
        and not (schedule.route.turns or schedule.splits_backward or plans.stage_layout)
    )
