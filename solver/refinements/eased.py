"""Plans that fit only with every layer run again, with as little given up as memory asks for instead.

Three ways, each where the framework has it: parts of all layers run again, no more than fit (solver.refinements.module_sets);
whole layers of every chunk, as few as fit (solver.plans.partial_recompute); the saved activations of as few layers as fit
wait on the host.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ops.op import Piece
from ops.recompute.layers import CORE_ATTENTION, Recompute
from solver.contest import Contest, Entrants
from solver.memory.device_memory import limit_bytes
from solver.plans.partial_recompute import Fits, least_offloaded, least_recomputed
from solver.plans.plan_table import PlanTable
from solver.question import Question
from solver.refinements.entering import entered, fastest_s, needed_bytes, wanted
from solver.refinements.module_sets import least_sets, module_sets
from spec.arrays import BoolArray, FloatArray, IntArray, bools
from spec.settings.constraints import Constraints

# A recomputed forward is at most a quarter of forward, forward again and twice as much backward.
LEAST_SHARE = 0.75
# Assumption: a block's 300 fastest fully recomputed plans hold its fastest eased one.
MOST_EASED = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Tight:
    """Plans that fit with every layer run again and not without: as they are without, their layers so, and bounds below
    their steps."""

    plain: PlanTable
    blocks: Sequence[Piece]
    least_s: FloatArray

    def under(self, step_s: float) -> PlanTable | None:
        """Those that could be faster than ``step_s``."""
        rows = np.flatnonzero(self.least_s < step_s).astype(np.int64)
        return self.plain.take(rows) if rows.size else None


def eased(question: Question, constraints: Constraints, contest: Contest) -> list[Entrants]:
    """Plans between those without recomputation, which do not fit, and those with all of it: of each block the ones
    that could still win, as no plan gains more than its recomputation takes."""
    limit = limit_bytes(question.cluster, constraints)
    best_s = float(contest.step_s[contest.played].min())

    def fits(plans: PlanTable) -> BoolArray:
        return bools(needed_bytes(question, plans) <= limit)

    found: list[Entrants] = []
    for one in contest.entrants:
        tight = _tight(question, one, best_s, fits)
        if tight is None:
            continue
        for way in (_by_modules, _by_layers, _by_offload):
            plain = tight.under(best_s)
            if plain is None:
                break
            for plans in way(question, tight.blocks, plain, fits):
                kept = wanted(question, constraints, plans)
                if kept is not None:
                    found.append(entered(question, kept))
                    best_s = min(best_s, fastest_s(found[-1]))
    return found


def _tight(question: Question, whole: Entrants, best_s: float, fits: Fits) -> Tight | None:
    """Of fully recomputed plans those that do not fit without recomputation, but would then be faster than ``best_s``."""
    plans = whole.table.plans
    if plans.recompute is not Recompute.FULL:
        return None
    order = np.argsort(whole.step_s, kind="stable")[:MOST_EASED]
    rows = order[whole.step_s[order] * LEAST_SHARE < best_s].astype(np.int64)
    if not rows.size:
        return None
    plain = replace(plans.take(rows), recompute=Recompute.NONE)
    short = np.flatnonzero(~fits(plain)).astype(np.int64)
    if not short.size:
        return None
    bounded = entered(question, plain.take(short))
    return Tight(plain=bounded.table.plans, blocks=bounded.table.layers.ops.blocks, least_s=bounded.step_s)


def _by_modules(
    question: Question, blocks: Sequence[Piece], plain: PlanTable, fits: Fits
) -> Iterator[PlanTable]:
    """With the sets of parts run again of which none can be left out."""
    recomputation, flash = question.job.preset.recomputation, question.job.flash_attention
    sets = module_sets(blocks, recomputation.modules)
    if recomputation.selective == CORE_ATTENTION and not flash:
        sets = (*sets, (CORE_ATTENTION,), *((CORE_ATTENTION, *chosen) for chosen in sets))

    def fitting(chosen: tuple[str, ...], rows: IntArray) -> BoolArray:
        return fits(_running_again(plain.take(rows), chosen))

    for chosen, rows in least_sets(sets, len(plain), fitting):
        # The attention core alone is a recompute mode of the search.
        if chosen != (CORE_ATTENTION,):
            yield _running_again(plain.take(rows), chosen)


def _running_again(plain: PlanTable, chosen: tuple[str, ...]) -> PlanTable:
    mode = Recompute.SELECTIVE if CORE_ATTENTION in chosen else Recompute.NONE
    modules = tuple(name for name in chosen if name != CORE_ATTENTION)
    return replace(plain, recompute=mode, recompute_modules=modules)


def _by_layers(
    question: Question, blocks: Sequence[Piece], plain: PlanTable, fits: Fits
) -> Iterator[PlanTable]:
    """With the fewest layers of every chunk run again whole."""
    del blocks
    if question.job.preset.recomputation.partial:
        partly = least_recomputed(plain, question.model.num_layers, fits)
        if partly is not None:
            yield partly


def _by_offload(
    question: Question, blocks: Sequence[Piece], plain: PlanTable, fits: Fits
) -> Iterator[PlanTable]:
    """With what the fewest layers save on the host, of plans without pipeline stages."""
    del blocks
    alone = np.flatnonzero(plain.layout.pp == 1).astype(np.int64)
    if question.job.preset.offload.activations and question.cluster.host is not None and alone.size:
        offloaded = least_offloaded(plain.take(alone), question.model.num_layers, fits)
        if offloaded is not None:
            yield offloaded
