"""Cases to measure, each with a tier: the lower, the more informative."""

import random
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from profdb.cases import FAMILY_OF, Case, Family

SHUFFLE_SEED = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedCase:
    """A case and its tier: 0 is the skeleton of a profile, each further tier fills between the points before."""

    tier: int
    case: Case


def in_tier(tier: int, cases: Iterable[Case]) -> list[PlannedCase]:
    """Returns the cases, all of one tier."""
    return [PlannedCase(tier=tier, case=case) for case in cases]


def in_order(plans: Sequence[PlannedCase]) -> list[PlannedCase]:
    """Returns each case once: tier by tier, families alternating within a tier, shapes of a family shuffled.

    The shuffle has a fixed seed, so that every rank and every run has the same order, and a budget that ends inside a
    tier leaves an even sample of it.
    """
    tier_of: dict[Case, int] = {}
    for plan in plans:
        # A case of several tiers is measured in the lowest.
        tier_of[plan.case] = min(plan.tier, tier_of.get(plan.case, plan.tier))
    tiers: dict[int, dict[Family, list[Case]]] = defaultdict(lambda: defaultdict(list))
    for case, tier in tier_of.items():
        tiers[tier][FAMILY_OF[type(case)]].append(case)
    ordered: list[PlannedCase] = []
    for tier in sorted(tiers):
        for cases in tiers[tier].values():
            random.Random(SHUFFLE_SEED).shuffle(cases)
        ordered += in_tier(tier, spread_evenly(list(tiers[tier].values())))
    return ordered


def spread_evenly(families: list[list[Case]]) -> list[Case]:
    """Returns lists of unequal length merged so that each advances at its own even pace."""
    # The i-th of n cases is due at (i + 1/2) / n of the tier; ties keep the families' order.
    paced = [
        ((index + 0.5) / len(cases), number, case)
        for number, cases in enumerate(families)
        for index, case in enumerate(cases)
    ]
    paced.sort(key=lambda item: (item[0], item[1]))
    return [case for _, _, case in paced]
