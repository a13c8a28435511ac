"""Launches of a run matched to the operations expected of it: by kind, shape, size and group, then by order."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from runner.comparison.expected import Expected
from runner.comparison.otherwise import composed, without_key
from runner.comparison.pairs import Lone, Matched, Pair, Pool, by_order, count_of, pair_of
from runner.comparison.routed import exchanged, multiplied, without_routed
from runner.traces.ran import Key, Part, Ran
from spec.collectives import Collective

AS_ONE = (Part.KERNEL, Part.OPTIMIZER)
"""Parts whose launches have no shape: they are set beside each other in sum."""


def matched(expected: Sequence[Expected], ran: Iterable[Ran], num_steps: int) -> Matched:
    """Of ``num_steps`` steps, all counts and seconds of one."""
    pools: dict[Key, Pool] = {}
    for one in sorted(ran, key=lambda each: each.start_s):
        pools.setdefault(one.key, Pool([])).ran.append(one)
    pairs, certain = exchanged(expected, pools, num_steps)
    certain, dealt = without_routed(certain, pools, num_steps)
    wanted: dict[Key, list[Expected]] = {}
    for want in certain:
        wanted.setdefault(want.key, []).append(want)
    left: list[Expected] = []
    for key, same in wanted.items():
        if key.part in AS_ONE:
            pairs += _sums(key, same, pools.pop(key, Pool([])).ran, num_steps)
            continue
        found = [pools[one] for one in _alike(key, pools)]
        launches = [one for pool in found for one in pool.take(num_steps * count_of(same))]
        paired, rest = by_order(same, launches, num_steps)
        pairs += paired
        left += rest
    made, left = composed(left, pools, num_steps)
    experts, dealt = multiplied(dealt, pools, num_steps)
    unsaid, left = without_key([*left, *dealt], pools, num_steps)
    pairs += [*made, *experts, *unsaid]
    return Matched(
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


def _sums(key: Key, same: Sequence[Expected], ran: Sequence[Ran], num_steps: int) -> list[Pair]:
    """All of a part beside all of it."""
    if not ran:
        return []
    one = pair_of([replace(same[0], label=f"all {key.what}")], [each.seconds for each in ran], num_steps)
    return [
        replace(
            one,
            expected_count=count_of(same),
            expected_s=sum(each.seconds * each.count for each in same),
            how="in sum",
        )
    ]


def _lone_expected(left: Iterable[Expected]) -> list[Lone]:
    found: dict[tuple[Key, str], list[Expected]] = {}
    for one in left:
        found.setdefault((one.key, one.label), []).append(one)
    lone = [
        Lone(key=key, label=label, count=count_of(same), seconds=sum(one.seconds * one.count for one in same))
        for (key, label), same in found.items()
    ]
    return sorted(lone, key=lambda one: -one.seconds)


def _lone_ran(ran: Iterable[Ran], num_steps: int) -> list[Lone]:
    found: dict[tuple[Key, str], list[Ran]] = {}
    for one in ran:
        found.setdefault((one.key, one.name), []).append(one)
    lone = [
        Lone(
            key=key,
            label=name,
            count=len(same) / num_steps,
            seconds=sum(one.seconds for one in same) / num_steps,
        )
        for (key, name), same in found.items()
    ]
    return sorted(lone, key=lambda one: -one.seconds)
