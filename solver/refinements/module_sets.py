"""Which parts of layers are worth running again: sets of a framework's modules that differ in what they do to this model,
and of those that fit the ones from which no part can be left out.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations

import numpy as np

from ops.op import Piece
from ops.recompute.layers import CORE_ATTENTION
from ops.recompute.modules import MODULES, RecomputedModule
from solver.question import Question
from spec.arrays import BoolArray, IntArray, bools


def sets_of(question: Question, blocks: Sequence[Piece]) -> tuple[tuple[str, ...], ...]:
    """The sets that the question's framework runs again, with the attention core where it is worth it and has no name among
    them; the core alone is a recompute mode of every search, and is left out."""
    recomputation, flash = question.job.preset.recomputation, question.job.flash_attention
    sets = module_sets(blocks, recomputation.modules)
    if recomputation.selective != CORE_ATTENTION or flash:
        return sets
    return (*sets, *((CORE_ATTENTION, *chosen) for chosen in sets))


def module_sets(blocks: Sequence[Piece], names: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """Sets of ``names``, small ones first, no two of which run the same operations of ``blocks`` again and drop what the
    same ones saved; each of their members drops something. The empty set is left out."""
    found: dict[object, tuple[str, ...]] = {_done(blocks, ()): ()}
    useful = [name for name in names if any(dropped for _, dropped in _done(blocks, (name,)))]
    for size in range(1, len(useful) + 1):
        for chosen in combinations(useful, size):
            found.setdefault(_done(blocks, chosen), chosen)
    return tuple(one for one in found.values() if one)


def _done(blocks: Sequence[Piece], names: Sequence[str]) -> tuple[tuple[frozenset[int], frozenset[int]], ...]:
    """Of each block the operations that run again and those that drop what they saved, by place."""
    return tuple(_of_block(block, names) for block in blocks)


def _of_block(block: Piece, names: Sequence[str]) -> tuple[frozenset[int], frozenset[int]]:
    present = {op.key for op in block.forward}
    modules: list[RecomputedModule] = [
        one for name in names for one in MODULES[name] if one.where is None or one.where in present
    ]
    again = {at for at, op in enumerate(block.forward) if any(op.is_within(one.again) for one in modules)}
    dropped = {
        at
        for at, op in enumerate(block.forward)
        if any(op.key in one.drops for one in modules) and op.saved_bytes.any()
    }
    return frozenset(again), frozenset(dropped)


def least_sets(
    sets: Sequence[tuple[str, ...]], plans: int, fits: Callable[[tuple[str, ...], IntArray], BoolArray]
) -> Iterator[tuple[tuple[str, ...], IntArray]]:
    """Every set with the plans, of so many, that fit with it and with no set within it; ``fits`` says which of some plans
    fit with a set.

    More modules run again never take less time and never need more memory: a plan's fastest set is among these, and sets
    around one that fits are not asked about.
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
