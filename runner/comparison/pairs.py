"""Operations of a plan beside the launches that are they."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from runner.comparison.expected import Expected
from runner.traces.ran import Key, Ran


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
class Lone:
    """Launches of a step, or expected operations, that match nothing."""

    key: Key
    label: str
    count: float
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Matched:
    """Pairs, and what is left on each side."""

    pairs: Sequence[Pair]
    only_expected: Sequence[Lone]
    only_ran: Sequence[Lone]


@dataclass(slots=True)
class Pool:
    """Launches of one key that nothing took yet."""

    ran: list[Ran]

    def take(self, count: int) -> list[Ran]:
        """The first of them, which are no longer there."""
        taken, self.ran = self.ran[:count], self.ran[count:]
        return taken


def count_of(same: Iterable[Expected]) -> int:
    """Launches of a step."""
    return sum(one.count for one in same)


def by_order(
    same: Sequence[Expected], launches: Sequence[Ran], num_steps: int
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
        held, seconds = by_label.setdefault(want.label, ([], []))
        if exact:
            seconds += [
                float(times[at + step * count + each])
                for step in range(num_steps)
                for each in range(want.count)
            ]
            held.append(want)
            at += want.count
            continue
        taken = min(want.count * num_steps, len(times) - at)
        seconds += [float(times.mean())] * taken if taken else []
        at += taken
        whole = -(-taken // num_steps)
        if whole:
            held.append(replace(want, count=whole))
        if whole < want.count:
            left.append(replace(want, count=want.count - whole))
    pairs = [pair_of(held, seconds, num_steps) for held, seconds in by_label.values() if held]
    return [replace(one, fastest_s=fastest_s or one.fastest_s) for one in pairs], left


def pair_of(held: Sequence[Expected], seconds: Sequence[float], num_steps: int, how: str = "") -> Pair:
    """What was expected beside the seconds of its launches."""
    return Pair(
        key=held[0].key,
        label=held[0].label,
        axis=held[0].axis,
        expected_count=count_of(held),
        expected_s=sum(one.seconds * one.count for one in held),
        ran_count=len(seconds) / num_steps,
        ran_s=sum(seconds) / num_steps,
        fastest_s=min(seconds),
        how=how,
    )
