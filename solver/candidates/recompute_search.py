"""As little recomputation as memory asks for: plans between those that keep everything and those that run all again.

Of plans that do not fit as they are, those that could still win are tried in four ways, each where the framework has
it: parts of all layers run again, no more than fit; whole layers of every chunk, as few as fit
(solver.candidates.recompute_search); the saved activations of as few layers as fit wait on the host; or the inputs of
layers that run again do. More parts run again never take less time and never need more memory: of all sets of parts
only those need be tried from which none can be left out.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from ops.data_parallel.offload import LAYER_INPUT
from ops.op import Pass
from ops.recompute import CORE_ATTENTION, MODULES, Recompute, RecomputedModule
from solver.candidates.candidates import Candidates, candidates_of, fastest_s, with_own_layers
from solver.estimate import Estimate, estimate_memory
from solver.memory.stage import stage_memory
from solver.memory.terms import StageBytes, Tables
from solver.plans.constraints import constraint_rules
from solver.plans.layers import LayerBytes, LayerTable, RecomputePolicy
from solver.plans.plan_columns import plan_columns
from solver.plans.plan_table import PlanTable
from solver.plans.rules import RULES, Rule
from solver.problem.problem import Problem
from spec.arrays import BoolArray, IntArray, bools, ceil_div, ints
from spec.settings.constraints import Constraints

# A recomputed forward is at most a quarter of forward, forward again and twice as much backward.
LEAST_SHARE = 0.75
# Assumption: a block's 300 fastest plans of this kind hold its fastest one with less recomputation.
MOST_RELAXED = 300

Way = Callable[[Problem, Estimate, float], Iterator[Estimate]]
"""From plans that do not fit to those that do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySplit:
    """What a search knows when its blocks are estimated: the candidates that fit, and the rows of plans without
    recomputation that do not (``oom``), in their tables."""

    fitting: Sequence[Candidates]
    oom: Sequence[tuple[Estimate, IntArray]]
    limit_bytes: float


def relax_recompute(
    problem: Problem, constraints: Constraints, split: MemorySplit, incumbent_s: float
) -> tuple[list[Candidates], list[Candidates]]:
    """Plans between those without recomputation, which do not fit, and those with all of it: of each block the ones
    that could still be faster than ``incumbent_s``; and those that did not fit."""
    result: list[Candidates] = []
    short: list[Candidates] = []
    for tight in oom_candidates(problem, split, incumbent_s):
        short.append(tight)
        for way in WAYS:
            plain = _faster_than(tight, incumbent_s)
            if plain is None:
                break
            for table in way(problem, plain, split.limit_bytes):
                kept = keeping_rules(problem, constraints, table)
                if kept is not None:
                    result.append(candidates_of(problem, kept))
                    incumbent_s = min(incumbent_s, fastest_s(result[-1]))
    return result, short


def relaxed_on_stages(
    problem: Problem, constraints: Constraints, plain: Estimate, limit_bytes: float
) -> Iterator[Estimate]:
    """Plans with an explicit partition, which do not fit, with parts or some layers run again that let them."""
    for way in (_by_modules, _by_layers):
        for table in way(problem, plain, limit_bytes):
            kept = keeping_rules(problem, constraints, table)
            if kept is not None:
                yield kept


def _faster_than(one: Candidates, step_s: float) -> Estimate | None:
    """The plans that could be faster than that; None where none could."""
    rows = ints(np.flatnonzero(one.step_s < step_s))
    return one.table.take(rows) if rows.size else None


def _memory_of(problem: Problem, plans: PlanTable, like: Estimate | None = None) -> Estimate:
    return estimate_memory(problem.model, problem.job, plans, problem.cluster, like=like)


def _by_modules(problem: Problem, plain: Estimate, limit: float) -> Iterator[Estimate]:
    """With the sets of parts run again of which none can be left out."""
    sets = subsets_of(problem, plain.layers.ops.blocks)
    if any(CORE_ATTENTION in one for one in sets):
        # With the core alone, which the search tries by itself, plans fit that then need no set around it.
        sets = (*sets, (CORE_ATTENTION,))
    if not sets:
        return
    tried = recompute_subsets(problem, plain, sets)
    place = {one: at for at, one in enumerate(sets)}
    fits = tried.fits(limit)
    for one, rows in least_sets(sets, len(plain.plans), lambda one, rows: bools(fits[place[one], rows])):
        # The attention core alone is a recompute mode of the search.
        if one != (CORE_ATTENTION,):
            yield tried.table(place[one], rows)


def _by_layers(problem: Problem, plain: Estimate, limit: float) -> Iterator[Estimate]:
    """With the fewest layers of every chunk run again whole."""
    if not problem.job.preset.recomputation.partial:
        return
    last = plain

    def fits(plans: PlanTable) -> BoolArray:
        nonlocal last
        last = _memory_of(problem, plans, last)
        return bools(last.needed_bytes <= limit)

    partly = least_recomputed(plain.plans, problem.model.num_layers, fits)
    if partly is not None:
        yield _memory_of(problem, partly, last)


def _by_offload(problem: Problem, plain: Estimate, limit: float) -> Iterator[Estimate]:
    """With what the fewest layers save on the host, of plans without pipeline stages."""

    def fits(plans: PlanTable) -> BoolArray:
        return bools(_memory_of(problem, plans).needed_bytes <= limit)

    alone = np.flatnonzero(plain.plans.layout.pp == 1).astype(np.int64)
    if problem.job.preset.offload.activations and problem.cluster.host is not None and alone.size:
        offloaded = least_offloaded(plain.plans.take(alone), problem.model.num_layers, fits)
        if offloaded is not None:
            yield _memory_of(problem, offloaded)


def _by_inputs(problem: Problem, plain: Estimate, limit: float) -> Iterator[Estimate]:
    """With layers run again whole whose inputs wait on the host, all of them or the fewest of every chunk, where they
    do not fit with them on the device."""
    if not sends_inputs(problem):
        return

    def fits(plans: PlanTable) -> BoolArray:
        return bools(_memory_of(problem, plans).needed_bytes <= limit)

    def only_so(plans: PlanTable) -> IntArray:
        here = replace(plans, offload_modules=plain.plans.offload_modules)
        return ints(np.flatnonzero(fits(plans) & ~fits(here)))

    whole = with_inputs_away(plain.plans)
    partial = problem.job.preset.recomputation.partial
    partly = least_recomputed(whole, problem.model.num_layers, fits) if partial else None
    for plans in (whole, partly):
        rows = ints([]) if plans is None else only_so(plans)
        if plans is not None and rows.size:
            yield _memory_of(problem, plans.take(rows))


WAYS: tuple[Way, ...] = (_by_modules, _by_layers, _by_offload, _by_inputs)


def oom_candidates(problem: Problem, split: MemorySplit, incumbent_s: float) -> Iterator[Candidates]:
    """Returns of every block those that could be faster than ``incumbent_s``: where plans fit that run all layers
    again, these without, as no plan gains more than its recomputation takes, and those that fit so with inputs on the
    host alone; else, as where no layer may run again whole, those that parts run again, layers on the host or on other
    stages could make fit."""
    for one in split.fitting:
        if one.table.plans.recompute is Recompute.FULL:
            tight = _of_recomputed(problem, one, incumbent_s, split.limit_bytes)
            if tight is not None:
                yield tight
    recomputed = {
        (one.table.plans.strategy, one.table.plans.schedule)
        for one in split.fitting
        if one.table.plans.recompute is Recompute.FULL
    }
    for whole, rows_short in split.oom:
        table = whole.take(rows_short)
        if (whole.plans.strategy, whole.plans.schedule) not in recomputed:
            rows = _may_fit(problem, table, split.limit_bytes)
        elif sends_inputs(problem):
            rows = _only_with_inputs(problem, table, split.limit_bytes)
        else:
            continue
        if rows.size:
            yield from _fastest(problem, with_own_layers(problem, table, rows), incumbent_s)


def _of_recomputed(problem: Problem, whole: Candidates, incumbent_s: float, limit: float) -> Candidates | None:
    """Returns of fully recomputed plans those that do not fit without recomputation, but would then be faster than
    ``incumbent_s``.
    """
    order = np.argsort(whole.step_s, kind="stable")[:MOST_RELAXED]
    rows = order[whole.step_s[order] * LEAST_SHARE < incumbent_s].astype(np.int64)
    if not rows.size:
        return None
    plain = _memory_of(problem, replace(whole.table.plans.take(rows), recompute=Recompute.NONE))
    short = np.flatnonzero(plain.needed_bytes > limit).astype(np.int64)
    return candidates_of(problem, with_own_layers(problem, plain, short)) if short.size else None


def _fastest(problem: Problem, table: Estimate, incumbent_s: float) -> Iterator[Candidates]:
    """The MOST_RELAXED of the plans with the least bounds."""
    least_s = candidates_of(problem, table).step_s
    order = np.argsort(least_s, kind="stable")[:MOST_RELAXED]
    rows = ints(order[least_s[order] < incumbent_s])
    if rows.size:
        yield candidates_of(problem, with_own_layers(problem, table, rows))


def _may_fit(problem: Problem, table: Estimate, limit: float) -> IntArray:
    """The plans that could fit with every part run again that may, with all layers but one on the host, or
    with other layers on their stages, run again or not (what of that is asked for is left to those who do
    it)."""
    plans = table.plans
    fits = np.zeros(len(plans), dtype=np.bool_)
    layers, preset = problem.model.num_layers, problem.job.preset
    alone = np.flatnonzero(plans.layout.pp == 1)
    if preset.offload.activations and problem.cluster.host is not None and layers > 1 and alone.size:
        some = plans.take(ints(alone))
        held = replace(some, layout=replace(some.layout, offloaded_layers=np.full(len(some), layers - 1)))
        fits[alone] = _memory_of(problem, held).needed_bytes <= limit
    if sends_inputs(problem):
        fits |= _memory_of(problem, with_inputs_away(plans)).needed_bytes <= limit
    again = _parts(problem, plans)
    if again:
        fits |= _memory_of(problem, replace(plans, recompute_modules=again)).needed_bytes <= limit
    return ints(np.flatnonzero(bools(fits)))


def sends_inputs(problem: Problem) -> bool:
    """Returns whether layers that run again may keep their inputs on the host."""
    preset = problem.job.preset
    offered = LAYER_INPUT in preset.offload.modules and preset.recomputation.layers
    return offered and problem.cluster.host is not None


def with_inputs_away(plans: PlanTable) -> PlanTable:
    """The plans with all layers run again, and their inputs on the host."""
    return replace(plans, recompute=Recompute.FULL, recompute_modules=(), offload_modules=(LAYER_INPUT,))


def _only_with_inputs(problem: Problem, table: Estimate, limit: float) -> IntArray:
    """The plans that do not fit with all layers run again, and do once their inputs wait on the host."""
    again = replace(table.plans, recompute=Recompute.FULL, recompute_modules=())
    here = _memory_of(problem, again).needed_bytes > limit
    away = _memory_of(problem, with_inputs_away(table.plans)).needed_bytes <= limit
    return ints(np.flatnonzero(here & away))


def _parts(problem: Problem, plans: PlanTable) -> tuple[str, ...]:
    """Every part that the framework runs again in the first of plans that keep its rules."""
    one = plans.take(ints([0]))
    names = problem.job.preset.recomputation.modules
    return tuple(name for name in names if keeps(problem, replace(one, recompute_modules=(name,)), RULES).all())


def keeps(problem: Problem, plans: PlanTable, rules: tuple[Rule, ...]) -> BoolArray:
    """Returns which plans keep all of the rules."""
    kept = np.ones(len(plans), dtype=np.bool_)
    draft = plan_columns(problem.model, problem.job, problem.cluster, plans)
    for rule in rules:
        kept &= rule.keeps(draft)
    return kept


def keeping_rules(problem: Problem, constraints: Constraints, table: Estimate) -> Estimate | None:
    """The plans that keep all rules, and all constraints but those on memory; None where none does."""
    kept = keeps(problem, table.plans, (*constraint_rules(constraints), *RULES))
    if kept.all():
        return table
    return table.take(np.flatnonzero(kept).astype(np.int64)) if kept.any() else None


Done = tuple[int, int, bool]
"""A block, an operation of it by place, and whether it drops what it saved (else it runs again)."""


def subsets_of(problem: Problem, blocks: Sequence[Pass]) -> tuple[tuple[str, ...], ...]:
    """The sets that the question's framework runs again, with the attention core where it is worth it and has
    no name among them; the core alone is a recompute mode of every search, and is left out."""
    recomputation, flash = problem.job.preset.recomputation, problem.job.flash_attention
    sets = module_sets(blocks, recomputation.modules)
    if recomputation.selective != CORE_ATTENTION or flash:
        return sets
    return (*sets, *((CORE_ATTENTION, *chosen) for chosen in sets))


def module_sets(blocks: Sequence[Pass], names: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """Sets of ``names``, small ones first, no two of which run the same operations of ``blocks`` again and
    drop what the same ones saved; each of their members drops something. The empty set is left out."""
    # Parts do together what each of them does.
    each = {name: _done(blocks, name) for name in names}
    useful = [name for name in names if any(drops for *_, drops in each[name])]
    result: dict[frozenset[Done], tuple[str, ...]] = {frozenset(): ()}
    for size in range(1, len(useful) + 1):
        for chosen in combinations(useful, size):
            result.setdefault(frozenset().union(*(each[name] for name in chosen)), chosen)
    return tuple(one for one in result.values() if one)


def _done(blocks: Sequence[Pass], name: str) -> frozenset[Done]:
    """Returns what a part runs again and drops of every block."""
    return frozenset(
        (id(block), at, drops) for block in blocks for drops, places in _of_block(block, name) for at in places
    )


def _of_block(block: Pass, name: str) -> tuple[tuple[bool, list[int]], tuple[bool, list[int]]]:
    present = {op.key for op in block.forward}
    modules: list[RecomputedModule] = [one for one in MODULES[name] if one.where is None or one.where in present]
    again = [at for at, op in enumerate(block.forward) if any(op.is_within(one.again) for one in modules)]
    dropped = [
        at
        for at, op in enumerate(block.forward)
        if any(op.key in one.drops for one in modules) and op.saved_bytes.any()
    ]
    return (False, again), (True, dropped)


def least_sets(
    sets: Sequence[tuple[str, ...]], plans: int, fits: Callable[[tuple[str, ...], IntArray], BoolArray]
) -> Iterator[tuple[tuple[str, ...], IntArray]]:
    """Every set with the plans, of so many, that fit with it and with no set within it; ``fits`` says which
    of some plans fit with a set.

    More modules run again never take less time and never need more memory: a plan's fastest set is among
    these, and sets around one that fits are not asked about.
    """
    fitting: dict[tuple[str, ...], BoolArray] = {}
    for chosen in sorted(sets, key=len):
        asked = np.ones(plans, dtype=np.bool_)
        for smaller, fitted in fitting.items():
            if set(smaller) < set(chosen):
                asked &= ~fitted
        rows = np.flatnonzero(asked).astype(np.int64)
        if rows.size:
            rows = rows[fits(chosen, rows)]
            fitting[chosen] = bools(np.isin(np.arange(plans), rows))
        if rows.size:
            yield chosen, rows


Set = tuple[str, ...]
"""Names of parts, of ops.recompute or the attention core."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecomputeSubsets:
    """``plain`` plans, in which nothing runs again, under every one of ``sets``: the layers of each, and what memory is
    counted of, and memory, of all plans under the first, then under the second ..."""

    plain: Estimate
    sets: Sequence[Set]
    layers: Sequence[LayerTable]
    tables: Tables
    bytes: StageBytes

    def fits(self, limit_bytes: float) -> BoolArray:
        """Returns whether each plan's worst stage needs at most so much under each set, of shape (sets, plans)."""
        needed = np.maximum.reduceat(self.bytes.cost.needed_bytes, self.tables.stages.starts)
        return bools(needed <= limit_bytes).reshape(len(self.sets), len(self.plain.plans))

    def table(self, place: int, plans: IntArray) -> Estimate:
        """These plans under the set at that place."""
        rows = ints(plans + place * len(self.plain.plans))
        return Estimate(
            plans=with_recompute(self.plain.plans.take(plans), self.sets[place]),
            layers=self.layers[place].take(plans),
            stages=self.tables.stages.take(rows),
            bytes=self.bytes.take(self.tables.stages.rows(rows)),
        )


def recompute_subsets(problem: Problem, plain: Estimate, sets: Sequence[Set]) -> RecomputeSubsets:
    """The plans of ``plain`` under each of ``sets``, of which there is one at least."""
    layers = [
        plain.layers.with_policy(RecomputePolicy(*mode_and_modules(one), plain.layers.policy.offload)) for one in sets
    ]
    count, layouts = len(plain.plans), len(plain.layers.layout)
    every = ints(np.tile(np.arange(count), len(sets)))
    tables = Tables(
        plans=plain.plans.take(every),
        kinds=[LayerBytes.stacked(kind) for kind in zip(*(one.bytes for one in layers), strict=True)],
        row=ints(plain.layers.row[every] + np.repeat(np.arange(len(sets)), count) * layouts),
        stages=plain.stages.take(every),
        cluster=problem.cluster,
    )
    result = stage_memory(problem.model, problem.job, tables)
    return RecomputeSubsets(plain=plain, sets=sets, layers=layers, tables=tables, bytes=result)


def with_recompute(plain: PlanTable, chosen: Set) -> PlanTable:
    """The plans with the parts of a set run again."""
    mode, modules = mode_and_modules(chosen)
    return replace(plain, recompute=mode, recompute_modules=modules)


def mode_and_modules(chosen: Set) -> tuple[Recompute, Set]:
    """The recompute mode and the modules that a set stands for."""
    mode = Recompute.SELECTIVE if CORE_ATTENTION in chosen else Recompute.NONE
    return mode, tuple(name for name in chosen if name != CORE_ATTENTION)


Fits = Callable[[PlanTable], BoolArray]


def least_recomputed(plain: PlanTable, num_layers: int, fits: Fits) -> PlanTable | None:
    """``plain`` plans, which do not fit, with the fewest recomputed layers a chunk that do; those that fit
    only with all are left out.

    ``fits`` says which rows of a table fit.
    """
    plans = replace(plain, recompute=Recompute.BLOCK)
    most: IntArray = ceil_div(np.full(len(plans), num_layers, dtype=np.int64), plans.layout.pp * plans.vpp)
    fewest = fewest_layers(most, lambda layers: fits(replace(plans, num_recompute_layers=layers)))
    fewer = np.flatnonzero(fewest < most).astype(np.int64)
    return replace(plans, num_recompute_layers=fewest).take(fewer) if fewer.size else None


def least_offloaded(plain: PlanTable, num_layers: int, fits: Fits) -> PlanTable | None:
    """``plain`` plans, which do not fit, with the saved activations of the fewest layers on the host that do;
    at least one layer stays."""
    most = np.full(len(plain), num_layers, dtype=np.int64)

    def offloading(layers: IntArray) -> PlanTable:
        return replace(plain, layout=replace(plain.layout, offloaded_layers=layers))

    fewest = fewest_layers(most, lambda layers: fits(offloading(layers)))
    fewer = np.flatnonzero(fewest < most).astype(np.int64)
    return offloading(fewest).take(fewer) if fewer.size else None


def fewest_layers(most: IntArray, enough: Callable[[IntArray], BoolArray]) -> IntArray:
    """The fewest layers that are ``enough``, of 1 to ``most``, which is where fewer are not; the range is
    halved until it is one layer wide, as more layers never need more memory."""
    low, high = np.zeros_like(most), most
    while np.any(high - low > 1):
        middle: IntArray = (low + high) // 2
        fits = enough(middle)
        low, high = np.where(fits, low, middle), np.where(fits, middle, high)
    return high
