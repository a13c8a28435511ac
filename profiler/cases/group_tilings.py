"""All tilings of the world by equal groups: intra ranks in each of inter domains."""

from dataclasses import dataclass

from profdb.cases import CollectiveCase, GroupedCase


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupTiling:
    """Groups of ``intra`` ranks in each of ``inter`` neighbouring domains of ``domain_ranks``.

    ``groups`` are the global ranks of each; together they have every rank exactly once and communicate at the same
    time, so that the measurement includes the sharing of links and NICs.
    """

    intra: int
    inter: int
    domain_ranks: int
    groups: tuple[tuple[int, ...], ...]

    @property
    def siblings(self) -> int:
        """Returns the number of groups that have ranks in one domain."""
        return self.domain_ranks // self.intra

    def slot_of(self, rank: int) -> int:
        """Returns the index of ``rank``'s group among those that share its domain, from 0."""
        return rank % self.domain_ranks // self.intra

    def group_of(self, rank: int) -> tuple[int, ...]:
        """Returns the group of ``rank``."""
        return next(group for group in self.groups if rank in group)


def part_sizes(whole: int) -> tuple[int, ...]:
    """Returns the powers of two that divide ``whole``, and ``whole`` itself."""
    # For 12: 1, 2, 4 and 12.
    powers = {1 << bit for bit in range(whole.bit_length()) if whole % (1 << bit) == 0}
    return tuple(sorted(powers | {whole}))


def tile(intra: int, inter: int, domain_ranks: int, domains: int) -> GroupTiling:
    """Returns groups of consecutive ranks of a domain, in the same slots of ``inter`` consecutive domains.

    ``intra`` divides ``domain_ranks`` and ``inter`` divides ``domains``.
    """
    groups = []
    for first_domain in range(0, domains, inter):
        for slot in range(0, domain_ranks, intra):
            groups.append(
                tuple(
                    # Global ranks count domain by domain; ``slot`` is the first of the group's ranks in each.
                    (first_domain + domain) * domain_ranks + slot + member
                    for domain in range(inter)
                    for member in range(intra)
                )
            )
    return GroupTiling(intra=intra, inter=inter, domain_ranks=domain_ranks, groups=tuple(groups))


def why_untiled(case: GroupedCase, domain_ranks: int, domains: int) -> str:
    """Returns why the groups of the case do not tile so many domains of so many ranks; "" if they do. Across domains
    a collective may run in fewer of the groups that share one; the others rest."""
    # Groups must divide the ranks of a domain and the number of domains.
    fits = (
        case.intra >= 1
        and case.inter >= 1
        and domain_ranks % case.intra == 0
        and domains % case.inter == 0
        and case.intra * case.inter > 1
    )
    if not fits:
        return f"groups of {case.intra} x {case.inter} do not tile {domains} domains of {domain_ranks}"
    siblings = tile(case.intra, case.inter, domain_ranks, domains).siblings
    fewer = isinstance(case, CollectiveCase) and case.inter > 1 and 1 <= case.siblings < siblings
    if siblings != case.siblings and not fewer:
        return f"{siblings} groups share a domain here, not {case.siblings}"
    return ""


def all_tilings(domain_ranks: int, domains: int) -> tuple[GroupTiling, ...]:
    """Returns every intra x inter split of two ranks or more, larger groups first."""
    splits = [
        (intra, inter) for intra in part_sizes(domain_ranks) for inter in part_sizes(domains) if intra * inter > 1
    ]
    splits.sort(key=lambda split: (-split[0] * split[1], split[1]))
    return tuple(tile(intra, inter, domain_ranks, domains) for intra, inter in splits)


def pair_tilings(domain_ranks: int, domains: int) -> tuple[GroupTiling, ...]:
    """Returns pairs of neighbours for messages: inside a domain, and in equal slots of two domains."""
    return tuple(tiling for tiling in all_tilings(domain_ranks, domains) if tiling.intra * tiling.inter == 2)
