"""Flows add up to the closed forms and stay inside their groups."""

import csv
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spec.collectives import TRAINING_COLLECTIVES, Collective, busbw_factor
from spec.errors import ExportError
from workload.traffic.flows import flow_matrix, pattern, rank_flows, traffic_matrix, write_flows
from workload.traffic.plan_traffic import draw_heatmap

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
        expected = (
            ranks * (ranks - inside) / ranks if kind is Collective.ALL_TO_ALL else factor * (domains - 1)
        )
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
    assert rows[0] == {
        "group": "0",
        "stage": "0",
        "src": "3",
        "dst": "5",
        "size_bytes": "6.0",
        "messages": "2",
    }
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
        ((4, [(0, 1)], Collective.ALL_REDUCE, -1.0), "negative"),
        ((4, [(0, 1)], Collective.ALL_REDUCE, 1.0, "star"), "known: ring"),
        ((4, [(0, 1)], Collective.ALL_GATHER, 1.0, "tree"), "no tree"),
        ((4, [(0, 1)], Collective.ALL_TO_ALL, 1.0, "tree"), "no tree"),
        ((4, [(0, 1)], Collective.ALL_GATHER, 1.0, "direct"), "no direct"),
        ((4, [(0, 1)], Collective.ALL_GATHER, 1.0, "hierarchical"), "scale-up domain"),
        ((8, [(0, 1, 4)], Collective.ALL_GATHER, 1.0, "hierarchical", 4), "unevenly"),
        ((8, [(0, 4, 1, 5)], Collective.ALL_GATHER, 1.0, "hierarchical", 4), "unevenly"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments: tuple[object, ...], match: str) -> None:
    with pytest.raises(ExportError, match=match):
        traffic_matrix(*arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["filled", "one", "empty", "large"])
def test_heatmap_is_written(kind: str, tmp_path: Path) -> None:
    matrix = {
        "filled": np.arange(16.0).reshape(4, 4) * 2**30,
        "one": np.eye(4),
        "empty": np.zeros((4, 4)),
        "large": np.eye(1500),
    }[kind]
    path = tmp_path / "map.png"
    draw_heatmap(matrix, path, "bytes per step, tp")
    assert path.read_bytes().startswith(b"\x89PNG")
    assert list(tmp_path.iterdir()) == [path]


def test_heatmap_of_unknown_ending(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"\.png"):
        draw_heatmap(np.eye(2), tmp_path / "map.xyz", "t")
    assert list(tmp_path.iterdir()) == []
