"""Flows add up to the closed forms and stay inside their groups."""

import csv
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops.layout import Layout, ranks_and_stride
from ops.op import Axis
from solver.plans.plan_table import Plan
from spec.arrays import FloatArray
from spec.collectives import TRAINING_COLLECTIVES, Collective, busbw_factor
from spec.errors import ExportError
from spec.frameworks import framework_preset
from tests.solver.questions import question
from workload.diagnostics import WorkloadError
from workload.stage_work import stage_works
from workload.traffic.flows import flow_matrix, pattern, rank_flows, write_flows
from workload.traffic.plan_traffic import axis_matrices, draw_heatmap, plan_groups
from workload.traffic.ranks import RankOrder, named_groups, rank_groups


def traffic_matrix(world_size: int, *flows: Any) -> FloatArray:
    """Bytes from rank to rank of ``rank_flows`` with these arguments."""
    return flow_matrix(rank_flows(*flows[:4], domain_ranks=(*flows[4:], 0)[0]), world_size)


GATHERS = (Collective.ALL_GATHER, Collective.REDUCE_SCATTER)


@given(ranks=st.integers(2, 40), size=st.integers(1, 2**40))
def test_rings_send_what_busbw_counts(ranks: int, size: int) -> None:
    # nccl-tests PERFORMANCE.md: each rank of a ring moves factor * size_bytes.
    for kind in (Collective.ALL_REDUCE, *GATHERS, Collective.ALL_TO_ALL):
        matrix = traffic_matrix(ranks, [range(ranks)], kind, size)
        sent = float(busbw_factor(kind, ranks)) * size
        np.testing.assert_allclose(matrix.sum(axis=1), sent, rtol=1e-12)
        np.testing.assert_allclose(matrix.sum(axis=0), sent, rtol=1e-12)
        assert np.all(np.diag(matrix) == 0)


@given(ranks=st.integers(2, 40))
def test_trees_send_as_much_as_rings_and_reach_everyone(ranks: int) -> None:
    for kind, total in ((Collective.ALL_REDUCE, 2 * (ranks - 1)), (Collective.BROADCAST, ranks - 1)):
        flows = pattern(kind, ranks, algorithm="tree")
        assert flows.share.sum() == pytest.approx(total, rel=1e-12)
        reached = {0} if kind is Collective.BROADCAST else {int(flows.dst[-1])}
        links = set(zip(flows.src.tolist(), flows.dst.tolist(), strict=True))
        for _ in range(ranks):
            reached |= {dst for src, dst in links if src in reached}
        assert len(reached) == ranks


@given(ranks=st.integers(2, 40))
def test_two_trees_share_the_load(ranks: int) -> None:
    # Sanders, Speck, Traeff 2009: a leaf of one tree is an inner member of the other, so nobody sends more
    # than the whole array up and twice the whole array down.
    flows = pattern(Collective.ALL_REDUCE, ranks, algorithm="tree")
    sent = np.bincount(flows.src, weights=flows.share, minlength=ranks)
    assert sent.max() <= 2.0 + 1e-12
    assert sent.min() >= 0.5


@given(domains=st.integers(1, 6), inside=st.integers(1, 6))
def test_hierarchical_totals(domains: int, inside: int) -> None:
    ranks = domains * inside
    for kind in (Collective.ALL_REDUCE, *GATHERS, Collective.BROADCAST, Collective.ALL_TO_ALL):
        flows = pattern(kind, ranks, algorithm="hierarchical", domains=domains)
        extra = (domains - 1) * (inside - 1) if kind is Collective.ALL_TO_ALL else 0
        factor = 2 if kind is Collective.ALL_REDUCE else 1
        assert flows.share.sum() == pytest.approx(factor * (ranks - 1) + extra, abs=1e-9)
        across = flows.share[flows.src // inside != flows.dst // inside].sum()
        # Across domains: an all-to-all moves every part for another domain once; a reduction or gather moves
        # the array once per further domain.
        expected = ranks * (ranks - inside) / ranks if kind is Collective.ALL_TO_ALL else factor * (domains - 1)
        assert across == pytest.approx(expected, abs=1e-9)


def test_hierarchical_crosses_domains_less_than_a_strided_ring() -> None:
    ranks = [0, 4, 1, 5]
    ring = traffic_matrix(8, [ranks], Collective.ALL_REDUCE, 8.0)
    layered = traffic_matrix(8, [sorted(ranks)], Collective.ALL_REDUCE, 8.0, "hierarchical", 4)
    assert ring[:4, 4:].sum() + ring[4:, :4].sum() == 48.0
    assert layered[:4, 4:].sum() + layered[4:, :4].sum() == 16.0


def test_groups_do_not_mix_and_cells_sum_ranks() -> None:
    groups = [(0, 2), (1, 3)]
    flows = rank_flows(groups, Collective.ALL_GATHER, 10.0)
    matrix = flow_matrix(flows, 4)
    expected = np.zeros((4, 4))
    for a, b in groups:
        expected[a, b] = expected[b, a] = 5.0
    np.testing.assert_array_equal(matrix, expected)
    np.testing.assert_array_equal(flow_matrix(flows, 4, ranks_per_cell=2), [[0, 10], [10, 0]])


def test_a_pipeline_sends_to_the_next_stage_only() -> None:
    np.testing.assert_array_equal(
        traffic_matrix(6, [(0, 2, 4)], Collective.P2P, 7.0)[::2, ::2], [[0, 7, 0], [0, 0, 7], [0, 0, 0]]
    )


def test_a_group_of_one_moves_nothing() -> None:
    for kind in TRAINING_COLLECTIVES:
        assert traffic_matrix(2, [(0,), (1,)], kind, 1e9).sum() == 0


def test_flow_file(tmp_path: Path) -> None:
    path = tmp_path / "flows.csv"
    write_flows(path, rank_flows([(3, 5), (0,)], Collective.ALL_REDUCE, 6.0))
    with path.open() as handle:
        rows = list(csv.DictReader(handle))
    assert rows[0] == {"group": "0", "stage": "0", "src": "3", "dst": "5", "size_bytes": "6.0", "messages": "2"}
    assert len(rows) == 2


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ((4, [(0, 4)], Collective.ALL_REDUCE, 1.0), "outside the world"),
        ((4, [(0, -1)], Collective.ALL_REDUCE, 1.0), "negative rank"),
        ((4, [(0, 0)], Collective.ALL_REDUCE, 1.0), "twice"),
        ((4, [()], Collective.ALL_REDUCE, 1.0), "at least one rank"),
        ((0, [], Collective.ALL_REDUCE, 1.0), "at least 1"),
        ((9000, [], Collective.ALL_REDUCE, 1.0), "at least 2 ranks per cell"),
        ((4, [(0, 1)], Collective.ALL_REDUCE, float("nan")), "finite"),
        ((4, [(0, 1)], Collective.ALL_REDUCE, 1.0, "star"), "known: ring"),
        ((4, [(0, 1)], Collective.ALL_GATHER, 1.0, "tree"), "no tree"),
        ((4, [(0, 1)], Collective.ALL_GATHER, 1.0, "direct"), "no direct"),
        ((4, [(0, 1)], Collective.ALL_GATHER, 1.0, "hierarchical"), "scale-up domain"),
        ((8, [(0, 1, 4)], Collective.ALL_GATHER, 1.0, "hierarchical", 4), "unevenly"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments: tuple[Any, ...], match: str) -> None:
    with pytest.raises(ExportError, match=match):
        traffic_matrix(*arguments)


@pytest.mark.parametrize("kind", ["one", "empty", "large"])
@pytest.mark.usefixtures("quick_pictures")
def test_heatmap_is_written(kind: str, tmp_path: Path) -> None:
    matrix = {"one": np.eye(4), "empty": np.zeros((4, 4)), "large": np.eye(1500)}[kind]
    path = tmp_path / "map.png"
    draw_heatmap(matrix, path, "bytes per step, tp")
    assert path.read_bytes().startswith(b"\x89PNG")
    assert list(tmp_path.iterdir()) == [path]


def test_heatmap_of_unknown_ending(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"\.png"):
        draw_heatmap(np.eye(2), tmp_path / "map.xyz", "t")
    assert list(tmp_path.iterdir()) == []


# Traffic of a plan rank by rank: pipeline hops of virtual chunks, and totals by the closed form.


@pytest.mark.parametrize("vpp", [1, 2])
def test_hops_by_rank_are_the_hops_of_the_stages(vpp: int) -> None:
    plan = Plan(strategy="mtp", preset="internevo", tp=2, pp=4, vpp=vpp, dp=2, micro_batch=1, num_micro=4)
    asked = question(world_size=16, sequences=8)
    matrix = axis_matrices(asked, plan)[Axis.PP]
    # Each rank sends and receives; a stage's hops count both, so its ranks send half of them.
    sent = matrix.sum(axis=1)
    for work in stage_works(asked, plan):
        expected = work.p2p_messages / 2 * plan.num_micro * work.p2p_bytes
        assert sent[work.position * 4] == pytest.approx(expected)
    wraps = matrix[12, 0]
    assert wraps == (vpp - 1) * plan.num_micro * stage_works(asked, plan)[0].p2p_bytes
    assert np.array_equal(matrix, matrix.T)


def test_groups_of_a_plan_partition_the_ranks_and_follow_the_expert_grid() -> None:
    plan = Plan(strategy="fsp", preset="megatron", tp=2, pp=2, dp=4, ep=4, etp=1, num_micro=2)
    groups = plan_groups(plan)
    for members in groups.values():
        assert sorted(rank for group in members for rank in group) == list(range(16))
    assert groups["tp"][:2] == ((0, 1), (2, 3))
    assert groups["pp"][0] == (0, 8)
    # experts are not cut over tp: their ranks are neighbours, and copies of an expert 4 apart
    assert groups["ep"][:2] == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert groups["edp"][:2] == ((0, 4), (1, 5))


def test_ulysses_sends_gradients_around_all_ranks_that_share_its_weights() -> None:
    """Four ranks in two sequence groups: neighbours exchange heads, and one ring of four reduces."""
    plan = Plan(strategy="ulysses", preset="deepspeed", tp=2, dp=2, num_micro=2)
    asked = question(world_size=4, sequences=4, preset=framework_preset("deepspeed"))
    matrices = axis_matrices(asked, plan)
    assert set(matrices) == {Axis.TP, Axis.SDP}
    assert np.flatnonzero(matrices[Axis.TP][0]).tolist() == [1]
    assert np.flatnonzero(matrices[Axis.SDP][0]).tolist() == [1]
    assert np.flatnonzero(matrices[Axis.SDP][3]).tolist() == [0]
    (work,) = stage_works(asked, plan)
    # all-to-alls between two ranks: half of each leaves
    exchanged = sum(times * item.total_bytes for times, item in work.per_step() if item.axis is Axis.TP)
    assert matrices[Axis.TP].sum(axis=1).tolist() == pytest.approx([exchanged / 2] * 4)
    size = sum(item.total_bytes for item in work.step if item.collective is not None)
    # 2 (n - 1) / n of an all-reduce leaves every rank
    assert matrices[Axis.SDP].sum(axis=1).tolist() == pytest.approx([1.5 * size] * 4)
    assert plan_groups(plan)["sdp"] == ((0, 1, 2, 3),)


# Groups are those Megatron-LM's RankGenerator forms.

SIXTEEN = RankOrder(tp=2, ep=2, dp=4, pp=2)


def test_the_order_string_decides_the_strides() -> None:
    assert rank_groups(RankOrder(tp=2, dp=2, pp=2, order="pp-dp-tp"), "pp")[0] == (0, 1)
    # dp before ep: ep is the outer half of the data-parallel axis.
    assert rank_groups(RankOrder(ep=2, dp=4, order="dp-ep"), "ep", independent_ep=True)[0] == (0, 2)


def test_names() -> None:
    groups = named_groups(SIXTEEN)
    assert (groups["ep"][0], groups["expert_dp"][0], groups["expert_tp_ep"][0]) == ((0, 2), (0, 4), (0, 1, 2, 3))
    assert groups["cp"][5] == (5,)


@given(
    degrees=st.tuples(*[st.integers(1, 4)] * 5),
    places=st.permutations(["tp", "cp", "dp", "pp"]),
    joined=st.sampled_from(["tp", "cp", "dp", "pp", "ep", "tp-ep", "dp-cp", "tp-pp"]),
)
def test_groups_part_the_world(degrees: tuple[int, int, int, int, int], places: list[str], joined: str) -> None:
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
    for token, axis in (("tp", Axis.TP), ("cp", Axis.CP), ("dp", Axis.DP), ("pp", Axis.PP), ("dp-cp", Axis.DP_CP)):
        ranks, stride = (int(each[0]) for each in ranks_and_stride(axis, layout))
        assert rank_groups(order, token)[0] == tuple(range(0, ranks * stride, stride))


@pytest.mark.parametrize(
    ("degrees", "match"),
    [
        ({"tp": 0}, "at least 1"),
        ({"ep": 3, "dp": 4}, "does not divide"),
        ({"order": "tp-cp-ep-pp-dp"}, "beside dp"),
        ({"order": "tp-tp-dp"}, "at most once"),
        ({"order": "tp-dp", "pp": 2}, "has no pp"),
        ({"tp": 2**12, "dp": 2**12}, "at most"),
    ],
)
def test_orders_that_are_refused(degrees: dict[str, object], match: str) -> None:
    with pytest.raises(WorkloadError, match=match):
        RankOrder(**degrees)  # type: ignore[arg-type]


@pytest.mark.parametrize(("token", "match"), [("ep", "independent_ep"), ("xx", "known: tp"), ("", "known: tp")])
def test_groups_that_are_refused(token: str, match: str) -> None:
    with pytest.raises(WorkloadError, match=match):
        rank_groups(SIXTEEN, token)
