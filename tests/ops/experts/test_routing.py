"""How many places a token visits, against counting."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops.experts.routing import Routing, places_visited
from spec.arrays import ints


@pytest.mark.parametrize(("experts", "places", "topk"), [(8, 4, 2), (8, 2, 3), (12, 3, 4), (6, 6, 2), (4, 2, 4)])
def test_visits_are_the_mean_over_every_choice_of_experts(experts: int, places: int, topk: int) -> None:
    per_place = experts // places
    visited = [len({expert // per_place for expert in chosen}) for chosen in combinations(range(experts), topk)]
    assert places_visited(ints(places), Routing(num_experts=experts, topk=topk))[0] == pytest.approx(
        np.mean(visited), rel=1e-12
    )


@given(st.sampled_from([1, 2, 4, 8, 16, 64]), st.integers(1, 8))
def test_a_token_visits_at_most_topk_places_and_all_it_can(places: int, topk: int) -> None:
    visits = places_visited(ints(places), Routing(num_experts=64, topk=topk))[0]
    assert min(1.0, places) <= visits + 1e-12
    assert visits <= min(places, topk) + 1e-12
    if places in (1, 64):
        assert visits == pytest.approx(min(places, topk))


def test_deepseek_v3_on_8_ranks() -> None:
    """8 of 64 experts on 8 ranks: 8 (1 - 56! 56! / (48! 64!)) = 5.43 copies instead of 8."""
    assert places_visited(ints(8), Routing(num_experts=64, topk=8))[0] == pytest.approx(5.433, abs=0.001)


@pytest.mark.parametrize("places", [2, 4, 8])
def test_limited_to_groups_a_token_visits_what_counting_says(places: int) -> None:
    """2 experts in 2 of 4 groups of 2: every choice of groups, then of experts in them."""
    visited = []
    for groups in combinations(range(4), 2):
        reachable = [expert for expert in range(8) if expert // 2 in groups]
        visited += [len({e // (8 // places) for e in chosen}) for chosen in combinations(reachable, 2)]
    routing = Routing(num_experts=8, topk=2, groups=4, chosen_groups=2)
    assert places_visited(ints(places), routing)[0] == pytest.approx(np.mean(visited), rel=1e-12)


def test_deepseek_v3_visits_four_nodes_at_most() -> None:
    """arXiv 2412.19437 sec. 2.1.2: 8 of 256 experts, in 4 of 8 groups."""
    routing = Routing(num_experts=256, topk=8, groups=8, chosen_groups=4)
    nodes = places_visited(ints(8), routing)[0]
    assert 3.5 < nodes < 4.0 < places_visited(ints(8), Routing(num_experts=256, topk=8))[0]


@pytest.mark.parametrize(
    ("experts", "places", "topk"),
    [(256, 8, 8), (256, 64, 8), (128, 64, 4), (64, 8, 6), (12, 3, 8), (8, 1, 2), (6, 6, 4)],
)
def test_in_turn_a_token_visits_the_places_of_the_next_experts(experts: int, places: int, topk: int) -> None:
    """Token after token, until the experts come round: 8 of 256 on 8 nodes lie in one, on 64 ranks in two."""
    per_place = experts // places
    visited = [
        len({(token * topk + choice) % experts // per_place for choice in range(topk)}) for token in range(experts)
    ]
    routing = Routing(num_experts=experts, topk=topk, groups=2, chosen_groups=1, in_turn=True)
    assert places_visited(ints(places), routing)[0] == pytest.approx(np.mean(visited), rel=1e-12)
