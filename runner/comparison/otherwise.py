"""Operations that a framework runs in other pieces than ours: products apart, collectives cut otherwise, and launches
whose source says neither shape nor size."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations_with_replacement

from runner.comparison.expected import Expected
from runner.comparison.pairs import Pair, Pool, by_order, count_of, pair_of
from runner.traces.ran import Key, Part

MOST_PARTS = 3
"""Products that a framework runs for one of ours: queries, keys and values; gate and up."""


def composed(
    left: Sequence[Expected], pools: Mapping[Key, Pool], num_steps: int
) -> tuple[list[Pair], list[Expected]]:
    """Products that ran as two or three, whose shapes are alike but for one side, which adds up."""
    pairs, rest = [], []
    by_label: dict[tuple[Key, str], list[Expected]] = {}
    for want in left:
        by_label.setdefault((want.key, want.label), []).append(want)
    for (key, _), same in by_label.items():
        count = count_of(same) * num_steps
        parts = _parts(key, pools, count) if key.part is Part.PRODUCT else None
        if parts is None:
            rest += same
            continue
        pieces = [pools[part].take(count) for part in parts]
        seconds = [sum(one.seconds for one in each) for each in zip(*pieces, strict=True)]
        pairs.append(pair_of(same, seconds, num_steps, how=f"ran as {len(parts)} products"))
    return pairs, rest


def _parts(key: Key, pools: Mapping[Key, Pool], count: int) -> tuple[Key, ...] | None:
    """Keys of launches, one as often as it is needed, that make up a product and of which there are enough; equal ones
    first: gate and up, or queries, keys and values of as many heads, are more alike than a gate and a query."""
    able = [
        one
        for one, pool in pools.items()
        if one.part is Part.PRODUCT
        and one.shape
        and one.direction == key.direction
        and len(pool.ran) >= count
    ]
    whole = [
        parts
        for number in range(2, MOST_PARTS + 1)
        for parts in combinations_with_replacement(able, number)
        if all(len(pools[one].ran) >= count * parts.count(one) for one in parts) and _adds_up(key, parts)
    ]
    return min(whole, key=lambda parts: len(set(parts)), default=None)


def _adds_up(key: Key, parts: Sequence[Key]) -> bool:
    """Whether the parts have two sides of the product in common and the third in sum. Which of the outer sides is the
    smaller may differ between part and whole."""
    if key.shape is None:
        return False
    batch, low, inner, high = key.shape
    shapes = [one.shape or () for one in parts]
    if any(one[0] != batch for one in shapes):
        return False
    if all((one[1], one[3]) == (low, high) for one in shapes):
        return sum(one[2] for one in shapes) == inner
    if any(one[2] != inner for one in shapes):
        return False
    for kept, whole in ((low, high), (high, low)):
        others = [one[3] if one[1] == kept else one[1] if one[3] == kept else 0 for one in shapes]
        if all(others) and sum(others) == whole:
            return True
    return False


def without_key(
    left: Sequence[Expected], pools: Mapping[Key, Pool], num_steps: int
) -> tuple[list[Pair], list[Expected]]:
    """By order, launches whose source says no shape or size, where there are as many as operations;
    collectives of one kind and group that are cut otherwise but move as many bytes; and attentions of one
    direction that look at as many pairs of queries and keys."""
    pairs: list[Pair] = []
    rest: list[Expected] = []
    kinds: dict[tuple[Part, str, str | None, int | None], list[Expected]] = {}
    for want in sorted(left, key=lambda one: one.place):
        key = want.key
        kinds.setdefault((key.part, key.what, key.direction, key.ranks), []).append(want)
    for (part, what, direction, ranks), same in kinds.items():
        found = [
            one
            for one, pool in pools.items()
            if pool.ran
            and (one.part, one.what) == (part, what)
            and one.direction in (direction, None)
            and one.ranks in (ranks, None)
        ]
        blank = [one for one in found if one.shape is None and one.size_bytes is None]
        unsaid = sorted((each for one in blank for each in pools[one].ran), key=lambda each: each.start_s)
        if unsaid and len(unsaid) == count_of(same) * num_steps:
            pairs += [replace(one, how="by order") for one in by_order(same, unsaid, num_steps)[0]]
            found = blank
        elif cut := _cut_otherwise(same, found, pools, num_steps):
            pairs.append(cut)
        else:
            rest += same
            continue
        for one in found:
            pools[one].ran = []
    return pairs, rest


def _cut_otherwise(
    same: Sequence[Expected], found: Sequence[Key], pools: Mapping[Key, Pool], num_steps: int
) -> Pair | None:
    """Operations of one kind beside all launches of it that are left, if these do as much to 1 %."""
    launches = [one for key in found for one in pools[key].ran]
    ours = [_amount(one.key, one.pairs) for one in same]
    theirs = [_amount(one.key, one.pairs) for one in launches]
    if not launches or None in ours or None in theirs:
        return None
    whole = sum((amount or 0.0) * one.count for amount, one in zip(ours, same, strict=True))
    if abs(sum(amount or 0.0 for amount in theirs) / num_steps - whole) > 0.01 * whole:
        return None
    labels = sorted({one.label for one in same})
    label = labels[0] if len(labels) == 1 else f"{labels[0]} and {len(labels) - 1} more"
    how = "cut otherwise, as many " + ("bytes" if same[0].key.part is Part.COLLECTIVE else "pairs")
    return replace(pair_of(same, [one.seconds for one in launches], num_steps, how=how), label=label)


def _amount(key: Key, pairs: float | None) -> float | None:
    """What stays the same however it is cut: bytes of a collective, pairs of an attention; None of anything else."""
    return key.size_bytes if key.part is Part.COLLECTIVE else pairs
