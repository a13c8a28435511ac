"""Collectives between nodes: steps that cross, NCCL's latencies, two-node trees, one rank a node, more nodes."""

from dataclasses import replace

import numpy as np
import pytest

from profdb.modelled.network import nccl
from profdb.modelled.network.links import (
    LONG_SHARE,
    NETWORK_START_S,
    NIC_EFFICIENCY,
    NIC_STREAM_SHARE,
    NVLS_TREE_START_S,
    ONE_RANK_SHARE,
    RATE_LOSS,
    Protocol,
    link_latency_s,
    network_rate,
)
from profdb.modelled.network.nccl import (
    LL128_MAX_BYTES,
    TREE_BASE_S,
    TREE_CORRECTION,
    collective_seconds,
    nvls_seconds,
    pat_seconds,
    ring_latency,
    ring_seconds,
    tree_seconds,
)
from profdb.modelled.network.send_recv import all_to_all_seconds, p2p_seconds
from spec.arrays import floats
from spec.cluster.cluster import ClusterSpec
from spec.cluster.reader import read_cluster
from spec.collectives import Collective
from spec.units import MIB
from tests.profdb.modelled.network.test_nccl import shape
from tests.solver.questions import ROOT

H100, A100 = (read_cluster(name, root=ROOT) for name in ("h100-sxm", "a100-sxm-80g"))
P4D, P5 = (read_cluster(name, root=ROOT) for name in ("aws-p4d", "aws-p5"))
LONG = 64 * 2**30


def with_latency(cluster: ClusterSpec, latency_s: float) -> ClusterSpec:
    outer = replace(cluster.domains[-1], latency_s=latency_s)
    return replace(cluster, domains=(*cluster.domains[:-1], outer))


@pytest.mark.parametrize(
    ("kind", "inter", "steps", "crossing"),
    [
        (Collective.ALL_GATHER, 2, 15, 2),
        (Collective.REDUCE_SCATTER, 16, 127, 16),
        (Collective.ALL_REDUCE, 4, 62, 8),
        (Collective.BROADCAST, 2, 16, 2),
    ],
)
def test_a_ring_crosses_every_link_between_nodes(kind: Collective, inter: int, steps: int, crossing: int) -> None:
    """LL of 8 ranks a node: 6.6 us and the start, 1 us a step inside (posting), 2.7 us a step between (tuning.cc)."""
    expected = NETWORK_START_S + 6.6e-6 + (steps - crossing) * 1.0e-6 + crossing * 2.7e-6
    assert ring_latency(H100, kind, shape(8, inter), Protocol.LL)[0] == pytest.approx(expected)


def test_one_rank_a_node_crosses_in_every_step_with_the_latency_of_the_tree() -> None:
    """tuning.cc, ppn 1: 5.0 us under LL; all_gather of 4 has 3 steps."""
    predicted = ring_latency(H100, Collective.ALL_GATHER, shape(1, 4), Protocol.LL)[0]
    assert predicted == pytest.approx(NETWORK_START_S + 6.6e-6 + 3 * 5.0e-6)


def test_a_networks_own_latency_counts_twice_under_simple() -> None:
    """EFA of p5: 20 us (aws-ofi-nccl's tuner) is 17.3 over NCCL's 2.7; Simple adds the flush: 14 + 2 x 17.3."""
    network = P5.domains[-1]
    assert link_latency_s(network, Protocol.LL) == pytest.approx(20.0e-6)
    assert link_latency_s(network, Protocol.SIMPLE) == pytest.approx(48.6e-6)
    assert link_latency_s(network, Protocol.LL, tree=True) == pytest.approx(22.3e-6)


def test_a_ring_over_efa_takes_as_much_more_a_node_as_published() -> None:
    """All-gather of 32 MiB over 8 to 32 nodes of p5: 713, 1,337 and 2,699 us, 83 us a node (a published series)."""
    few, many = (ring_seconds(P5, Collective.ALL_GATHER, floats(32 * MIB), shape(8, inter))[0] for inter in (8, 32))
    assert (many - few) / 24 == pytest.approx((2699.47e-6 - 713.47e-6) / 24, rel=0.15)


@pytest.mark.parametrize(("latency_s", "hop_s"), [(2.7e-6, 20.9e-6), (22.7e-6, 60.9e-6)])
def test_nvls_tree_takes_the_sheets_latency(latency_s: float, hop_s: float) -> None:
    """Four nodes: up and down two levels, 25 us + 4 hops (hwLatencies NET, NVLSTree: 20.9 us, and the own
    latency twice).
    """
    cluster = with_latency(H100, latency_s)
    predicted = nvls_seconds(cluster, Collective.ALL_REDUCE, floats(64.0), shape(8, 4))[0]
    assert predicted == pytest.approx(25e-6 + NVLS_TREE_START_S + 4.0 * hop_s, rel=1e-3)


def test_nvls_tree_is_corrected_as_the_tree_is() -> None:
    """64 MiB on four nodes: NCCL's Simple row has 0.8 there (log2(64 MiB / 64) = 20)."""
    assert TREE_CORRECTION[Protocol.SIMPLE][20] == 0.8
    latency = nvls_seconds(H100, Collective.ALL_REDUCE, floats(64.0), shape(8, 4))[0]
    predicted = nvls_seconds(H100, Collective.ALL_REDUCE, floats(64 * MIB), shape(8, 4))[0]
    rate = network_rate(H100, shape(8, 4))[0] * LONG_SHARE * 0.8
    assert predicted - latency == pytest.approx(64 * MIB * 2.0 * 31 / 32 / rate, rel=1e-3)


def test_between_two_nodes_a_tree_sends_the_buffer_once() -> None:
    """p4d: NICs of 50 GB/s together bound the tree. Two nodes: S out of each; more: 2 S. A ring: 2 (n - 1) / n S."""
    nics = 50e9 * NIC_EFFICIENCY * LONG_SHARE * 0.92
    two, four = (tree_seconds(P4D, Collective.ALL_REDUCE, floats(LONG), shape(8, n))[0] for n in (2, 4))
    assert two == pytest.approx(LONG / nics, rel=1e-3)
    assert four == pytest.approx(2.0 * LONG / (nics / (1.0 + RATE_LOSS)), rel=1e-3)
    ring = ring_seconds(P4D, Collective.ALL_REDUCE, floats(LONG), shape(8, 2))[0]
    assert two < 0.6 * ring


def test_two_megabytes_and_more_are_not_sent_by_ll128_between_nodes() -> None:
    """LL128 of 64 ranks on 8 nodes: 14 us, 55 steps of 1.9 and 8 of 4.0 us, 0.92 of the rate."""
    group = shape(8, 8)
    assert LL128_MAX_BYTES == 2 * MIB
    for size, sent in ((LL128_MAX_BYTES - 1, True), (LL128_MAX_BYTES, False)):
        steps_s = NETWORK_START_S + 14e-6 + 55 * 1.9e-6 + 8 * 4.0e-6
        rate = network_rate(A100, group)[0] * 0.92
        ll128 = steps_s + size / 64 * (63 / rate + 0.45 / 240e9)
        predicted = ring_seconds(A100, Collective.ALL_GATHER, floats(size), group)[0]
        assert bool(predicted == pytest.approx(ll128, rel=1e-6)) is sent
        assert predicted >= 0.999 * ll128


def test_nor_by_the_trees_ll128(monkeypatch: pytest.MonkeyPatch) -> None:
    """An LL128 that costs nothing to start is taken by a tree below 2 MiB between nodes, and inside one at any size."""
    known = TREE_BASE_S
    for size, inter, taken in ((MIB, 4, True), (2 * MIB, 4, False), (2 * MIB, 1, True)):
        told = []
        for base in (known, (known[0], -1.0, known[2])):
            monkeypatch.setattr(nccl, "TREE_BASE_S", base)
            told.append(tree_seconds(P4D, Collective.ALL_REDUCE, floats(size), shape(8, inter))[0])
        assert bool(told[1] < 0.0) is taken
        assert told[0] > 0.0


def test_one_rank_a_node_reaches_less_of_its_nic() -> None:
    """Half of an all_gather's buffer of two over one 400 Gb/s NIC; all of a message, which has fewer channels."""
    nic, stream = (50e9 * NIC_EFFICIENCY * share for share in (ONE_RANK_SHARE, NIC_STREAM_SHARE))
    ring = ring_seconds(H100, Collective.ALL_GATHER, floats(LONG), shape(1, 2, 8))[0]
    copied = LONG / 2 * 0.45 / (450e9 * 0.824)
    assert ring - copied == pytest.approx(LONG / 2 / nic, rel=1e-3)
    assert p2p_seconds(H100, floats(LONG), shape(1, 2, 8))[0] == pytest.approx(LONG / stream, rel=1e-3)
    assert pat_seconds(H100, Collective.ALL_GATHER, floats(LONG), shape(1, 2, 8))[0] > ring


def test_one_rank_a_nodes_share_is_the_mean_of_three_sources() -> None:
    """Of the line: mscclpp's NDmv4 page 0.63 and 0.75, NVIDIA/nccl-tests issue 232 0.95, two DGX Spark 0.92."""
    line = ONE_RANK_SHARE * NIC_EFFICIENCY
    assert line == pytest.approx(((0.63 + 0.75) / 2 + 0.95 + 0.92) / 3, rel=0.01)


def test_the_rate_falls_with_every_doubling_of_nodes() -> None:
    two = network_rate(H100, shape(8, 2))[0]
    for inter, doublings in ((4, 1), (8, 2), (128, 6)):
        expected = two / (1.0 + RATE_LOSS * doublings)
        assert network_rate(H100, shape(8, inter))[0] == pytest.approx(expected)


@pytest.mark.parametrize(("nodes", "share"), [(4, 0.90), (8, 0.86), (16, 0.80), (32, 0.75), (64, 0.70), (128, 0.65)])
def test_a_reduce_scatter_reaches_less_of_the_line_on_more_nodes(nodes: int, share: float) -> None:
    """NVIDIA/nccl issue 1229: bus bandwidth over 8 x 400 Gb/s (size not stated; 8 GiB)."""
    size, ranks = 8 * 2**30, 8 * nodes
    seconds = ring_seconds(H100, Collective.REDUCE_SCATTER, floats(size), shape(8, nodes))[0]
    assert size * (ranks - 1) / ranks / seconds / 400e9 == pytest.approx(share, rel=0.12)


def test_the_start_is_of_servers_alone() -> None:
    """Inside a node nothing starts a proxy: LL all_gather of 8 ranks is 6.6 + 7 x 0.6 us."""
    assert ring_latency(H100, Collective.ALL_GATHER, shape(8, 1), Protocol.LL)[0] == pytest.approx(10.8e-6)
    inside = all_to_all_seconds(H100, floats(8.0), shape(8, 1))[0]
    across = all_to_all_seconds(H100, floats(16.0), shape(8, 2))[0]
    posts = 8 * 1.0e-6 + 2.7e-6
    assert across - inside == pytest.approx(NETWORK_START_S + posts, rel=1e-3)
    assert np.isfinite(across)


@pytest.mark.parametrize(
    ("cluster", "kind", "size", "nodes", "measured_us", "within"),
    [
        (A100, Collective.ALL_REDUCE, 1024, 2, 40.92, 0.15),
        (A100, Collective.ALL_GATHER, 1024, 2, 33.74, 0.35),
        (H100, Collective.ALL_REDUCE, 64 * MIB, 2, 477.2, 0.10),
        (H100, Collective.ALL_REDUCE, 64 * MIB, 4, 579.1, 0.20),
        (H100, Collective.ALL_REDUCE, 16 * 1024 * MIB, 128, 93457.0, 0.12),
    ],
)
def test_published_runs_are_told(
    cluster: ClusterSpec, kind: Collective, size: int, nodes: int, measured_us: float, within: float
) -> None:
    """nccl-tests of 8 GPUs a node: Azure NDm A100 v4 in AKS, mscclpp's NDmv4 page, NVIDIA/nccl-tests issues 309 (two
    and four nodes) and 322 (the line kept on 128 nodes)."""
    seconds = collective_seconds(cluster, kind, floats(size), shape(8, nodes))[0]
    assert seconds * 1e6 == pytest.approx(measured_us, rel=within)


@pytest.mark.parametrize(
    ("sheet", "share"),
    [("h100-sxm", 4096 / 4166), ("gcp-a4", 4096 / (4096 + 38 + 20 + 8 + 16 + 4)), ("gcp-a3-mega", 8192 / 8282)],
)
def test_a_sheet_says_what_of_the_line_carries_data(sheet: str, share: float) -> None:
    """Headers of InfiniBand, of RoCEv2 (Ethernet with gaps, IP, UDP, transport, checksum), of TCP in 8,244 bytes."""
    cluster = read_cluster(sheet, root=ROOT)
    line = cluster.domains[-1].bandwidth
    assert network_rate(cluster, shape(1, 2))[0] == pytest.approx(line * share, rel=2e-3)
