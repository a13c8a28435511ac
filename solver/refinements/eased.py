"""Plans that fit only with every layer run again, with as little given up as memory asks for instead.

Three ways, each where the framework has it: parts of all layers run again, no more than fit (solver.refinements.module_sets);
whole layers of every chunk, as few as fit (solver.plans.partial_recompute); the saved activations of as few layers as fit
wait on the host.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from ops.recompute.layers import CORE_ATTENTION, Recompute
from solver.contest import Contest, Entrants
from solver.memory.device_memory import limit_bytes
from solver.plans.partial_recompute import least_offloaded, least_recomputed
from solver.plans.plan_table import PlanTable
from solver.price import Sized
from solver.question import Question
from solver.refinements.entering import chosen, entered, fastest_s, laid_out, wanted
from solver.refinements.module_sets import least_sets, module_sets
from solver.refinements.under_sets import under_sets
from spec.arrays import BoolArray, FloatArray, bools
from spec.settings.constraints import Constraints

# A recomputed forward is at most a quarter of forward, forward again and twice as much backward.
LEAST_SHARE = 0.75
# Assumption: a block's 300 fastest fully recomputed plans hold its fastest eased one.
MOST_EASED = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Tight:
    """Plans that fit with every layer run again and not without: as they are without, and bounds below their steps."""

    plain: Sized
    least_s: FloatArray

    def under(self, step_s: float) -> Sized | None:
        """Those that could be faster than ``step_s``."""
        rows = np.flatnonzero(self.least_s < step_s).astype(np.int64)
        return self.plain.take(rows) if rows.size else None


def eased(question: Question, constraints: Constraints, contest: Contest) -> list[Entrants]:
    """Plans between those without recomputation, which do not fit, and those with all of it: of each block the ones
    that could still win, as no plan gains more than its recomputation takes."""
    limit = limit_bytes(question.cluster, constraints)
    best_s = float(contest.step_s[contest.played].min())
    found: list[Entrants] = []
    for one in contest.entrants:
        # All ways run the same layers, most of whose operations are the very same.
        asked = replace(question, pricer=question.pricer.remembering())
        tight = _tight(asked, one, best_s, limit)
        if tight is None:
            continue
        for way in (_by_modules, _by_layers, _by_offload):
            plain = tight.under(best_s)
            if plain is None:
                break
            for table in way(asked, plain, limit):
                kept = wanted(asked, constraints, table)
                if kept is not None:
                    found.append(entered(asked, kept))
                    best_s = min(best_s, fastest_s(found[-1]))
    return found


def _tight(question: Question, whole: Entrants, best_s: float, limit: float) -> Tight | None:
    """Of fully recomputed plans those that do not fit without recomputation, but would then be faster than ``best_s``."""
    plans = whole.table.plans
    if plans.recompute is not Recompute.FULL:
        return None
    order = np.argsort(whole.step_s, kind="stable")[:MOST_EASED]
    rows = order[whole.step_s[order] * LEAST_SHARE < best_s].astype(np.int64)
    if not rows.size:
        return None
    plain = laid_out(question, replace(plans.take(rows), recompute=Recompute.NONE))
    short = np.flatnonzero(plain.needed_bytes > limit).astype(np.int64)
    if not short.size:
        return None
    bounded = entered(question, chosen(question, plain, short))
    return Tight(plain=bounded.table, least_s=bounded.step_s)


def _by_modules(question: Question, plain: Sized, limit: float) -> Iterator[Sized]:
    """With the sets of parts run again of which none can be left out."""
    recomputation, flash = question.job.preset.recomputation, question.job.flash_attention
    sets = module_sets(plain.layers.ops.blocks, recomputation.modules)
    if recomputation.selective == CORE_ATTENTION and not flash:
        sets = (*sets, (CORE_ATTENTION,), *((CORE_ATTENTION, *one) for one in sets))
    if not sets:
        return
    tried = under_sets(question, plain, sets)
    place = {one: at for at, one in enumerate(sets)}
    fits = tried.fits(limit)
    for one, rows in least_sets(sets, len(plain.plans), lambda one, rows: bools(fits[place[one], rows])):
        # The attention core alone is a recompute mode of the search.
        if one != (CORE_ATTENTION,):
            yield tried.table(place[one], rows)


def _by_layers(question: Question, plain: Sized, limit: float) -> Iterator[Sized]:
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


def _by_offload(question: Question, plain: Sized, limit: float) -> Iterator[Sized]:
    """With what the fewest layers save on the host, of plans without pipeline stages."""

    def fits(plans: PlanTable) -> BoolArray:
        return bools(laid_out(question, plans).needed_bytes <= limit)

    alone = np.flatnonzero(plain.plans.layout.pp == 1).astype(np.int64)
    if question.job.preset.offload.activations and question.cluster.host is not None and alone.size:
        offloaded = least_offloaded(plain.plans.take(alone), question.model.num_layers, fits)
        if offloaded is not None:
            yield laid_out(question, offloaded)
