"""Cases to measure, each with a tier: the lower, the more it tells."""

import random
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from profdb.cases import FAMILY_OF, Case, Family

SHUFFLE_SEED = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """``tier`` 0 is the skeleton of a profile; each further tier fills between the points before."""

    tier: int
    case: Case


def planned(tier: int, cases: Iterable[Case]) -> list[Planned]:
    """All of one tier."""
    return [Planned(tier=tier, case=case) for case in cases]


def most_informative_first(plans: Sequence[Planned]) -> list[Case]:
    """The cases of ``in_order``."""
    return [plan.case for plan in in_order(plans)]


def in_order(plans: Sequence[Planned]) -> list[Planned]:
    """Each case once: tier by tier, families in turn within a tier, shapes of a family shuffled.

    The shuffle has a fixed seed, so that every rank and every run has the same order, and a budget
    that ends inside a tier leaves an even sample of it.
    """
    tier_of: dict[Case, int] = {}
    for plan in plans:
        tier_of[plan.case] = min(plan.tier, tier_of.get(plan.case, plan.tier))
    tiers: dict[int, dict[Family, list[Case]]] = defaultdict(lambda: defaultdict(list))
    for case, tier in tier_of.items():
        tiers[tier][FAMILY_OF[type(case)]].append(case)
    ordered: list[Planned] = []
    for tier in sorted(tiers):
        for cases in tiers[tier].values():
            random.Random(SHUFFLE_SEED).shuffle(cases)
        ordered += planned(tier, spread_evenly(list(tiers[tier].values())))
    return ordered


def spread_evenly(families: list[list[Case]]) -> list[Case]:
    """Lists of unequal length merged so that each advances at its own even pace."""
    paced = [
        ((index + 0.5) / len(cases), number, case)
        for number, cases in enumerate(families)
        for index, case in enumerate(cases)
    ]
    paced.sort(key=lambda item: (item[0], item[1]))
    return [case for _, _, case in paced]
