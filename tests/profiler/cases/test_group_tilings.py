"""Groups tile the world, whatever its shape."""

from hypothesis import given
from hypothesis import strategies as st

from profiler.cases.group_tilings import all_tilings, pair_tilings, part_sizes

shapes = st.tuples(st.integers(1, 12), st.integers(1, 12))


@given(shapes)
def test_every_tiling_holds_every_rank_once(shape: tuple[int, int]) -> None:
    domain_ranks, domains = shape
    for tiling in all_tilings(domain_ranks, domains):
        ranks = [rank for group in tiling.groups for rank in group]
        assert sorted(ranks) == list(range(domain_ranks * domains))


@given(shapes)
def test_groups_have_their_shape(shape: tuple[int, int]) -> None:
    domain_ranks, domains = shape
    for tiling in all_tilings(domain_ranks, domains):
        for group in tiling.groups:
            by_domain: dict[int, int] = {}
            for rank in group:
                by_domain[rank // domain_ranks] = by_domain.get(rank // domain_ranks, 0) + 1
            assert set(by_domain.values()) == {tiling.intra}
            assert len(by_domain) == tiling.inter
        first_domain = [group for group in tiling.groups if any(rank < domain_ranks for rank in group)]
        assert len(first_domain) == tiling.siblings


def test_two_nodes_of_eight_have_every_split_of_powers_of_two() -> None:
    splits = {(tiling.intra, tiling.inter) for tiling in all_tilings(8, 2)}
    assert splits == {(i, j) for i in (1, 2, 4, 8) for j in (1, 2)} - {(1, 1)}


def test_what_a_node_really_has_is_among_the_splits() -> None:
    assert part_sizes(6) == (1, 2, 6)
    assert part_sizes(7) == (1, 7)
    assert (6, 1) in {(tiling.intra, tiling.inter) for tiling in all_tilings(6, 1)}


def test_pairs_are_neighbours_inside_and_between_domains() -> None:
    inside, between = sorted(pair_tilings(4, 2), key=lambda tiling: tiling.inter)
    assert inside.groups == ((0, 1), (2, 3), (4, 5), (6, 7))
    assert inside.siblings == 2
    assert between.groups == ((0, 4), (1, 5), (2, 6), (3, 7))
    assert between.siblings == 4


def test_one_rank_has_no_groups() -> None:
    assert all_tilings(1, 1) == ()
