"""What experts run depends on how the router deals the tokens: exchanges of other sizes, and products of
other rows, than those priced, which have as many rows on every rank."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from math import prod

from runner.comparison.expected import Expected
from runner.comparison.pairs import Pair, Pool, by_order, count_of, pair_of
from runner.traces.ran import Key, Part

DEALT = "as the router dealt"
MOST_ROWS = 16
"""Times the priced rows, or part of them, that products taken for the experts' may have."""


def exchanged(
    expected: Sequence[Expected], pools: Mapping[Key, Pool], num_steps: int
) -> tuple[list[Pair], list[Expected]]:
    """Exchanges of rows with the experts, by order, where there are as many launches of their kind. A rank's
    own rows are as many as were priced on one side; on the other lie up to all of the group's."""
    pairs: list[Pair] = []
    rest: list[Expected] = []
    kinds: dict[tuple[object, ...], list[Expected]] = {}
    for one in expected:
        if one.routed and one.key.part is Part.COLLECTIVE:
            kinds.setdefault((one.key, one.axis), []).append(one)
        else:
            rest.append(one)
    for same in kinds.values():
        found = [one for one in pools if pools[one].ran and _may_be(same[0].key, one)]
        launches = sorted((one for key in found for one in pools[key].ran), key=lambda one: one.start_s)
        if len(launches) != count_of(same) * num_steps or all(one.key == same[0].key for one in launches):
            rest += same
            continue
        pairs += [replace(one, how=DEALT) for one in by_order(same, launches, num_steps)[0]]
        for key in found:
            pools[key].ran = []
    return pairs, sorted(rest, key=lambda one: one.place)


def without_routed(
    expected: Sequence[Expected], pools: Mapping[Key, Pool], num_steps: int
) -> tuple[list[Expected], list[Expected]]:
    """What is looked for by its shape, and the experts' products of a pass in which some ran in other shapes than the
    priced one: what has that by chance is of another operation."""
    wanted: dict[Key, list[Expected]] = {}
    for one in expected:
        if one.weight is not None:
            wanted.setdefault(one.key, []).append(one)
    dealt = {
        key.direction
        for key, same in wanted.items()
        if key not in pools or len(pools[key].ran) < count_of(same) * num_steps
    }
    apart = [one for one in expected if one.weight is not None and one.key.direction in dealt]
    return [one for one in expected if one.weight is None or one.key.direction not in dealt], apart


def _may_be(key: Key, ran: Key) -> bool:
    size, most = key.size_bytes or 0, (key.size_bytes or 0) * (key.ranks or 1)
    alike = ran.what == key.what and ran.ranks in (key.ranks, None)
    return alike and size <= (ran.size_bytes or 0) <= most


def multiplied(
    apart: Sequence[Expected], pools: Mapping[Key, Pool], num_steps: int
) -> tuple[list[Pair], list[Expected]]:
    """Products of the experts of one pass in sum, as each expert may run its own, and gate and up apart."""
    pairs: list[Pair] = []
    rest: list[Expected] = []
    passes: dict[str | None, list[Expected]] = {}
    for one in apart:
        passes.setdefault(one.key.direction, []).append(one)
    for direction, same in passes.items():
        weights = {sides for one in same for sides in _weights(*(one.weight or (0, 0)))}
        found = [one for one in pools if one.direction == direction and _has_one_of(weights, one)]
        launches = [one for key in found for one in pools[key].ran]
        priced = sum(_volume(one.key) * one.count for one in same)
        share = sum(_volume(one.key) for one in launches) / num_steps / priced
        if not 1 / MOST_ROWS < share < MOST_ROWS:
            rest += same
            continue
        how = f"each expert's own, {share:.2f} x the rows"
        pair = pair_of(same, [each.seconds for each in launches], num_steps, how=how)
        pairs.append(replace(pair, label=f"{direction} products of experts"))
        for key in found:
            pools[key].ran = []
    return pairs, rest


def _weights(inputs: int, outputs: int) -> Iterable[tuple[int, int]]:
    """An expert's matrix, and one of two that were priced as one: gate and up."""
    for one, other in ((inputs, outputs), (inputs, outputs // 2), (inputs // 2, outputs)):
        yield min(one, other), max(one, other)


def _has_one_of(weights: set[tuple[int, int]], ran: Key) -> bool:
    """Whether two sides of a product are those of a matrix, whatever the third: the rows."""
    sides = sorted(ran.shape[1:]) if ran.part is Part.PRODUCT and ran.shape else []
    return any(pair in weights for pair in combinations(sides, 2))


def _volume(key: Key) -> float:
    """Multiplications of a product."""
    return float(prod(key.shape)) if key.shape else 0.0
