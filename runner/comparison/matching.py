"""Matches the launches of a run to the operations that the plan expects.

Both sides have keys (kind, shape, size, group). Equal keys are matched in order; what is left is matched by rules for
routed experts, products that a framework splits or joins, and launches without shape or size.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, combinations_with_replacement
from math import prod
from typing import TypeVar

import numpy as np

from runner.comparison.expected import Expected
from runner.traces.trace_file import Key, MeasuredLaunch, Part
from spec.collectives import Collective


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Expected operations of one label and the launches matched to them: counts and total seconds in a step.

    ``fastest_s`` is the shortest launch, of all launches of the key if none belongs to this label alone. ``how`` is
    empty if key and count agree; otherwise it names the rule that matched them.
    """

    key: Key
    label: str
    axis: str
    expected_count: int
    expected_s: float
    measured_count: float
    measured_s: float
    fastest_s: float
    how: str = ""

    @property
    def each_s(self) -> float:
        """Measured seconds of one expected operation, which may have run as several launches."""
        return self.measured_s / (self.expected_count if self.how else self.measured_count)

    @property
    def ratio(self) -> float:
        """Seconds of an operation, measured over expected."""
        return self.each_s / (self.expected_s / self.expected_count)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unmatched:
    """Expected operations, or launches, of a step without a match."""

    key: Key
    label: str
    count: float
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Matching:
    """The matched pairs, and what is left on each side."""

    pairs: Sequence[Pair]
    only_expected: Sequence[Unmatched]
    only_measured: Sequence[Unmatched]


Item = TypeVar("Item")
Group = TypeVar("Group")


def grouped(items: Iterable[Item], group: Callable[[Item], Group]) -> dict[Group, list[Item]]:
    """The items of each group, in their order."""
    result: dict[Group, list[Item]] = {}
    for item in items:
        result.setdefault(group(item), []).append(item)
    return result


Pools = dict[Key, list[MeasuredLaunch]]
"""Launches of each key that are not matched yet, by start."""


def take(pools: Pools, key: Key, count: int) -> list[MeasuredLaunch]:
    """The first ``count`` launches of a key, which leave the pool."""
    head, pools[key] = pools[key][:count], pools[key][count:]
    return head


IN_TOTAL = (Part.KERNEL, Part.OPTIMIZER)
"""Parts whose launches have no shape: they are compared in total."""


def match_launches(expected: Sequence[Expected], launches: Iterable[MeasuredLaunch], num_steps: int) -> Matching:
    """The launches of ``num_steps`` steps matched to the operations of one; counts and seconds are of one step."""
    # Each rule takes its launches out of the pools, so that the next one sees the rest.
    pools = grouped(sorted(launches, key=lambda each: each.start_s), lambda one: one.key)
    pairs, certain = match_exchanges(expected, pools, num_steps)
    # The experts' products come late: a launch of their shape may be another operation's.
    certain, routed = split_routed(certain, pools, num_steps)
    unmatched: list[Expected] = []
    for key, same in grouped(certain, lambda one: one.key).items():
        if key.part in IN_TOTAL:
            pairs += _in_total(key, same, pools.pop(key, []), num_steps)
            continue
        key_launches = [each for one in _alike(key, pools) for each in take(pools, one, num_steps * count_of(same))]
        matched, rest = match_in_order(same, key_launches, num_steps)
        pairs += matched
        unmatched += rest
    composed, unmatched = match_composed_products(unmatched, pools, num_steps)
    experts, routed = match_expert_products(routed, pools, num_steps)
    without_key, unmatched = match_without_key([*unmatched, *routed], pools, num_steps)
    pairs += [*composed, *experts, *without_key]
    only_expected = ((one.key, one.label, one.count, one.seconds * one.count) for one in unmatched)
    of_steps = _unmatched((one.key, one.name, 1, one.seconds) for pool in pools.values() for one in pool)
    only_measured = [replace(one, count=one.count / num_steps, seconds=one.seconds / num_steps) for one in of_steps]
    return Matching(pairs=pairs, only_expected=_unmatched(only_expected), only_measured=only_measured)


def count_of(same: Iterable[Expected]) -> int:
    """Number of launches in a step."""
    return sum(one.count for one in same)


def match_in_order(
    same: Sequence[Expected], launches: Sequence[MeasuredLaunch], num_steps: int
) -> tuple[list[Pair], list[Expected]]:
    """Pairs of the operations of one key with its launches, and operations without a launch. If there are as many, the
    n-th launch is the n-th operation's; otherwise operations get the mean time, in order until launches run out."""
    # ``times`` are step after step, in each step all operations one after another.
    count = count_of(same)
    exact = len(launches) == count * num_steps
    times = np.array([one.seconds for one in launches])
    fastest_s = None if exact or not launches else float(times.min())
    by_label: dict[str, tuple[list[Expected], list[float]]] = {}
    unmatched: list[Expected] = []
    position = 0
    for operation in same:
        operations, seconds = by_label.setdefault(operation.label, ([], []))
        if exact:
            seconds += [
                float(times[position + step * count + each])
                for step in range(num_steps)
                for each in range(operation.count)
            ]
            operations.append(operation)
            position += operation.count
            continue
        # Fewer or more launches than expected: no launch can be attributed, so each operation gets the mean time.
        num_launched = min(operation.count * num_steps, len(times) - position)
        seconds += [float(times.mean())] * num_launched if num_launched else []
        position += num_launched
        # An operation that ran in some of the steps only still counts as matched.
        whole = -(-num_launched // num_steps)
        if whole:
            operations.append(replace(operation, count=whole))
        if whole < operation.count:
            unmatched.append(replace(operation, count=operation.count - whole))
    pairs = [pair_of(operations, seconds, num_steps) for operations, seconds in by_label.values() if operations]
    return [replace(one, fastest_s=fastest_s or one.fastest_s) for one in pairs], unmatched


def pair_of(operations: Sequence[Expected], seconds: Sequence[float], num_steps: int, how: str = "") -> Pair:
    """The pair of expected operations and the seconds of their launches."""
    return Pair(
        key=operations[0].key,
        label=operations[0].label,
        axis=operations[0].axis,
        expected_count=count_of(operations),
        expected_s=sum(one.seconds * one.count for one in operations),
        measured_count=len(seconds) / num_steps,
        measured_s=sum(seconds) / num_steps,
        fastest_s=min(seconds),
        how=how,
    )


# Experts. The router decides the size of their exchanges and the rows of their products; those expected have the same
# number of rows on every rank.

AS_ROUTED = "as routed"
MOST_ROWS = 16
"""Largest ratio, either way, between the rows of products that pass for the experts' and the expected rows."""


def match_exchanges(expected: Sequence[Expected], pools: Pools, num_steps: int) -> tuple[list[Pair], list[Expected]]:
    """Pairs of the experts' exchanges with launches of their kind, in order, if there are as many; and the other
    operations. An exchange moves between the expected size (this rank's rows) and that of all ranks of its group."""
    pairs: list[Pair] = []
    rest: list[Expected] = []
    kinds: dict[tuple[object, ...], list[Expected]] = {}
    for operation in expected:
        if operation.routed and operation.key.part is Part.COLLECTIVE:
            kinds.setdefault((operation.key, operation.axis), []).append(operation)
        else:
            rest.append(operation)
    for same in kinds.values():
        keys = [key for key in pools if pools[key] and _may_be_exchange(same[0].key, key)]
        launches = sorted((one for key in keys for one in pools[key]), key=lambda one: one.start_s)
        # Launches of exactly the expected size match by their key.
        if len(launches) != count_of(same) * num_steps or all(one.key == same[0].key for one in launches):
            rest += same
            continue
        pairs += [replace(pair, how=AS_ROUTED) for pair in match_in_order(same, launches, num_steps)[0]]
        for key in keys:
            pools[key] = []
    return pairs, sorted(rest, key=lambda operation: operation.place)


def split_routed(expected: Sequence[Expected], pools: Pools, num_steps: int) -> tuple[list[Expected], list[Expected]]:
    """Operations to match by shape, and the experts' products of a pass in which some of them ran in another shape. There
    a launch of the expected shape may belong to another operation, so that these wait for a rule of their own."""
    routed_by_key = grouped((one for one in expected if one.weight is not None), lambda one: one.key)
    directions = {
        key.direction
        for key, same in routed_by_key.items()
        if key not in pools or len(pools[key]) < count_of(same) * num_steps
    }
    routed = [one for one in expected if one.weight is not None and one.key.direction in directions]
    return [one for one in expected if one.weight is None or one.key.direction not in directions], routed


def _may_be_exchange(expected: Key, measured: Key) -> bool:
    least = expected.size_bytes or 0
    alike = measured.what == expected.what and measured.ranks in (expected.ranks, None)
    return alike and least <= (measured.size_bytes or 0) <= least * (expected.ranks or 1)


def match_expert_products(
    routed: Sequence[Expected], pools: Pools, num_steps: int
) -> tuple[list[Pair], list[Expected]]:
    """Pairs of all products of the experts of a pass with all launches that have a side of their weights, in total: each
    expert may run products of its own, and gate and up apart. And the operations without a match."""
    pairs: list[Pair] = []
    rest: list[Expected] = []
    for direction, same in grouped(routed, lambda one: one.key.direction).items():
        weights = {sides for one in same for sides in _weights(*(one.weight or (0, 0)))}
        keys = [one for one in pools if one.direction == direction and _has_one_of(weights, one)]
        # Rows may differ from the expected ones, but not by any factor: otherwise the launches are of something else.
        launches = [one for key in keys for one in pools[key]]
        priced = sum(_volume(one.key) * one.count for one in same)
        share = sum(_volume(one.key) for one in launches) / num_steps / priced
        if not 1 / MOST_ROWS < share < MOST_ROWS:
            rest += same
            continue
        how = f"per expert, {share:.2f} x the rows"
        pair = pair_of(same, [each.seconds for each in launches], num_steps, how=how)
        pairs.append(replace(pair, label=f"{direction} products of experts"))
        for key in keys:
            pools[key] = []
    return pairs, rest


def _weights(inputs: int, outputs: int) -> Iterable[tuple[int, int]]:
    """The sides of an expert's weight; also of half of it, as gate and up may run as one product or as two."""
    for one, other in ((inputs, outputs), (inputs, outputs // 2), (inputs // 2, outputs)):
        yield min(one, other), max(one, other)


def _has_one_of(weights: set[tuple[int, int]], measured: Key) -> bool:
    """True if two sides of a product are those of a weight; the third is the rows."""
    sides = sorted(measured.shape[1:]) if measured.part is Part.PRODUCT and measured.shape else []
    return any(pair in weights for pair in combinations(sides, 2))


def _volume(key: Key) -> float:
    """Number of multiplications of a product."""
    return float(prod(key.shape)) if key.shape else 0.0


# Operations that a framework splits or joins differently, and launches whose source reports neither shape nor size.

MOST_PARTS = 3
"""Most products that a framework runs for one of ours: queries, keys and values."""


def match_composed_products(
    unmatched: Sequence[Expected], pools: Pools, num_steps: int
) -> tuple[list[Pair], list[Expected]]:
    """Pairs of products that ran as two or three, and the operations without a match."""
    pairs, rest = [], []
    for (key, _), same in grouped(unmatched, lambda one: (one.key, one.label)).items():
        count = count_of(same) * num_steps
        parts = _parts(key, pools, count) if key.part is Part.PRODUCT else None
        if parts is None:
            rest += same
            continue
        # The n-th launches of all parts make up the n-th product.
        pieces = [take(pools, part, count) for part in parts]
        seconds = [sum(one.seconds for one in each) for each in zip(*pieces, strict=True)]
        pairs.append(pair_of(same, seconds, num_steps, how=f"ran as {len(parts)} products"))
    return pairs, rest


def _parts(key: Key, pools: Pools, count: int) -> tuple[Key, ...] | None:
    """Keys of the launches that make up a product, if there are enough of them. Equal keys are preferred: gate and up, or
    queries, keys and values of as many heads, are more alike than a gate and a query."""
    candidates = [
        one
        for one, pool in pools.items()
        if one.part is Part.PRODUCT and one.shape and one.direction == key.direction and len(pool) >= count
    ]
    whole = [
        parts
        for number in range(2, MOST_PARTS + 1)
        for parts in combinations_with_replacement(candidates, number)
        if all(len(pools[one]) >= count * parts.count(one) for one in parts) and _adds_up(key, parts)
    ]
    return min(whole, key=lambda parts: len(set(parts)), default=None)


def _adds_up(key: Key, parts: Sequence[Key]) -> bool:
    """True if the parts share two sides with the product and their third sides sum to its third."""
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
    # Shapes have the smaller of m and n first (Key.shape): in a part the shared side may be the larger one.
    for shared, total in ((low, high), (high, low)):
        others = [one[3] if one[1] == shared else one[1] if one[3] == shared else 0 for one in shapes]
        if all(others) and sum(others) == total:
            return True
    return False


def match_without_key(unmatched: Sequence[Expected], pools: Pools, num_steps: int) -> tuple[list[Pair], list[Expected]]:
    """Pairs by three last rules, and the operations without a match: in order, if launches have no shape or size and are
    as many; collectives of one kind and group that move as many bytes in total; attentions of one direction with as many
    pairs of queries and keys in total."""
    pairs: list[Pair] = []
    rest: list[Expected] = []
    by_place = sorted(unmatched, key=lambda one: one.place)
    kinds = grouped(by_place, lambda one: (one.key.part, one.key.what, one.key.direction, one.key.ranks))
    for (part, what, direction, ranks), same in kinds.items():
        keys = [
            one
            for one, pool in pools.items()
            if pool
            and (one.part, one.what) == (part, what)
            and one.direction in (direction, None)
            and one.ranks in (ranks, None)
        ]
        # Without shapes (record_shapes=False) or sizes the order is all there is.
        blank_keys = [one for one in keys if one.shape is None and one.size_bytes is None]
        blank_launches = sorted((each for one in blank_keys for each in pools[one]), key=lambda each: each.start_s)
        if blank_launches and len(blank_launches) == count_of(same) * num_steps:
            pairs += [replace(one, how="by order") for one in match_in_order(same, blank_launches, num_steps)[0]]
            keys = blank_keys
        elif in_sum := _match_in_sum(same, keys, pools, num_steps):
            pairs.append(in_sum)
        else:
            rest += same
            continue
        for one in keys:
            pools[one] = []
    return pairs, rest


def _match_in_sum(same: Sequence[Expected], keys: Sequence[Key], pools: Pools, num_steps: int) -> Pair | None:
    """The pair of the operations of one kind with all its remaining launches, if their amounts agree within 1 %."""
    launches = [one for key in keys for one in pools[key]]
    expected = [_amount(one.key, one.pairs) for one in same]
    measured = [_amount(one.key, one.pairs) for one in launches]
    if not launches or None in expected or None in measured:
        return None
    whole = sum((amount or 0.0) * one.count for amount, one in zip(expected, same, strict=True))
    if abs(sum(amount or 0.0 for amount in measured) / num_steps - whole) > 0.01 * whole:
        return None
    labels = sorted({one.label for one in same})
    label = labels[0] if len(labels) == 1 else f"{labels[0]} and {len(labels) - 1} more"
    how = "split differently, same " + ("bytes" if same[0].key.part is Part.COLLECTIVE else "pairs")
    return replace(pair_of(same, [one.seconds for one in launches], num_steps, how=how), label=label)


def _amount(key: Key, pairs: float | None) -> float | None:
    """What splitting does not change: bytes of a collective, pairs of an attention; None of anything else."""
    return key.size_bytes if key.part is Part.COLLECTIVE else pairs


# How keys are matched and the rest is listed.


def _alike(key: Key, pools: Pools) -> list[Key]:
    """Keys of launches that match a key. Part, kind, size and shape must be equal; direction and group may be unknown."""
    same = [
        one
        for one, pool in pools.items()
        if pool
        and (one.part, one.what, one.shape, one.size_bytes) == (key.part, key.what, key.shape, key.size_bytes)
        and one.direction in (key.direction, None)
    ]
    own = [one for one in same if one.ranks in (key.ranks, None)]
    # torch may send messages over the group of all ranks.
    return own or (same if key.what == Collective.P2P.value else [])


def _in_total(key: Key, same: Sequence[Expected], launches: Sequence[MeasuredLaunch], num_steps: int) -> list[Pair]:
    """The pair of all operations of a part with all its launches."""
    if not launches:
        return []
    pair = pair_of(same, [each.seconds for each in launches], num_steps, how="in total")
    return [replace(pair, label=f"all {key.what}")]


def _unmatched(rows: Iterable[tuple[Key, str, float, float]]) -> list[Unmatched]:
    """Key, label, count and seconds of what is left, summed by key and label; the longest first."""
    lone = [
        Unmatched(key=key, label=label, count=sum(row[2] for row in same), seconds=sum(row[3] for row in same))
        for (key, label), same in grouped(rows, lambda row: row[:2]).items()
    ]
    return sorted(lone, key=lambda one: -one.seconds)
