"""What links give: meshes, the link between two processors that every group across shares, payload of a line."""

from dataclasses import replace
from pathlib import Path

import pytest

from ops.layout import Layout
from ops.op import Axis, Phase
from ops.roles import Role
from profdb.modelled.cost_model import ModelledCostModel
from profdb.modelled.network.links import LONG_SHARE, OWN_CHUNK, CommGroup, network_rate, scale_up_rate, uplinks
from profdb.modelled.network.send_recv import ALL_TO_ALL_SHARE, all_to_all_seconds
from profdb.queries import CollectiveQuery
from solver.times.op_times import OpTimer
from spec.arrays import floats, ints
from spec.cluster.cluster import ClusterSpec
from spec.cluster.reader import read_cluster
from spec.collectives import Collective
from spec.errors import ConfigError
from tests.ops import operations

ROOT = Path(__file__).resolve().parents[4]
MESHED = ("mi300x", "mi355x", "ascend-910b")
# Bytes/s of one link, one way (vendors' data sheets: 128, 153.6 and 392 / 7 GB/s both ways), and what of it
# carries data
LINK = {"mi300x": (64e9, 0.75), "mi355x": (76.8e9, 0.625), "ascend-910b": (28e9, 0.75)}


@pytest.mark.parametrize("name", MESHED)
def test_a_group_has_the_links_between_its_members(name: str) -> None:
    """Two ranks one link, four three, all eight seven."""
    link, share = LINK[name]
    cluster = read_cluster(name, root=ROOT)
    rates = scale_up_rate(cluster, ints([2, 4, 8]))
    assert rates.tolist() == pytest.approx([1 * link * share, 3 * link * share, 7 * link * share])


def test_pairs_of_a_cube_mesh_have_a_link_or_two() -> None:
    """DGX-1: of the pairs (0, 1), (2, 3), (4, 5), (6, 7) the first has one of 25 GB/s, GPU 0 four to its quad and six in
    all; NCCL counts 20 of 25."""
    rates = scale_up_rate(read_cluster("dgx1-v100", root=ROOT), ints([2, 4, 8]))
    assert rates.tolist() == pytest.approx([20e9, 80e9, 120e9])


@pytest.mark.parametrize(
    ("row", "instead"),
    [
        ('"0 1 1 2 2 0 0 0"', '"0 1 1 2 2 0 0"'),  # a GPU short
        ('"0 1 1 2 2 0 0 0"', '"0 0 1 2 2 0 0 0"'),  # not the same both ways
        ('"0 1 1 2 2 0 0 0"', '"1 1 1 2 2 0 0 0"'),  # to itself
        ('"0 1 1 2 2 0 0 0",\n    "1 0', '"0 0 1 2 2 0 0 0",\n    "0 0'),  # a pair side by side without one
        ('link = "mesh"', 'link = "nvlink"'),
    ],
)
def test_links_of_pairs_that_cannot_be_are_refused(row: str, instead: str, tmp_path: Path) -> None:
    text = (ROOT / "configs" / "clusters" / "dgx1-v100.toml").read_text(encoding="utf-8")
    assert row in text
    path = tmp_path / "odd.toml"
    path.write_text(text.replace(row, instead), encoding="utf-8")
    with pytest.raises(ConfigError, match="pair_links"):
        read_cluster(str(path), root=ROOT)


def test_behind_a_switch_a_group_has_all_links() -> None:
    cluster = read_cluster("h100-sxm", root=ROOT)
    assert scale_up_rate(cluster, ints([2, 4, 8])).tolist() == pytest.approx([450e9 * 20.6 / 25] * 3)


def gathered_s(cluster: ClusterSpec, ranks: int) -> float:
    """Seconds of a long all-gather of 8 GiB over ``ranks`` of one server."""
    query = CollectiveQuery(collective=Collective.ALL_GATHER, size_bytes=2**33, intra=ranks, inter=1, siblings=1)
    return float(ModelledCostModel(cluster=cluster).collective_s(query).seconds[0])


def test_long_gathers_take_the_bytes_over_the_group_s_links() -> None:
    """n - 1 parts from the others and a copy of one's own, over n - 1 links."""
    cluster, (link, share) = read_cluster("mi300x", root=ROOT), LINK["mi300x"]
    for ranks in (2, 4, 8):
        moved = 2.0**33 * (ranks - 1 + OWN_CHUNK) / ranks
        rate = (ranks - 1) * link * share * LONG_SHARE
        assert gathered_s(cluster, ranks) == pytest.approx(moved / rate, rel=0.01)


def test_only_the_first_domain_is_a_mesh(tmp_path: Path) -> None:
    text = (ROOT / "configs" / "clusters" / "mi300x.toml").read_text(encoding="utf-8")
    path = tmp_path / "odd.toml"
    path.write_text(text.replace('link = "network"', 'link = "mesh"'), encoding="utf-8")
    with pytest.raises(ConfigError, match="first domain alone"):
        read_cluster(str(path), root=ROOT)


PCIE = read_cluster("a100-pcie-80g", root=ROOT)
LONG = 8 * 2**30
AMD_LINK = 16e9
"""NCCL src/graph/topo.h, AMD_BW, in bytes/s."""


def seconds(axis: Axis, layout: Layout, cluster: ClusterSpec = PCIE) -> float:
    op_timer = OpTimer.on(cluster, ModelledCostModel(cluster=cluster))
    comm = operations.comm(Role.PARAMETER_GATHER, Collective.ALL_GATHER, axis, LONG, phase=Phase.STEP)
    return float(op_timer.time(comm, layout).seconds[0])


def test_groups_that_cross_share_the_link() -> None:
    """dp 4 beside tp 2: two groups, each with half of the link; dp 2 beside tp 4: a quarter each."""
    copy_s = 2.0 * LONG / PCIE.gpu.memory_bandwidth
    two = seconds(Axis.DP, Layout.of(8, tp=2))
    assert two == pytest.approx(LONG * 3 / 4 / (AMD_LINK / 2 * LONG_SHARE) + copy_s / 4, rel=1e-3)
    four = seconds(Axis.DP, Layout.of(8, tp=4))
    assert four == pytest.approx(LONG / 2 / (AMD_LINK / 4 * LONG_SHARE) + copy_s / 2, rel=1e-3)


def test_a_group_below_one_processor_keeps_the_rate_of_pcie() -> None:
    """dp 4 of a pipeline of 2 lies below one processor: PCIe at 24 of 32 GB/s (NCCL PCI_BW, gen 3 doubled)."""
    inside = seconds(Axis.DP, Layout.of(8, pp=2))
    copy_s = 2.0 * LONG / PCIE.gpu.memory_bandwidth
    assert inside == pytest.approx(LONG * 3 / 4 / (24e9 * LONG_SHARE) + copy_s / 4, rel=1e-3)
    assert inside < 0.5 * seconds(Axis.DP, Layout.of(8, tp=2))


def test_a_message_to_the_next_server_takes_the_nic_and_not_the_processors_link() -> None:
    """The same pair of domains (1 x 2) is a neighbour below the other processor or in another server."""
    slow = replace(
        PCIE, domains=(*PCIE.domains[:2], replace(PCIE.domains[2], bandwidth=PCIE.domains[2].bandwidth / 10))
    )
    size = ints(64 * 2**20)
    near, far = Layout.of(8, tp=4, pp=2), Layout.of(16, tp=8, pp=2)
    for layout, moved in ((near, False), (far, True)):
        predicted = [
            float(OpTimer.on(one, ModelledCostModel(cluster=one)).p2p(layout, size).seconds[0]) for one in (PCIE, slow)
        ]
        assert (predicted[1] > 5.0 * predicted[0]) is moved


def test_a_group_over_servers_is_held_to_its_slowest_way_out() -> None:
    """All 16 ranks of two servers: NICs 8 x 12.5 GB/s together, processors 16 GB/s."""
    shape = CommGroup(intra=ints(4), inter=ints(4), siblings=ints(1), outer_intra=ints(8), outer_siblings=ints(1))
    assert network_rate(PCIE, shape)[0] == pytest.approx(AMD_LINK)
    slow = replace(PCIE, domains=(*PCIE.domains[:2], replace(PCIE.domains[2], bandwidth=1e9)))
    assert network_rate(slow, shape)[0] == pytest.approx(8e9, rel=0.02)


def test_all_to_all_sends_half_of_it_over_the_link() -> None:
    """8 ranks: 4 of 8 parts to the other processor at a quarter of the link each."""
    layout = Layout.of(8, ep=8)
    op_timer = OpTimer.on(PCIE, ModelledCostModel(cluster=PCIE))
    predicted = float(op_timer.time(operations.exchange(LONG), layout).seconds[0])
    assert predicted == pytest.approx(LONG / 2 / (AMD_LINK / 4 * ALL_TO_ALL_SHARE), rel=1e-3)


def test_one_rank_a_node_sends_by_the_whole_of_its_nic() -> None:
    """Four nodes: three of four parts leave, at all of the one NIC."""
    cluster = read_cluster("h100-sxm", root=ROOT)
    group = CommGroup(
        intra=ints([1]), inter=ints([4]), siblings=ints([8]), outer_intra=ints([0]), outer_siblings=ints([0])
    )
    (way,) = (one for one in uplinks(cluster, group) if one.crossed.all())
    one_s, two_s = (float(all_to_all_seconds(cluster, floats([size]), group)[0]) for size in (LONG, 2 * LONG))
    assert two_s - one_s == pytest.approx(0.75 * LONG / (float(way.rate[0]) * ALL_TO_ALL_SHARE), rel=1e-6)


def through_host(cluster: ClusterSpec) -> ClusterSpec:
    """The same server where GPUs are no peers."""
    inner, *others = cluster.domains
    return replace(cluster, domains=(replace(inner, peer_access=False), *others))


def test_without_peer_access_gpus_below_one_processor_reach_each_other_through_its_memory() -> None:
    """12.6 of 32 GB/s each way (the mean of 10.2 and 15) where peers have 24: four GPUs gather at that,
    whoever else does.
    """
    copy_s = 2.0 * LONG / PCIE.gpu.memory_bandwidth
    alone = seconds(Axis.TP, Layout.of(8, tp=4), through_host(PCIE))
    assert alone == pytest.approx(LONG * 3 / 4 / (12.6e9 * LONG_SHARE) + copy_s / 4, rel=1e-3)
    assert alone / seconds(Axis.TP, Layout.of(8, tp=4)) == pytest.approx(24 / 12.6, rel=0.02)


def test_across_processors_the_link_between_them_stays_the_slower() -> None:
    crossing = Layout.of(8, tp=4)
    assert seconds(Axis.DP, crossing, through_host(PCIE)) == pytest.approx(seconds(Axis.DP, crossing), rel=1e-3)
