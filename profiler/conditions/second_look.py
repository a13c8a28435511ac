"""Which samples are worth a second look, and what became of it."""

from collections import Counter
from collections.abc import Iterable, Sequence

from profdb.cases import Case
from profdb.sample import Sample

NOISY = 0.2
"""Spread of the trials above which a case is measured again at the end of a sweep."""

LONGEST_SHARE = 0.25
"""Of the time that a sweep took, how much second looks may take: where half of all cases are noisy the machine is busy
with something else, and a second look is no better."""

AGAIN = "measured_again"
SPREAD, CLOCK = "spread", "clock"
"""Why a sample was taken again, as it says under AGAIN."""


def spread_of(sample: Sample) -> float:
    """The relative width of the middle half of a sample's trials; 0 where it has none."""
    return float(sample.launched.get("spread", 0.0)) if sample.status == "ok" else 0.0


def noisiest_first(samples: Iterable[tuple[Case, Sample]]) -> list[Case]:
    """The cases whose samples spread by more than NOISY; trials are the slowest rank's, so every rank has the same."""
    noisy = [(spread_of(sample), case) for case, sample in samples if spread_of(sample) > NOISY]
    return [case for _, case in sorted(noisy, key=lambda one: -one[0])]


def quieter(samples: Sequence[Sample]) -> list[Sample]:
    """Each sample that was taken again, once: the quieter of the two; the others as they are."""
    kept: list[Sample] = []
    place: dict[Case, int] = {}
    for sample in samples:
        at = place.get(sample.case)
        if sample.launched.get(AGAIN) == SPREAD and at is not None:
            if sample.status == "ok" and spread_of(sample) < spread_of(kept[at]):
                kept[at] = sample
            continue
        place[sample.case] = len(kept)
        kept.append(sample)
    return kept


def taken_again(samples: Iterable[Sample]) -> Counter[str]:
    """How many samples were taken again, by why."""
    return Counter(str(sample.launched[AGAIN]) for sample in samples if AGAIN in sample.launched)
