"""Groups are those Megatron-LM's RankGenerator forms."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops.groups import ranks_and_stride
from ops.layout import Layout
from ops.op import Axis
from workload.findings import WorkloadError
from workload.traffic.ranks import RankOrder, named_groups, rank_groups

SIXTEEN = RankOrder(tp=2, ep=2, dp=4, pp=2)


@pytest.mark.parametrize(
    ("token", "independent_ep", "first"),
    [
        # As AICB's RankGenerator lists them for 16 ranks, tp 2, ep 2, dp 4, pp 2.
        ("ep", True, [(0, 2), (1, 3), (4, 6)]),
        ("dp", True, [(0, 4), (1, 5), (2, 6)]),
        ("tp-ep", True, [(0, 1, 2, 3), (4, 5, 6, 7)]),
        ("dp", False, [(0, 2, 4, 6), (1, 3, 5, 7), (8, 10, 12, 14)]),
        ("pp", False, [(0, 8), (1, 9)]),
        ("tp", False, [(0, 1), (2, 3)]),
    ],
)
def test_sixteen_ranks(token: str, independent_ep: bool, first: list[tuple[int, ...]]) -> None:
    groups = rank_groups(SIXTEEN, token, independent_ep=independent_ep)
    assert list(groups[: len(first)]) == first


def test_the_order_string_decides_the_strides() -> None:
    assert rank_groups(RankOrder(tp=2, dp=2, pp=2, order="pp-dp-tp"), "pp")[0] == (0, 1)
    # dp before ep: ep is the outer half of the data-parallel axis.
    assert rank_groups(RankOrder(ep=2, dp=4, order="dp-ep"), "ep", independent_ep=True)[0] == (0, 2)


def test_names() -> None:
    groups = named_groups(SIXTEEN)
    assert groups["expert_dp"][0] == (0, 4)
    assert groups["cp"][5] == (5,)


@given(
    degrees=st.tuples(*[st.integers(1, 4)] * 5),
    places=st.permutations(["tp", "cp", "dp", "pp"]),
    joined=st.sampled_from(["tp", "cp", "dp", "pp", "ep", "tp-ep", "dp-cp", "tp-pp"]),
)
def test_groups_part_the_world(
    degrees: tuple[int, int, int, int, int], places: list[str], joined: str
) -> None:
    tp, cp, ep, outer, pp = degrees
    order = "-".join(places).replace("dp", "ep-dp")
    ranks = RankOrder(tp=tp, cp=cp, ep=ep, dp=ep * outer, pp=pp, order=order)
    groups = rank_groups(ranks, joined, independent_ep="ep" in joined)
    assert sorted(rank for group in groups for rank in group) == list(range(ranks.world_size))
    assert {len(group) for group in groups} == {math.prod(getattr(ranks, word) for word in joined.split("-"))}
    assert all(list(group) == sorted(group) for group in groups)


@given(degrees=st.tuples(*[st.integers(1, 4)] * 4))
def test_the_solver_places_the_same_groups(degrees: tuple[int, int, int, int]) -> None:
    tp, cp, dp, pp = degrees
    order = RankOrder(tp=tp, cp=cp, dp=dp, pp=pp)
    layout = Layout.of(order.world_size, tp=tp, cp=cp, pp=pp)
    for token, axis in (
        ("tp", Axis.TP),
        ("cp", Axis.CP),
        ("dp", Axis.DP),
        ("pp", Axis.PP),
        ("dp-cp", Axis.DP_CP),
    ):
        ranks, stride = (int(each[0]) for each in ranks_and_stride(axis, layout))
        assert rank_groups(order, token)[0] == tuple(range(0, ranks * stride, stride))


@pytest.mark.parametrize(
    ("degrees", "match"),
    [
        ({"tp": 0}, "at least 1"),
        ({"ep": 3, "dp": 4}, "does not divide"),
        ({"order": "tp-cp-ep-pp-dp"}, "beside dp"),
        ({"order": "tp-dp-xx"}, "xx"),
        ({"order": "tp-tp-dp"}, "at most once"),
        ({"order": ""}, "at most once"),
        ({"order": "tp-dp", "pp": 2}, "has no pp"),
        ({"tp": 2**12, "dp": 2**12}, "at most"),
    ],
)
def test_orders_that_are_refused(degrees: dict[str, object], match: str) -> None:
    with pytest.raises(WorkloadError, match=match):
        RankOrder(**degrees)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("token", "match"), [("ep", "independent_ep"), ("xx", "known: tp"), ("", "known: tp")]
)
def test_groups_that_are_refused(token: str, match: str) -> None:
    with pytest.raises(WorkloadError, match=match):
        rank_groups(SIXTEEN, token)
