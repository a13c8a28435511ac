"""Segments of an NVLink domain of 72 GPUs in nodes of 4, and groups on them."""

from pathlib import Path

import numpy as np
import pytest

from ops.layout import Layout, group_of
from ops.op import Axis
from profdb.modelled.cost_model import ModelledCostModel
from profdb.queries import CollectiveQuery
from spec.arrays import ints
from spec.cluster.cluster import segmented, segments
from spec.cluster.reader import read_cluster
from spec.collectives import Collective
from spec.errors import ConfigError
from spec.units import MIB

ROOT = Path(__file__).resolve().parents[3]
NVL72 = read_cluster("gb200-nvl72", root=ROOT)


@pytest.mark.parametrize(
    ("world", "ranks"), [(8, 72), (64, 72), (72, 72), (96, 48), (128, 64), (144, 72), (1152, 64), (76, 4)]
)
def test_a_job_gets_the_largest_segment_that_divides_it(world: int, ranks: int) -> None:
    """Worlds in one rack keep it whole; 96 GPUs are two of 12 nodes, 144 two racks, 76 nineteen single nodes."""
    assert segmented(NVL72, world).scale_up_ranks == ranks


def test_a_segment_may_be_asked_for() -> None:
    assert segmented(NVL72, 1152, 72).scale_up_ranks == 72
    assert segmented(NVL72, 64, 32).scale_up_ranks == 32
    assert segmented(NVL72, 32, 64).scale_up_ranks == 64
    assert segments(NVL72, 128) == (4, 8, 16, 32, 64)


@pytest.mark.parametrize("segment", [18, 56, 76, -4])
def test_a_segment_is_whole_nodes_that_divide_the_world(segment: int) -> None:
    with pytest.raises(ConfigError, match="nvlink_segment"):
        segmented(NVL72, 1152, segment)


def test_a_domain_of_one_node_is_never_cut() -> None:
    h100 = read_cluster("h100-sxm", root=ROOT)
    assert segmented(h100, 4096) == h100
    with pytest.raises(ConfigError, match="nvlink_segment"):
        segmented(h100, 4096, 4)


@pytest.mark.parametrize("ep", [16, 32, 64])
def test_wide_expert_groups_stay_inside_a_rack(ep: int) -> None:
    """Four racks of 64 of 72: 64 ranks of a group are neighbours, and 4 groups of 16 lie side by side."""
    layout = Layout.of(256, ep=ep)
    group = group_of(Axis.EP, layout, segmented(NVL72, 256).scale_up_ranks)
    assert (group.intra[0], group.inter[0], bool(group.uneven[0])) == (ep, 1, False)
    assert group.siblings[0] == 64 // ep


def test_what_spans_racks_spans_whole_segments() -> None:
    """256 ranks are four racks of 64; a group of 128 has half of its ranks in each of two."""
    layout = Layout.of(256, tp=2, ep=128)
    ranks = segmented(NVL72, 256).scale_up_ranks
    ep, dp = group_of(Axis.EP, layout, ranks), group_of(Axis.DP, layout, ranks)
    assert (ep.intra[0], ep.inter[0], bool(ep.uneven[0])) == (64, 2, False)
    assert (dp.intra[0], dp.inter[0], dp.siblings[0]) == (32, 4, 2)


def test_an_exchange_inside_the_rack_runs_at_the_rate_of_nvlink() -> None:
    """256 MiB among 64 ranks: 63/64 of it over 18 links of 40.1 GB/s (NCCL topo.h) is 366 us; over one
    400 Gb/s NIC a GPU it would be at least 2.7 ms."""
    cost_model = ModelledCostModel(cluster=segmented(NVL72, 256))
    group = group_of(Axis.EP, Layout.of(256, ep=64), cost_model.cluster.scale_up_ranks)
    query = CollectiveQuery(
        collective=Collective.ALL_TO_ALL,
        size_bytes=ints(256 * MIB),
        intra=group.intra,
        inter=group.inter,
        siblings=group.siblings,
    )
    least = 256 * MIB * 63 / 64 / (18 * 40.1e9)
    assert least < cost_model.collective_s(query).seconds[0] < 2.0 * least


def test_sums_inside_the_rack_are_taken_by_the_switch() -> None:
    """An all_reduce of 64 ranks by NVLS moves 1 + 1/64 of the buffer one way, by a ring 2 x 63/64."""
    cost_model = ModelledCostModel(cluster=segmented(NVL72, 256))
    query = CollectiveQuery(
        collective=Collective.ALL_REDUCE, size_bytes=ints(4096 * MIB), intra=64, inter=1, siblings=1
    )
    ring = 4096 * MIB * 2 * 63 / 64 / (18 * 40.1e9)
    assert np.all(cost_model.collective_s(query).seconds < 0.9 * ring)
