"""Which parts of layers are worth running again: sets of a framework's modules that differ in what they do to
this model, and of those that fit the ones from which no part can be left out.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations

import numpy as np

from ops.op import Piece
from ops.recompute.layers import CORE_ATTENTION
from ops.recompute.modules import MODULES, RecomputedModule
from solver.question import Question
from spec.arrays import BoolArray, IntArray, bools

Done = tuple[int, int, bool]
"""A block, an operation of it by place, and whether it drops what it saved (else it runs again)."""


def sets_of(question: Question, blocks: Sequence[Piece]) -> tuple[tuple[str, ...], ...]:
    """The sets that the question's framework runs again, with the attention core where it is worth it and has
    no name among them; the core alone is a recompute mode of every search, and is left out."""
    recomputation, flash = question.job.preset.recomputation, question.job.flash_attention
    sets = module_sets(blocks, recomputation.modules)
    if recomputation.selective != CORE_ATTENTION or flash:
        return sets
    return (*sets, *((CORE_ATTENTION, *chosen) for chosen in sets))


def module_sets(blocks: Sequence[Piece], names: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """Sets of ``names``, small ones first, no two of which run the same operations of ``blocks`` again and
    drop what the same ones saved; each of their members drops something. The empty set is left out."""
    # Parts do together what each of them does.
    each = {name: _done(blocks, name) for name in names}
    useful = [name for name in names if any(drops for *_, drops in each[name])]
    found: dict[frozenset[Done], tuple[str, ...]] = {frozenset(): ()}
    for size in range(1, len(useful) + 1):
        for chosen in combinations(useful, size):
            found.setdefault(frozenset().union(*(each[name] for name in chosen)), chosen)
    return tuple(one for one in found.values() if one)


def _done(blocks: Sequence[Piece], name: str) -> frozenset[Done]:
    """What a part runs again and drops of every block."""
    return frozenset(
        (id(block), at, drops)
        for block in blocks
        for drops, places in _of_block(block, name)
        for at in places
    )


def _of_block(block: Piece, name: str) -> tuple[tuple[bool, list[int]], tuple[bool, list[int]]]:
    present = {op.key for op in block.forward}
    modules: list[RecomputedModule] = [
        one for one in MODULES[name] if one.where is None or one.where in present
    ]
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
