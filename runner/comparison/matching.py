"""Operations of a plan beside the launches that are they."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, combinations_with_replacement
from math import prod

import numpy as np

from runner.comparison.expected import Expected
from runner.traces.trace_file import Key, Launched, Part
from spec.collectives import Collective


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Operations of one label beside the launches that are they, of a step: counts, and seconds of all of them.

    ``fastest_s`` is the shortest launch, of all of the key where none is this label's own. ``how`` is empty
    where key and count agree; else what was matched otherwise.
    """

    key: Key
    label: str
    axis: str
    expected_count: int
    expected_s: float
    ran_count: float
    ran_s: float
    fastest_s: float
    how: str = ""

    @property
    def each_s(self) -> float:
        """Measured seconds of one expected operation: of a launch, or of the pieces that it ran as."""
        return self.ran_s / (self.expected_count if self.how else self.ran_count)

    @property
    def ratio(self) -> float:
        """Seconds of an operation, measured over expected."""
        return self.each_s / (self.expected_s / self.expected_count)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unmatched:
    """Launches of a step, or expected operations, that match nothing."""

    key: Key
    label: str
    count: float
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Matching:
    """Pairs, and what is left on each side."""

    pairs: Sequence[Pair]
    only_expected: Sequence[Unmatched]
    only_ran: Sequence[Unmatched]


@dataclass(slots=True)
class Pool:
    """Launches of one key that are not matched yet."""

    ran: list[Launched]

    def take(self, count: int) -> list[Launched]:
        """The first of them, which are no longer there."""
        taken, self.ran = self.ran[:count], self.ran[count:]
        return taken


def count_of(same: Iterable[Expected]) -> int:
    """Launches of a step."""
    return sum(one.count for one in same)


def match_in_order(
    same: Sequence[Expected], launches: Sequence[Launched], num_steps: int
) -> tuple[list[Pair], list[Expected]]:
    """Operations of one key beside its launches: one by one where there are as many; else each gets the mean of all,
    first come first served."""
    count = count_of(same)
    exact = len(launches) == count * num_steps
    times = np.array([one.seconds for one in launches])
    fastest_s = None if exact or not launches else float(times.min())
    by_label: dict[str, tuple[list[Expected], list[float]]] = {}
    left: list[Expected] = []
    at = 0
    for want in same:
        operations, seconds = by_label.setdefault(want.label, ([], []))
        if exact:
            seconds += [
                float(times[at + step * count + each]) for step in range(num_steps) for each in range(want.count)
            ]
            operations.append(want)
            at += want.count
            continue
        taken = min(want.count * num_steps, len(times) - at)
        seconds += [float(times.mean())] * taken if taken else []
        at += taken
        whole = -(-taken // num_steps)
        if whole:
            operations.append(replace(want, count=whole))
        if whole < want.count:
            left.append(replace(want, count=want.count - whole))
    pairs = [pair_of(operations, seconds, num_steps) for operations, seconds in by_label.values() if operations]
    return [replace(one, fastest_s=fastest_s or one.fastest_s) for one in pairs], left


def pair_of(operations: Sequence[Expected], seconds: Sequence[float], num_steps: int, how: str = "") -> Pair:
    """Expected operations beside the seconds of their launches."""
    return Pair(
        key=operations[0].key,
        label=operations[0].label,
        axis=operations[0].axis,
        expected_count=count_of(operations),
        expected_s=sum(one.seconds * one.count for one in operations),
        ran_count=len(seconds) / num_steps,
        ran_s=sum(seconds) / num_steps,
        fastest_s=min(seconds),
        how=how,
    )


# What experts run depends on how the router deals the tokens: exchanges of other sizes, and products of
# other rows, than those priced, which have as many rows on every rank.

DEALT = "as the router dealt"
MOST_ROWS = 16
"""Times the priced rows, or part of them, that products taken for the experts' may have."""


def match_exchanges(
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
        result = [one for one in pools if pools[one].ran and _may_be(same[0].key, one)]
        launches = sorted((one for key in result for one in pools[key].ran), key=lambda one: one.start_s)
        if len(launches) != count_of(same) * num_steps or all(one.key == same[0].key for one in launches):
            rest += same
            continue
        pairs += [replace(one, how=DEALT) for one in match_in_order(same, launches, num_steps)[0]]
        for key in result:
            pools[key].ran = []
    return pairs, sorted(rest, key=lambda one: one.place)


def split_routed(
    expected: Sequence[Expected], pools: Mapping[Key, Pool], num_steps: int
) -> tuple[list[Expected], list[Expected]]:
    """Operations that are matched by their shape, and apart the experts' products of a pass in which some ran in other
    shapes than the priced one: a launch of that shape is of another operation."""
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


def match_expert_products(
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
        result = [one for one in pools if one.direction == direction and _has_one_of(weights, one)]
        launches = [one for key in result for one in pools[key].ran]
        priced = sum(_volume(one.key) * one.count for one in same)
        share = sum(_volume(one.key) for one in launches) / num_steps / priced
        if not 1 / MOST_ROWS < share < MOST_ROWS:
            rest += same
            continue
        how = f"each expert's own, {share:.2f} x the rows"
        pair = pair_of(same, [each.seconds for each in launches], num_steps, how=how)
        pairs.append(replace(pair, label=f"{direction} products of experts"))
        for key in result:
            pools[key].ran = []
    return pairs, rest


def _weights(inputs: int, outputs: int) -> Iterable[tuple[int, int]]:
    """An expert's matrix, and one of two that were priced as one: gate and up."""
    for one, other in ((inputs, outputs), (inputs, outputs // 2), (inputs // 2, outputs)):
        yield min(one, other), max(one, other)


def _has_one_of(weights: set[tuple[int, int]], ran: Key) -> bool:
    """True if two sides of a product are those of a matrix, whatever the third: the rows."""
    sides = sorted(ran.shape[1:]) if ran.part is Part.PRODUCT and ran.shape else []
    return any(pair in weights for pair in combinations(sides, 2))


def _volume(key: Key) -> float:
    """Multiplications of a product."""
    return float(prod(key.shape)) if key.shape else 0.0


# Operations that a framework runs in other pieces than ours: products apart, collectives cut otherwise, and launches
# whose source says neither shape nor size.

MOST_PARTS = 3
"""Products that a framework runs for one of ours: queries, keys and values; gate and up."""


def match_composed_products(
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
        if one.part is Part.PRODUCT and one.shape and one.direction == key.direction and len(pool.ran) >= count
    ]
    whole = [
        parts
        for number in range(2, MOST_PARTS + 1)
        for parts in combinations_with_replacement(able, number)
        if all(len(pools[one].ran) >= count * parts.count(one) for one in parts) and _adds_up(key, parts)
    ]
    return min(whole, key=lambda parts: len(set(parts)), default=None)


def _adds_up(key: Key, parts: Sequence[Key]) -> bool:
    """True if the parts have two sides of the product in common and the third in sum. Which of the outer sides is the
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


def match_without_key(
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
        result = [
            one
            for one, pool in pools.items()
            if pool.ran
            and (one.part, one.what) == (part, what)
            and one.direction in (direction, None)
            and one.ranks in (ranks, None)
        ]
        blank = [one for one in result if one.shape is None and one.size_bytes is None]
        unsaid = sorted((each for one in blank for each in pools[one].ran), key=lambda each: each.start_s)
        if unsaid and len(unsaid) == count_of(same) * num_steps:
            pairs += [replace(one, how="by order") for one in match_in_order(same, unsaid, num_steps)[0]]
            result = blank
        elif cut := _cut_otherwise(same, result, pools, num_steps):
            pairs.append(cut)
        else:
            rest += same
            continue
        for one in result:
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
    """Amount that no cut changes: bytes of a collective, pairs of an attention; None of anything else."""
    return key.size_bytes if key.part is Part.COLLECTIVE else pairs


# Launches of a run matched to the operations expected of it: by kind, shape, size and group, then by order.

AS_ONE = (Part.KERNEL, Part.OPTIMIZER)
"""Parts whose launches have no shape: they are set beside each other in sum."""


def match_launches(expected: Sequence[Expected], ran: Iterable[Launched], num_steps: int) -> Matching:
    """Launches of ``num_steps`` steps matched to the operations of one; counts and seconds are of one step."""
    pools: dict[Key, Pool] = {}
    for one in sorted(ran, key=lambda each: each.start_s):
        pools.setdefault(one.key, Pool([])).ran.append(one)
    pairs, certain = match_exchanges(expected, pools, num_steps)
    certain, dealt = split_routed(certain, pools, num_steps)
    wanted: dict[Key, list[Expected]] = {}
    for want in certain:
        wanted.setdefault(want.key, []).append(want)
    left: list[Expected] = []
    for key, same in wanted.items():
        if key.part in AS_ONE:
            pairs += _sums(key, same, pools.pop(key, Pool([])).ran, num_steps)
            continue
        result = [pools[one] for one in _alike(key, pools)]
        launches = [one for pool in result for one in pool.take(num_steps * count_of(same))]
        paired, rest = match_in_order(same, launches, num_steps)
        pairs += paired
        left += rest
    made, left = match_composed_products(left, pools, num_steps)
    experts, dealt = match_expert_products(dealt, pools, num_steps)
    unsaid, left = match_without_key([*left, *dealt], pools, num_steps)
    pairs += [*made, *experts, *unsaid]
    return Matching(
        pairs=pairs,
        only_expected=_lone_expected(left),
        only_ran=_lone_ran((one for pool in pools.values() for one in pool.ran), num_steps),
    )


def _alike(key: Key, pools: Mapping[Key, Pool]) -> list[Key]:
    """The keys of launches that say the same, or nothing, of everything but part, kind, size and shape, which must be
    equal. A message whose group has another size (it went over all ranks') is one if none is of its own."""
    same = [
        one
        for one, pool in pools.items()
        if pool.ran
        and (one.part, one.what, one.shape, one.size_bytes) == (key.part, key.what, key.shape, key.size_bytes)
        and one.direction in (key.direction, None)
    ]
    own = [one for one in same if one.ranks in (key.ranks, None)]
    return own or (same if key.what == Collective.P2P.value else [])


def _sums(key: Key, same: Sequence[Expected], ran: Sequence[Launched], num_steps: int) -> list[Pair]:
    """All of a part beside all of it."""
    if not ran:
        return []
    pair = pair_of(same, [each.seconds for each in ran], num_steps, how="in sum")
    return [replace(pair, label=f"all {key.what}")]


def _lone_expected(left: Iterable[Expected]) -> list[Unmatched]:
    result: dict[tuple[Key, str], list[Expected]] = {}
    for one in left:
        result.setdefault((one.key, one.label), []).append(one)
    lone = [
        Unmatched(key=key, label=label, count=count_of(same), seconds=sum(one.seconds * one.count for one in same))
        for (key, label), same in result.items()
    ]
    return sorted(lone, key=lambda one: -one.seconds)


def _lone_ran(ran: Iterable[Launched], num_steps: int) -> list[Unmatched]:
    result: dict[tuple[Key, str], list[Launched]] = {}
    for one in ran:
        result.setdefault((one.key, one.name), []).append(one)
    lone = [
        Unmatched(
            key=key,
            label=name,
            count=len(same) / num_steps,
            seconds=sum(one.seconds for one in same) / num_steps,
        )
        for (key, name), same in result.items()
    ]
    return sorted(lone, key=lambda one: -one.seconds)
