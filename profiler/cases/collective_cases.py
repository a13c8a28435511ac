"""Collectives to measure: every operation over every group shape, with denser sizes where curves bend."""

from dataclasses import replace

from profdb.cases import CollectiveCase
from profiler.cases.group_tilings import GroupTiling, all_tilings, pair_tilings, part_sizes
from profiler.cases.tiers import PlannedCase, in_tier
from spec.collectives import GROUP_COLLECTIVES, Collective
from spec.dtypes import dtype_bytes

KIB = 1024
MIB = 1024 * KIB

SKELETON_BYTES = (KIB, 64 * KIB, MIB, 8 * MIB, 64 * MIB, 512 * MIB)
BEND_BYTES = tuple(128 * KIB << step for step in range(9))
"""128 KiB to 32 MiB by twos: between latency and bandwidth, where protocols and algorithms change."""
EVERY_SKELETON = tuple((kind, size) for kind in GROUP_COLLECTIVES for size in SKELETON_BYTES)
# Between the skeleton's sizes outside the bend: 4 to 32 KiB, and from 128 MiB on.
FILL_BYTES = (4 * KIB, 16 * KIB, 32 * KIB, 128 * MIB, 256 * MIB, 1024 * MIB)


def collective_cases(domain_ranks: int, domains: int, dtype: str) -> list[PlannedCase]:
    """Returns all collectives of a world of ``domains`` x ``domain_ranks``; empty for a single rank."""
    plans: list[PlannedCase] = []
    # Tier 0 has every shape at few sizes, tiers 1 and 2 the sizes between.
    for tier, sizes in enumerate((SKELETON_BYTES, BEND_BYTES, FILL_BYTES)):
        for tiling in all_tilings(domain_ranks, domains):
            plans += in_tier(tier, (case(kind, size, tiling, dtype) for kind in GROUP_COLLECTIVES for size in sizes))
        for tiling in pair_tilings(domain_ranks, domains):
            plans += in_tier(tier, (case(Collective.P2P, size, tiling, dtype) for size in sizes))
    return plans + uncrowded_cases(domain_ranks, domains, dtype)


def uncrowded_cases(domain_ranks: int, domains: int, dtype: str) -> list[PlannedCase]:
    """Returns cases across domains with fewer groups per domain than fit: a single group of every kind, and messages
    of 1, 2, 4, ... pairs. With the cases of all groups at once these are curves over domains, siblings and size."""
    plans: list[PlannedCase] = []
    for tiling in all_tilings(domain_ranks, domains):
        # Inside a domain siblings do not share a link, and one sibling is the full case already.
        if tiling.inter == 1 or tiling.siblings == 1:
            continue
        alone = [replace(case(kind, size, tiling, dtype), siblings=1) for kind, size in EVERY_SKELETON]
        plans += in_tier(3, alone)
        if tiling.intra * tiling.inter == 2:
            # Without the last, all pairs, which ``collective_cases`` has.
            for pairs in part_sizes(tiling.siblings)[:-1]:
                sent = (case(Collective.P2P, size, tiling, dtype) for size in SKELETON_BYTES)
                plans += in_tier(2, [replace(message, siblings=pairs) for message in sent])
    return plans


def case(kind: Collective, size_bytes: int, tiling: GroupTiling, dtype: str) -> CollectiveCase:
    """Returns the case with its size rounded up to equal parts of whole elements."""
    unit = int(dtype_bytes(dtype)) * (1 if kind is Collective.P2P else tiling.intra * tiling.inter)
    return CollectiveCase(
        collective=kind,
        size_bytes=-(-size_bytes // unit) * unit,
        intra=tiling.intra,
        inter=tiling.inter,
        siblings=tiling.siblings,
        dtype=dtype,
    )
