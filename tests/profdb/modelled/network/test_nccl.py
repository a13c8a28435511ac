"""Modelled collectives: NCCL's own tables and closed forms at both ends of the sizes, and what must hold between."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profdb.modelled.network.links import (
    LINK_LATENCIES,
    LL_MAX_RATE_NODES,
    LONG_SHARE,
    NETWORK_START_S,
    NIC_EFFICIENCY,
    NVLS_SHARE,
    OWN_CHUNK,
    CommGroup,
    Protocol,
    bus_rate,
    long_share,
    network_rate,
    scale_up_rate,
)
from profdb.modelled.network.nccl import (
    PLATEAU_BYTES,
    RING_BASE_S,
    RING_LL128_SHARE,
    TREE_BASE_S,
    TREE_LL128_SHARE,
    collective_seconds,
    nvls_loop_bytes,
    nvls_seconds,
    pat_seconds,
    ring_latency,
    tree_seconds,
)
from profdb.modelled.network.send_recv import all_to_all_seconds, p2p_seconds
from spec.arrays import floats, ints
from spec.cluster.cluster import ClusterSpec
from spec.cluster.reader import read_cluster
from spec.collectives import GROUP_COLLECTIVES, Collective
from spec.units import MIB
from tests.solver.questions import ROOT

NAMES = ("a100-sxm-80g", "h100-sxm", "b200", "gb200-nvl72", "l40s", "dgx1-v100", "aws-p4d", "cpu")
CLUSTERS = {name: read_cluster(name, root=ROOT) for name in NAMES}
A100, H100 = CLUSTERS["a100-sxm-80g"], CLUSTERS["h100-sxm"]
KINDS = GROUP_COLLECTIVES


def shape(intra: int, inter: int, siblings: int = 1) -> CommGroup:
    return CommGroup(intra=ints(intra), inter=ints(inter), siblings=ints(siblings))


def seconds(cluster: ClusterSpec, kind: Collective, size: float, group: CommGroup) -> float:
    if kind is Collective.ALL_TO_ALL:
        return float(all_to_all_seconds(cluster, floats(size), group)[0])
    return float(collective_seconds(cluster, kind, floats(size), group)[0])


def test_long_ring_all_reduce_moves_two_n_minus_one_over_n() -> None:
    """A100 (no NVLS), 8 ranks: S (2(n-1) + own chunk) / n over 300 x 0.8 x LONG_SHARE GB/s."""
    size = 16 * 2**30
    rate = 300e9 * 20.0 / 25.0 * LONG_SHARE
    expected = size * (14 + OWN_CHUNK) / 8 / rate
    assert seconds(A100, Collective.ALL_REDUCE, size, shape(8, 1)) == pytest.approx(expected, rel=1e-3)


def test_a_deep_tree_beats_the_ring_for_short_all_reduces() -> None:
    """2,048 nodes: LL tree, 6.8 us + 2 (7 x 0.6 + 11 x 5.0) us after the start; the ring's all_gather has
    2,048 hops.
    """
    short = seconds(H100, Collective.ALL_REDUCE, 1024, shape(8, 2048))
    assert short == pytest.approx(NETWORK_START_S + 125.2e-6, rel=5e-3)
    assert seconds(H100, Collective.ALL_GATHER, 1 << 20, shape(8, 2048)) > 5e-3


def test_nvls_helps_eight_ranks_on_hopper_only_where_it_should() -> None:
    """nccl-tests on H100: bus bandwidth of 512 MiB all_reduce 350 GB/s for 4 ranks, 445 for 8."""
    size = 512 * 2**20
    four, eight = (2.0 * (n - 1) / n * size / seconds(H100, Collective.ALL_REDUCE, size, shape(n, 1)) for n in (4, 8))
    assert four == pytest.approx(350e9, rel=0.1)
    assert eight == pytest.approx(445e9, rel=0.15)
    assert eight > 1.15 * four


def test_siblings_share_the_nics() -> None:
    """One rank per node: a pair alone has a whole 400 Gb/s NIC, and so has each of 8; 8 x 8 ranks
    have 8 NICs; a group of 8 beside 7 more that cannot be has an eighth of the node."""
    nic = 50e9 * NIC_EFFICIENCY
    assert network_rate(H100, shape(1, 2, 1))[0] == pytest.approx(nic)
    assert network_rate(H100, shape(1, 2, 8))[0] == pytest.approx(nic)
    assert network_rate(H100, shape(8, 2, 1))[0] == pytest.approx(8 * nic)
    assert network_rate(H100, shape(8, 2, 8))[0] == pytest.approx(nic)
    # DGX-1: 4 NICs of 12.5 GB/s for 8 GPUs; a lone GPU has a whole NIC, 8 siblings half of one
    v100 = CLUSTERS["dgx1-v100"]
    assert network_rate(v100, shape(1, 2, 1))[0] == pytest.approx(12.5e9 * NIC_EFFICIENCY)
    assert network_rate(v100, shape(1, 2, 8))[0] == pytest.approx(6.25e9 * NIC_EFFICIENCY)


def test_the_slower_link_bounds_the_ring() -> None:
    assert bus_rate(A100, shape(8, 1))[0] == pytest.approx(240e9)
    assert bus_rate(A100, shape(8, 2))[0] == pytest.approx(200e9 * NIC_EFFICIENCY)
    assert bus_rate(H100, shape(2, 2, 4))[0] == pytest.approx(100e9 * NIC_EFFICIENCY)


def test_the_switch_gathers_for_thirty_two_ranks_at_most() -> None:
    """NCCL's NVLS arity of all_gather and reduce_scatter: 25 us and (n - 1) / n of the array and of a loop at the switch's
    rate. A loop of 24 channels over 32 ranks has 24 MiB in chunks of 32 KiB: 256 MiB are eight of 48 and fewer of 64 KiB."""
    gb200 = CLUSTERS["gb200-nvl72"]
    size = 256 * 2**20
    nccl = gb200.gpu.architecture.nccl
    assert nccl is not None
    rate = 900e9 * 40.1 / 50.0 * nccl.nvls_share * NVLS_SHARE
    for kind in (Collective.ALL_GATHER, Collective.REDUCE_SCATTER):
        found = [float(nvls_seconds(gb200, kind, floats(size), shape(n, 1))[0]) for n in (32, 36)]
        assert found == [pytest.approx(25e-6 + (size + 24 * MIB) * 31 / 32 / rate), np.inf]
    whole = float(nvls_seconds(gb200, Collective.ALL_REDUCE, floats(size), shape(64, 1))[0])
    assert whole == pytest.approx(25e-6 + (size + 2 * 48 * MIB) * 65 / 64 / rate)


@pytest.mark.parametrize(
    ("size", "expected"), [(1, 1), (7, 2), (8, 4), (63, 4), (64, 8), (1023, 8), (1024, 16), (8192, 16)]
)
def test_a_loop_of_nvls_has_smaller_chunks_for_fewer_loops(size: int, expected: int) -> None:
    """calcCollChunking by hand, 16 channels over 8 ranks, in MiB: chunks of 128 KiB, of 64 below 64
    loops of those, of 32 below 8 of 64, of 16 below 2 of 32; never more than the array."""
    assert nvls_loop_bytes(floats(size * MIB), floats(16 * 8.0))[0] == expected * MIB


@pytest.mark.parametrize(
    ("ranks", "mib", "measured_us"),
    [(8, 16, 108), (8, 128, 396), (32, 128, 548), (72, 144, 602), (72, 576, 1811), (72, 4608, 11463)],
)
def test_an_all_reduce_of_a_rack_fills_its_loops(ranks: int, mib: int, measured_us: float) -> None:
    """GB200 NVL72, ROCm/xla d02afb4f, xla/service/gpu/model/collective_interpolator_data.h (Apache-2.0). Without the
    first two loops 144 MiB over 72 ranks would take 0.57 of it."""
    size = mib * MIB
    predicted = seconds(CLUSTERS["gb200-nvl72"], Collective.ALL_REDUCE, size, shape(ranks, 1))
    assert predicted == pytest.approx(measured_us * 1e-6, rel=0.28)


def test_a_message_is_slower_across_nodes_than_inside() -> None:
    inside, across = (float(p2p_seconds(H100, floats(2**26), group)[0]) for group in (shape(2, 1), shape(1, 2)))
    # Vidur h100_dgx send_recv of 64 MiB: 193 us inside, 1871 us across nodes
    assert inside == pytest.approx(193e-6, rel=0.1)
    assert across == pytest.approx(1871e-6, rel=0.1)


@pytest.mark.parametrize("kind", KINDS)
def test_a_group_of_one_and_an_empty_buffer_cost_nothing(kind: Collective) -> None:
    assert seconds(H100, kind, 2**20, shape(1, 1)) == 0.0
    assert seconds(H100, kind, 0, shape(8, 2)) == 0.0


GROUPS = st.tuples(st.sampled_from([1, 2, 4, 6, 8]), st.sampled_from([1, 2, 3, 16, 500]), st.sampled_from([1, 2, 8]))


@settings(max_examples=2 * settings.default.max_examples)
@given(name=st.sampled_from(NAMES), kind=st.sampled_from(KINDS), size=st.integers(1, 1 << 34), group=GROUPS)
def test_a_larger_message_is_never_faster(name: str, kind: Collective, size: int, group: tuple[int, int, int]) -> None:
    """Except all_reduce, whose tree NCCL itself corrects by a table over the size (tree.cc): 30 %."""
    small, large = (seconds(CLUSTERS[name], kind, n, shape(*group)) for n in (size, 2 * size))
    assert np.isfinite(large)
    slack = 0.7 if kind is Collective.ALL_REDUCE else 1.0
    assert large >= slack * small
    assert small > 0.0 or group[0] * group[1] == 1


@given(
    name=st.sampled_from([name for name in NAMES if name != "cpu"]),
    kind=st.sampled_from(KINDS),
    size=st.integers(1, 1 << 20),
    group=GROUPS,
)
def test_a_small_collective_is_never_faster_than_its_launch(
    name: str, kind: Collective, size: int, group: tuple[int, int, int]
) -> None:
    """NCCL's least base (Ring/LL, 6.6 us) and a hop; where the next domain is a network, its start too."""
    cluster = CLUSTERS[name]
    if group[0] * group[1] > 1:
        start = NETWORK_START_S if group[1] > 1 and cluster.domains[1].link == "network" else 0.0
        assert seconds(cluster, kind, size, shape(*group)) >= 6.6e-6 + 0.6e-6 + start


@given(kind=st.sampled_from(KINDS), size=st.integers(1 << 20, 1 << 32), inter=st.sampled_from([2, 4, 16]))
def test_more_siblings_are_never_faster(kind: Collective, size: int, inter: int) -> None:
    alone, beside = (seconds(H100, kind, size, shape(4, inter, siblings)) for siblings in (1, 2))
    crowded = seconds(H100, kind, size, shape(4, inter, 4))
    assert alone <= beside <= crowded


# NVIDIA/nccl, src/graph/tuning.cc (2.27), ncclTunerConstantsDefaults, in us: LL, LL128, Simple of the tree,
# then of the ring.
BASE = (6.8, 14.0, 8.4, 6.6, 14.0, 8.4)
HARDWARE = {
    "nvlink": (0.6, 1.25, 4.0, 0.6, 1.9, 3.4),
    "pcie": (1.0, 1.9, 4.0, 1.0, 2.5, 5.7),
    "network": (5.0, 8.5, 14.0, 2.7, 4.0, 14.0),
}


def us(seconds: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(round(one * 1e6, 6) for one in seconds)


def test_what_a_launch_costs_is_nccls() -> None:
    assert us(TREE_BASE_S) + us(RING_BASE_S) == BASE


@pytest.mark.parametrize("link", HARDWARE)
def test_hops_are_nccls(link: str) -> None:
    assert us(LINK_LATENCIES[link].tree) + us(LINK_LATENCIES[link].ring) == HARDWARE[link]


def test_shares_and_caps_are_nccls() -> None:
    """llMaxBws beside an Intel host on two nodes and on four; LL128 of a tree inside a node and between;
    plateau of a ring, 64 bytes of each of 16 channels."""
    assert LL_MAX_RATE_NODES == (39.0e9, 20.4e9)
    assert (RING_LL128_SHARE, *TREE_LL128_SHARE) == (0.92, 7 / 9, 120 / 128)
    assert PLATEAU_BYTES / 16 == 64


@pytest.mark.parametrize(("sheet", "link"), [("a100-sxm-80g", "nvlink"), ("l40s", "pcie")])
@pytest.mark.parametrize("protocol", list(Protocol))
def test_a_ring_of_four_starts_with_its_base_and_three_hops(sheet: str, link: str, protocol: Protocol) -> None:
    cluster = read_cluster(sheet, root=ROOT)
    four = shape(4, 1)
    found = float(ring_latency(cluster, Collective.ALL_GATHER, four, protocol)[0])
    assert found * 1e6 == pytest.approx(BASE[3 + protocol] + 3 * HARDWARE[link][3 + protocol])


def test_short_trees_run_at_under_a_fourth_of_the_links_rate() -> None:
    """Two A100, LL: 1 / 3.8 of 0.92 of the links, the buffer passed on twice; of 2,048 bytes trees keep 0.9
    and of 1,024 and less 0.9 and 1 (tuning.cc, treeCorrectionFactor)."""
    pair = shape(2, 1)
    rate = 0.5 * 0.92 / 3.8 * float((scale_up_rate(A100, pair.intra) * long_share(A100, pair))[0])
    few, many = (float(tree_seconds(A100, Collective.ALL_REDUCE, floats(size), pair)[0]) for size in (256, 512))
    assert many - few == pytest.approx(256 / rate)


def pat_s(size: float, group: CommGroup) -> float:
    return float(pat_seconds(H100, Collective.ALL_GATHER, floats(size), group)[0])


@pytest.mark.parametrize(("nodes", "depth"), [(2, 1), (4, 2), (5, 3), (64, 6)])
def test_the_start_grows_with_the_logarithm_of_the_ranks_and_a_little_with_each(nodes: int, depth: int) -> None:
    """NCCL tuning.cc: 8 us, 14 us / 3.5 a level of the tree and 2.8 us a rank, after the network's start."""
    expected = NETWORK_START_S + 8.0e-6 + depth * 4.0e-6 + nodes * 2.8e-6
    assert pat_s(0.0, shape(1, nodes)) == pytest.approx(expected)


def test_long_messages_reach_three_quarters_of_the_bus() -> None:
    eight = shape(1, 8)
    rate = 0.75 * float((bus_rate(H100, eight) * long_share(H100, eight))[0])
    assert pat_s(2.0e9, eight) - pat_s(1.0e9, eight) == pytest.approx(1.0e9 / rate)


def test_several_ranks_a_node_and_one_node_do_not_run_it() -> None:
    assert np.isinf(pat_s(1.0e6, shape(2, 8)))
    assert np.isinf(pat_s(1.0e6, shape(8, 1)))
