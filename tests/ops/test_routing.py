"""How many places a token visits, against counting."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops.routing import places_visited
from spec.arrays import ints


@pytest.mark.parametrize(
    ("experts", "places", "topk"), [(8, 4, 2), (8, 2, 3), (12, 3, 4), (6, 6, 2), (4, 2, 4)]
)
def test_visits_are_the_mean_over_every_choice_of_experts(experts: int, places: int, topk: int) -> None:
    per_place = experts // places
    visited = [
        len({expert // per_place for expert in chosen}) for chosen in combinations(range(experts), topk)
    ]
    assert places_visited(ints(places), experts, topk)[0] == pytest.approx(np.mean(visited), rel=1e-12)


@given(st.sampled_from([1, 2, 4, 8, 16, 64]), st.integers(1, 8))
def test_a_token_visits_at_most_topk_places_and_all_it_can(places: int, topk: int) -> None:
    visits = places_visited(ints(places), 64, topk)[0]
    assert min(1.0, places) <= visits + 1e-12
    assert visits <= min(places, topk) + 1e-12
    if places in (1, 64):
        assert visits == pytest.approx(min(places, topk))


def test_deepseek_v3_on_8_ranks() -> None:
    """8 of 64 experts on 8 ranks: 8 (1 - 56! 56! / (48! 64!)) = 5.43 copies instead of 8."""
    assert places_visited(ints(8), 64, 8)[0] == pytest.approx(5.433, abs=0.001)
