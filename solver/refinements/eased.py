"""Plans that fit only with every layer run again, with as little given up as memory asks for instead.

Four ways, each where the framework has it: parts of all layers run again, no more than fit
(solver.refinements.module_sets); whole layers of every chunk, as few as fit (solver.plans.partial_recompute);
the saved activations of as few layers as fit wait on the host; or the inputs of layers that run again do.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from ops.recompute.layers import CORE_ATTENTION
from solver.contest import Entrants
from solver.estimate import Estimate
from solver.plans.partial_recompute import least_offloaded, least_recomputed
from solver.plans.plan_table import PlanTable
from solver.question import Question
from solver.refinements.entering import entered, fastest_s, laid_out, wanted
from solver.refinements.module_sets import least_sets, sets_of
from solver.refinements.tight import Fallen, Tight, sends_inputs, tight_plans, with_inputs_away
from solver.refinements.under_sets import under_sets
from spec.arrays import BoolArray, IntArray, bools, ints
from spec.settings.constraints import Constraints

Way = Callable[[Question, Estimate, float], Iterator[Estimate]]
"""From plans that do not fit to those that do."""


def eased(
    question: Question, constraints: Constraints, fallen: Fallen, best_s: float
) -> tuple[list[Entrants], list[Tight]]:
    """Plans between those without recomputation, which do not fit, and those with all of it: of each block the ones
    that could still be faster than ``best_s``; and those that did not fit."""
    found: list[Entrants] = []
    short: list[Tight] = []
    for tight in tight_plans(question, fallen, best_s):
        short.append(tight)
        for way in WAYS:
            plain = tight.under(best_s)
            if plain is None:
                break
            for table in way(question, plain, fallen.limit_bytes):
                kept = wanted(question, constraints, table)
                if kept is not None:
                    found.append(entered(question, kept))
                    best_s = min(best_s, fastest_s(found[-1]))
    return found, short


def _by_modules(question: Question, plain: Estimate, limit: float) -> Iterator[Estimate]:
    """With the sets of parts run again of which none can be left out."""
    sets = sets_of(question, plain.layers.ops.blocks)
    if any(CORE_ATTENTION in one for one in sets):
        # With the core alone, which the search tries by itself, plans fit that then need no set around it.
        sets = (*sets, (CORE_ATTENTION,))
    if not sets:
        return
    tried = under_sets(question, plain, sets)
    place = {one: at for at, one in enumerate(sets)}
    fits = tried.fits(limit)
    for one, rows in least_sets(sets, len(plain.plans), lambda one, rows: bools(fits[place[one], rows])):
        # The attention core alone is a recompute mode of the search.
        if one != (CORE_ATTENTION,):
            yield tried.table(place[one], rows)


def _by_layers(question: Question, plain: Estimate, limit: float) -> Iterator[Estimate]:
    """With the fewest layers of every chunk run again whole."""
    if not question.job.preset.recomputation.partial:
        return
    last = plain

    def fits(plans: PlanTable) -> BoolArray:
        nonlocal last
        last = laid_out(question, plans, last)
        return bools(last.needed_bytes <= limit)

    partly = least_recomputed(plain.plans, question.model.num_layers, fits)
    if partly is not None:
        yield laid_out(question, partly, last)


def _by_offload(question: Question, plain: Estimate, limit: float) -> Iterator[Estimate]:
    """With what the fewest layers save on the host, of plans without pipeline stages."""

    def fits(plans: PlanTable) -> BoolArray:
        return bools(laid_out(question, plans).needed_bytes <= limit)

    alone = np.flatnonzero(plain.plans.layout.pp == 1).astype(np.int64)
    if question.job.preset.offload.activations and question.cluster.host is not None and alone.size:
        offloaded = least_offloaded(plain.plans.take(alone), question.model.num_layers, fits)
        if offloaded is not None:
            yield laid_out(question, offloaded)


def _by_inputs(question: Question, plain: Estimate, limit: float) -> Iterator[Estimate]:
    """With layers run again whole whose inputs wait on the host, all of them or the fewest of every chunk, where they do
    not fit with them on the device."""
    if not sends_inputs(question):
        return

    def fits(plans: PlanTable) -> BoolArray:
        return bools(laid_out(question, plans).needed_bytes <= limit)

    def only_so(plans: PlanTable) -> IntArray:
        here = replace(plans, offload_modules=plain.plans.offload_modules)
        return ints(np.flatnonzero(fits(plans) & ~fits(here)))

    whole = with_inputs_away(plain.plans)
    partial = question.job.preset.recomputation.partial
    partly = least_recomputed(whole, question.model.num_layers, fits) if partial else None
    for plans in (whole, partly):
        rows = ints([]) if plans is None else only_so(plans)
        if plans is not None and rows.size:
            yield laid_out(question, plans.take(rows))


WAYS: tuple[Way, ...] = (_by_modules, _by_layers, _by_offload, _by_inputs)
