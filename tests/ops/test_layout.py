"""Groups of every axis against ranks counted one by one."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops.layout import Layout, group_of, neighbours, place, ranks_and_stride
from ops.op import Axis
from spec.arrays import ints

DOMAIN = 8


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    tp, cp, dp, pp = (draw(st.sampled_from([1, 2, 4, 8])) for _ in range(4))
    ep = draw(st.sampled_from([d for d in (1, 2, 4, 8) if (tp * cp * dp) % d == 0]))
    zero = draw(st.sampled_from([d for d in (1, 2, 4, 8) if (dp * cp) % d == 0]))
    return Layout.of(tp * cp * dp * pp, tp=tp, cp=cp, pp=pp, ep=ep, zero_size=zero)


def members(axis: Axis, layout: Layout) -> list[list[int]]:
    """Groups by decomposing every rank over the axes, fastest first (Megatron-LM's order)."""
    tp, cp, dp, pp = (int(getattr(layout, name)[0]) for name in ("tp", "cp", "dp", "pp"))
    varying = {Axis.TP: "t", Axis.CP: "c", Axis.DP: "d", Axis.PP: "p", Axis.DP_CP: "cd", Axis.SDP: "tcd"}[axis]
    groups: dict[tuple[int, ...], list[int]] = {}
    for rank in range(layout.world_size):
        place_of = {"t": rank % tp, "c": rank // tp % cp, "d": rank // (tp * cp) % dp, "p": rank // (tp * cp * dp) % pp}
        key = tuple(value for name, value in place_of.items() if name not in varying)
        groups.setdefault(key, []).append(rank)
    return list(groups.values())


@given(layout=layouts(), axis=st.sampled_from([Axis.TP, Axis.CP, Axis.DP, Axis.PP, Axis.DP_CP, Axis.SDP]))
def test_shape_is_that_of_the_ranks_counted_one_by_one(layout: Layout, axis: Axis) -> None:
    group = group_of(axis, layout, DOMAIN)
    for ranks in members(axis, layout):
        per_domain = np.unique(np.array(ranks) // DOMAIN, return_counts=True)[1]
        assert len(ranks) == group.ranks[0]
        assert len(per_domain) == group.inter[0]
        assert set(per_domain.tolist()) == {int(group.intra[0])}
    assert not group.uneven[0]


@given(layout=layouts(), axis=st.sampled_from([Axis.TP, Axis.CP, Axis.DP, Axis.DP_CP, Axis.SDP]))
def test_siblings_are_the_groups_that_touch_one_domain(layout: Layout, axis: Axis) -> None:
    group = group_of(axis, layout, DOMAIN)
    touching = sum(1 for ranks in members(axis, layout) if any(rank < DOMAIN for rank in ranks))
    assert group.siblings[0] == touching


def test_a_group_that_straddles_domains_is_flagged_and_spread() -> None:
    group = place(ints(6), ints(1), 48, DOMAIN)
    assert group.uneven[0]
    assert (group.intra[0], group.inter[0]) == (3, 2)


def test_expert_groups_fold_over_the_dense_ranks() -> None:
    """arXiv 2504.14960 sec. 3: etp, ep, edp, pp over the ranks of tp, cp, dp, pp."""
    layout = Layout.of(64, tp=4, pp=2, ep=8, etp=2)
    assert ranks_and_stride(Axis.ETP, layout)[1][0] == 1
    assert ranks_and_stride(Axis.EP, layout)[1][0] == 2
    assert ranks_and_stride(Axis.EDP, layout) == (ints(2), ints(16))


def test_ulysses_shards_over_neighbours_where_tensor_parallelism_leaves_gaps() -> None:
    """Of 4 x 4 ranks eight shards lie in one node, and the two replicas in two."""
    layout = Layout.of(16, tp=4, zero_size=8)
    shard, replicate = (group_of(axis, layout, DOMAIN) for axis in (Axis.SDP_SHARD, Axis.SDP_REPLICATE))
    assert (shard.ranks[0], shard.stride[0], shard.intra[0], shard.inter[0]) == (8, 1, 8, 1)
    assert (replicate.ranks[0], replicate.stride[0], replicate.intra[0], replicate.inter[0]) == (2, 8, 1, 2)


@pytest.mark.parametrize(("tp", "pp", "crosses"), [(8, 2, True), (2, 4, False), (1, 2, False), (4, 4, True)])
def test_pipeline_hops_cross_nodes_when_the_pipeline_does(tp: int, pp: int, crosses: bool) -> None:
    layout = Layout.of(tp * pp, tp=tp, pp=pp)
    group = neighbours(group_of(Axis.PP, layout, DOMAIN), DOMAIN)
    assert bool(group.inter[0] == 2) is crosses


def test_first_and_last_stage_of_one_server_are_neighbours_by_its_links() -> None:
    """Ranks 0 and 7 of a pipeline of 8 in one domain of 8; of 16 stages they lie in two."""
    inside = group_of(Axis.EMBEDDING, Layout.of(8, pp=8), DOMAIN)
    assert (inside.intra[0], inside.inter[0], bool(inside.uneven[0])) == (2, 1, False)
    across = group_of(Axis.EMBEDDING, Layout.of(16, pp=16), DOMAIN)
    assert across.inter[0] == 2
