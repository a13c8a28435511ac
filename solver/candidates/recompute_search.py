"""As little recomputation as memory requires: plans between those without recomputation and those with all of it.

Plans that do not fit, but could still win, are relaxed in four ways, each where the framework supports it:

    modules     recompute some modules of all layers, no more than necessary
    layers      recompute whole layers of every chunk, as few as necessary
    offload     keep the activations of layers on the host, of as few as necessary
    inputs      recompute whole layers, and keep their inputs on the host

Recomputing more modules never takes less time and never needs more memory. So of all sets of modules only the minimal
ones are tried: those from which none can be left out."""

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

# A recomputed forward is at most a quarter of a fully recomputed step: forward, forward again, and twice as much
# backward.
LEAST_SHARE = 0.75
# Assumption: a block's 300 fastest plans of this kind include its fastest one with less recomputation.
MOST_RELAXED = 300

Relaxation = Callable[[Problem, Estimate, float], Iterator[Estimate]]
"""Yields plans that fit, from plans that do not; arguments are the problem, these plans and the limit in bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySplit:
    """The plans of a search when its blocks are estimated: candidates that fit, and rows of plans without recomputation
    that do not (``oom``), in their tables."""

    fitting: Sequence[Candidates]
    oom: Sequence[tuple[Estimate, IntArray]]
    limit_bytes: float


def relax_recompute(
    problem: Problem, constraints: Constraints, split: MemorySplit, incumbent_s: float
) -> tuple[list[Candidates], list[Candidates]]:
    """Returns plans with just enough recomputation or offload to fit, of those that could be faster than
    ``incumbent_s``; and the plans without either that they come from."""
    result: list[Candidates] = []
    oom: list[Candidates] = []
    for candidates in oom_candidates(problem, split, incumbent_s):
        oom.append(candidates)
        for relax in RELAXATIONS:
            # The incumbent improves on the way, so fewer plans are left for each relaxation.
            plain = _faster_than(candidates, incumbent_s)
            if plain is None:
                break
            for table in relax(problem, plain, split.limit_bytes):
                allowed = filter_by_rules(problem, constraints, table)
                if allowed is not None:
                    result.append(candidates_of(problem, allowed))
                    incumbent_s = min(incumbent_s, fastest_s(result[-1]))
    return result, oom


def relax_on_stages(
    problem: Problem, constraints: Constraints, plain: Estimate, limit_bytes: float
) -> Iterator[Estimate]:
    """Yields plans with an explicit partition, which do not fit, with the recomputed modules or layers that they
    need."""
    for relax in (_by_modules, _by_layers):
        for table in relax(problem, plain, limit_bytes):
            allowed = filter_by_rules(problem, constraints, table)
            if allowed is not None:
                yield allowed


def _faster_than(one: Candidates, step_s: float) -> Estimate | None:
    """Returns the plans that could be faster than ``step_s``; None where none could."""
    rows = ints(np.flatnonzero(one.step_s < step_s))
    return one.table.take(rows) if rows.size else None


def _memory_of(problem: Problem, plans: PlanTable, like: Estimate | None = None) -> Estimate:
    return estimate_memory(problem.model, problem.job, plans, problem.cluster, like=like)


def _by_modules(problem: Problem, plain: Estimate, limit: float) -> Iterator[Estimate]:
    """Yields plans with the minimal sets of modules recomputed."""
    sets = recompute_sets(problem, plain.layers.ops.blocks)
    if any(CORE_ATTENTION in one for one in sets):
        # The attention core alone is a recompute mode that the search tries by itself; plans that fit with it need no
        # set that contains it.
        sets = (*sets, (CORE_ATTENTION,))
    if not sets:
        return
    subsets = recompute_subsets(problem, plain, sets)
    place = {one: at for at, one in enumerate(sets)}
    fits = subsets.fits(limit)
    for one, rows in minimal_sets(sets, len(plain.plans), lambda one, rows: bools(fits[place[one], rows])):
        if one != (CORE_ATTENTION,):
            yield subsets.table(place[one], rows)


def _by_layers(problem: Problem, plain: Estimate, limit: float) -> Iterator[Estimate]:
    """Yields plans with the fewest layers of every chunk recomputed whole."""
    if not problem.job.preset.recomputation.partial:
        return
    # Estimates of the bisection share layers and stages, each with the one before.
    last = plain

    def fits(plans: PlanTable) -> BoolArray:
        nonlocal last
        last = _memory_of(problem, plans, last)
        return bools(last.needed_bytes <= limit)

    partial = fewest_recompute_layers(plain.plans, problem.model.num_layers, fits)
    if partial is not None:
        yield _memory_of(problem, partial, last)


def _by_offload(problem: Problem, plain: Estimate, limit: float) -> Iterator[Estimate]:
    """Yields plans without pipeline stages with the activations of the fewest layers on the host."""

    def fits(plans: PlanTable) -> BoolArray:
        return bools(_memory_of(problem, plans).needed_bytes <= limit)

    single_stage = np.flatnonzero(plain.plans.layout.pp == 1).astype(np.int64)
    if problem.job.preset.offload.activations and problem.cluster.host is not None and single_stage.size:
        plans = fewest_offload_layers(plain.plans.take(single_stage), problem.model.num_layers, fits)
        if plans is not None:
            yield _memory_of(problem, plans)


def _by_inputs(problem: Problem, plain: Estimate, limit: float) -> Iterator[Estimate]:
    """Yields plans with layers recomputed whole and their inputs on the host, all layers or the fewest of every chunk,
    where they do not fit with the inputs on the device."""
    if not offloads_inputs(problem):
        return

    def fits(plans: PlanTable) -> BoolArray:
        return bools(_memory_of(problem, plans).needed_bytes <= limit)

    def needs_offload(plans: PlanTable) -> IntArray:
        on_device = replace(plans, offload_modules=plain.plans.offload_modules)
        return ints(np.flatnonzero(fits(plans) & ~fits(on_device)))

    full = with_input_offload(plain.plans)
    has_partial = problem.job.preset.recomputation.partial
    partial = fewest_recompute_layers(full, problem.model.num_layers, fits) if has_partial else None
    for plans in (full, partial):
        rows = ints([]) if plans is None else needs_offload(plans)
        if plans is not None and rows.size:
            yield _memory_of(problem, plans.take(rows))


RELAXATIONS: tuple[Relaxation, ...] = (_by_modules, _by_layers, _by_offload, _by_inputs)


def oom_candidates(problem: Problem, split: MemorySplit, incumbent_s: float) -> Iterator[Candidates]:
    """Yields the plans of every block that do not fit, could fit with less than full recomputation, and could then be
    faster than ``incumbent_s``."""
    # Where plans fit with full recomputation their step bounds what they gain without it.
    for one in split.fitting:
        if one.table.plans.recompute is Recompute.FULL:
            candidates = _without_recompute(problem, one, incumbent_s, split.limit_bytes)
            if candidates is not None:
                yield candidates
    full_blocks = {
        (one.table.plans.strategy, one.table.plans.schedule)
        for one in split.fitting
        if one.table.plans.recompute is Recompute.FULL
    }
    for block, oom_rows in split.oom:
        table = block.take(oom_rows)
        if (block.plans.strategy, block.plans.schedule) not in full_blocks:
            # No plan of the block fits with full recomputation, or the framework has none.
            rows = _may_fit(problem, table, split.limit_bytes)
        elif offloads_inputs(problem):
            # Others of the block fit so; these only with their inputs on the host besides.
            rows = _fit_with_input_offload(problem, table, split.limit_bytes)
        else:
            continue
        if rows.size:
            yield from _fastest(problem, with_own_layers(problem, table, rows), incumbent_s)


def _without_recompute(problem: Problem, full: Candidates, incumbent_s: float, limit: float) -> Candidates | None:
    """Returns the plans of ``full`` recomputation without it, of those that do not fit then, but could be faster than
    ``incumbent_s``."""
    order = np.argsort(full.step_s, kind="stable")[:MOST_RELAXED]
    rows = order[full.step_s[order] * LEAST_SHARE < incumbent_s].astype(np.int64)
    if not rows.size:
        return None
    plain = _memory_of(problem, replace(full.table.plans.take(rows), recompute=Recompute.NONE))
    oom = np.flatnonzero(plain.needed_bytes > limit).astype(np.int64)
    return candidates_of(problem, with_own_layers(problem, plain, oom)) if oom.size else None


def _fastest(problem: Problem, table: Estimate, incumbent_s: float) -> Iterator[Candidates]:
    """Yields the MOST_RELAXED plans with the least bounds, of those that could be faster than ``incumbent_s``."""
    least_s = candidates_of(problem, table).step_s
    order = np.argsort(least_s, kind="stable")[:MOST_RELAXED]
    rows = ints(order[least_s[order] < incumbent_s])
    if rows.size:
        yield candidates_of(problem, with_own_layers(problem, table, rows))


def _may_fit(problem: Problem, table: Estimate, limit: float) -> IntArray:
    """Returns the plans that could fit with the most that a relaxation can do: all layers but one offloaded, all inputs
    offloaded, or all modules recomputed."""
    plans = table.plans
    fits = np.zeros(len(plans), dtype=np.bool_)
    layers, preset = problem.model.num_layers, problem.job.preset
    single_stage = np.flatnonzero(plans.layout.pp == 1)
    if preset.offload.activations and problem.cluster.host is not None and layers > 1 and single_stage.size:
        some = plans.take(ints(single_stage))
        most = replace(some, layout=replace(some.layout, offloaded_layers=np.full(len(some), layers - 1)))
        fits[single_stage] = _memory_of(problem, most).needed_bytes <= limit
    if offloads_inputs(problem):
        fits |= _memory_of(problem, with_input_offload(plans)).needed_bytes <= limit
    modules = _all_modules(problem, plans)
    if modules:
        fits |= _memory_of(problem, replace(plans, recompute_modules=modules)).needed_bytes <= limit
    return ints(np.flatnonzero(bools(fits)))


def offloads_inputs(problem: Problem) -> bool:
    """Returns whether recomputed layers may keep their inputs on the host."""
    preset = problem.job.preset
    supported = LAYER_INPUT in preset.offload.modules and preset.recomputation.layers
    return supported and problem.cluster.host is not None


def with_input_offload(plans: PlanTable) -> PlanTable:
    """Returns the plans with all layers recomputed, and their inputs on the host."""
    return replace(plans, recompute=Recompute.FULL, recompute_modules=(), offload_modules=(LAYER_INPUT,))


def _fit_with_input_offload(problem: Problem, table: Estimate, limit: float) -> IntArray:
    """Returns the plans that do not fit with all layers recomputed, and do with their inputs on the host."""
    full = replace(table.plans, recompute=Recompute.FULL, recompute_modules=())
    needs_offload = _memory_of(problem, full).needed_bytes > limit
    fits = _memory_of(problem, with_input_offload(table.plans)).needed_bytes <= limit
    return ints(np.flatnonzero(needs_offload & fits))


def _all_modules(problem: Problem, plans: PlanTable) -> tuple[str, ...]:
    """Returns every module that the framework can recompute; its rules on modules are the same for all of ``plans``."""
    one = plans.take(ints([0]))
    names = problem.job.preset.recomputation.modules
    return tuple(name for name in names if obey(problem, replace(one, recompute_modules=(name,)), RULES).all())


def obey(problem: Problem, plans: PlanTable, rules: tuple[Rule, ...]) -> BoolArray:
    """Returns which plans obey all of the rules."""
    result = np.ones(len(plans), dtype=np.bool_)
    columns = plan_columns(problem.model, problem.job, problem.cluster, plans)
    for rule in rules:
        result &= rule.keeps(columns)
    return result


def filter_by_rules(problem: Problem, constraints: Constraints, table: Estimate) -> Estimate | None:
    """Returns the plans that obey all rules, and all constraints but those on memory; None where none does."""
    allowed = obey(problem, table.plans, (*constraint_rules(constraints), *RULES))
    if allowed.all():
        return table
    return table.take(np.flatnonzero(allowed).astype(np.int64)) if allowed.any() else None


ModuleEffect = tuple[int, int, bool]
"""A block, an operation of it by place, and whether a module drops what the operation saved (else recomputes it)."""


def recompute_sets(problem: Problem, blocks: Sequence[Pass]) -> tuple[tuple[str, ...], ...]:
    """Returns the sets of modules that the framework can recompute, each also with the attention core where that saves
    memory and is no module of its own; without the core alone, which is a recompute mode of every search."""
    recomputation, flash = problem.job.preset.recomputation, problem.job.flash_attention
    sets = distinct_module_sets(blocks, recomputation.modules)
    if recomputation.selective != CORE_ATTENTION or flash:
        return sets
    return (*sets, *((CORE_ATTENTION, *modules) for modules in sets))


def distinct_module_sets(blocks: Sequence[Pass], names: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """Returns the sets of ``names``, small ones first, that differ in their effects on ``blocks``: in the operations
    that they recompute, or in those whose saved arrays they drop. The empty set is left out, and modules that drop
    nothing."""
    # The effect of a set is the union of those of its modules.
    effects = {name: _effects(blocks, name) for name in names}
    useful = [name for name in names if any(drops for *_, drops in effects[name])]
    result: dict[frozenset[ModuleEffect], tuple[str, ...]] = {frozenset(): ()}
    for size in range(1, len(useful) + 1):
        for modules in combinations(useful, size):
            result.setdefault(frozenset().union(*(effects[name] for name in modules)), modules)
    return tuple(one for one in result.values() if one)


def _effects(blocks: Sequence[Pass], name: str) -> frozenset[ModuleEffect]:
    """Returns the operations of every block that a module recomputes, and those whose saved arrays it drops."""
    return frozenset(
        (id(block), at, drops) for block in blocks for drops, places in _of_block(block, name) for at in places
    )


def _of_block(block: Pass, name: str) -> tuple[tuple[bool, list[int]], tuple[bool, list[int]]]:
    """Returns the places of operations that a module recomputes (False), and of those that it drops (True)."""
    present = {op.key for op in block.forward}
    modules: list[RecomputedModule] = [one for one in MODULES[name] if one.where is None or one.where in present]
    recomputes = [at for at, op in enumerate(block.forward) if any(op.is_within(one.again) for one in modules)]
    drops = [
        at
        for at, op in enumerate(block.forward)
        if any(op.key in one.drops for one in modules) and op.saved_bytes.any()
    ]
    return (False, recomputes), (True, drops)


def minimal_sets(
    sets: Sequence[tuple[str, ...]], plans: int, fits: Callable[[tuple[str, ...], IntArray], BoolArray]
) -> Iterator[tuple[tuple[str, ...], IntArray]]:
    """Yields every set with the rows of plans, of so many, that fit with it and with no subset of it. ``fits`` returns
    which of some rows fit with a set.

    Recomputing more never takes less time: a plan's fastest set is among these. It never needs more memory either, so
    supersets of one that fits are not tried.
    """
    fitting: dict[tuple[str, ...], BoolArray] = {}
    for modules in sorted(sets, key=len):
        waiting = np.ones(plans, dtype=np.bool_)
        for smaller, fit in fitting.items():
            if set(smaller) < set(modules):
                waiting &= ~fit
        rows = np.flatnonzero(waiting).astype(np.int64)
        if rows.size:
            rows = rows[fits(modules, rows)]
            fitting[modules] = bools(np.isin(np.arange(plans), rows))
        if rows.size:
            yield modules, rows


ModuleSet = tuple[str, ...]
"""Names of modules of ops.recompute, or of the attention core."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecomputeSubsets:
    """``plain`` plans, without recomputation, under every one of ``sets``: the ``layers`` of each, and the inputs of
    memory and memory of all plans with the first set, then with the second, and so on."""

    plain: Estimate
    sets: Sequence[ModuleSet]
    layers: Sequence[LayerTable]
    tables: Tables
    bytes: StageBytes

    def fits(self, limit_bytes: float) -> BoolArray:
        """Returns whether each plan's worst stage needs at most so much with each set, of shape (sets, plans)."""
        needed = np.maximum.reduceat(self.bytes.cost.needed_bytes, self.tables.stages.starts)
        return bools(needed <= limit_bytes).reshape(len(self.sets), len(self.plain.plans))

    def table(self, place: int, plans: IntArray) -> Estimate:
        """Returns these plans with the set at that place."""
        rows = ints(plans + place * len(self.plain.plans))
        return Estimate(
            plans=with_recompute(self.plain.plans.take(plans), self.sets[place]),
            layers=self.layers[place].take(plans),
            stages=self.tables.stages.take(rows),
            bytes=self.bytes.take(self.tables.stages.rows(rows)),
        )


def recompute_subsets(problem: Problem, plain: Estimate, sets: Sequence[ModuleSet]) -> RecomputeSubsets:
    """Returns the plans of ``plain`` with each of ``sets``, of which there is one at least; one table of memory for
    all, as stages are the same and layers are stacked."""
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


def with_recompute(plain: PlanTable, modules: ModuleSet) -> PlanTable:
    """Returns the plans with the modules of a set recomputed."""
    mode, names = mode_and_modules(modules)
    return replace(plain, recompute=mode, recompute_modules=names)


def mode_and_modules(modules: ModuleSet) -> tuple[Recompute, ModuleSet]:
    """Returns the recompute mode and the modules that a set stands for: the attention core is a mode."""
    mode = Recompute.SELECTIVE if CORE_ATTENTION in modules else Recompute.NONE
    return mode, tuple(name for name in modules if name != CORE_ATTENTION)


Fits = Callable[[PlanTable], BoolArray]


def fewest_recompute_layers(plain: PlanTable, num_layers: int, fits: Fits) -> PlanTable | None:
    """Returns ``plain`` plans, which do not fit, with the fewest recomputed layers a chunk with which they do; those
    that need all layers are left out. ``fits`` returns which rows of a table fit."""
    plans = replace(plain, recompute=Recompute.BLOCK)
    most: IntArray = ceil_div(np.full(len(plans), num_layers, dtype=np.int64), plans.layout.pp * plans.vpp)
    fewest = fewest_layers(most, lambda layers: fits(replace(plans, num_recompute_layers=layers)))
    fewer = np.flatnonzero(fewest < most).astype(np.int64)
    return replace(plans, num_recompute_layers=fewest).take(fewer) if fewer.size else None


def fewest_offload_layers(plain: PlanTable, num_layers: int, fits: Fits) -> PlanTable | None:
    """Returns ``plain`` plans, which do not fit, with the fewest offloaded layers with which they do; at least one
    layer stays on the device."""
    most = np.full(len(plain), num_layers, dtype=np.int64)

    def offloading(layers: IntArray) -> PlanTable:
        return replace(plain, layout=replace(plain.layout, offloaded_layers=layers))

    fewest = fewest_layers(most, lambda layers: fits(offloading(layers)))
    fewer = np.flatnonzero(fewest < most).astype(np.int64)
    return offloading(fewest).take(fewer) if fewer.size else None


def fewest_layers(most: IntArray, enough: Callable[[IntArray], BoolArray]) -> IntArray:
    """Returns the fewest layers that are ``enough``, by bisection from 1 to ``most``, as more layers never need more
    memory; ``most`` where no fewer are enough."""
    # low is never enough, high always (or ``most``).
    low, high = np.zeros_like(most), most
    while np.any(high - low > 1):
        middle: IntArray = (low + high) // 2
        fits = enough(middle)
        low, high = np.where(fits, low, middle), np.where(fits, middle, high)
    return high
