"""Latencies of NCCL's cost model: its own tables, and what a ring of each protocol starts with."""

from pathlib import Path

import pytest

from profdb.modelled.network.links import Shape
from profdb.modelled.network.nccl_constants import (
    HOPS,
    LL_MAX_RATE_NODES,
    NVLS_HOP_S,
    NVLS_TREE_NET_HOP_S,
    PLATEAU_BYTES,
    RING_BASE_S,
    RING_LL128_SHARE,
    TREE_BASE_S,
    TREE_LL128_SHARE,
    Protocol,
)
from profdb.modelled.network.ring import ring_latency
from spec.arrays import ints
from spec.cluster.reader import read_cluster
from spec.collectives import Collective

ROOT = Path(__file__).resolve().parents[4]
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
    assert us(HOPS[link].tree) + us(HOPS[link].ring) == HARDWARE[link]


def test_links_that_nccl_does_not_name_take_those_of_the_nearest() -> None:
    assert HOPS["mesh"] == HOPS["nvlink"]
    assert HOPS["socket"] == HOPS["pcie"]


def test_switches_take_nccls_latency() -> None:
    """hwLatencies: NVLS over NVLink, NVLSTree over the network."""
    assert us((NVLS_HOP_S, NVLS_TREE_NET_HOP_S)) == (25.0, 20.9)


def test_shares_and_caps_are_nccls() -> None:
    """llMaxBws beside an Intel host on two nodes and on four; LL128 of a tree inside a node and between;
    plateau of a ring, 64 bytes of each of 16 channels."""
    assert LL_MAX_RATE_NODES == (39.0e9, 20.4e9)
    assert (RING_LL128_SHARE, *TREE_LL128_SHARE) == (0.92, 7 / 9, 120 / 128)
    assert PLATEAU_BYTES / 16 == 64


@pytest.mark.parametrize(("sheet", "link"), [("a100-sxm-80g", "nvlink"), ("l40s", "pcie")])
@pytest.mark.parametrize("protocol", list(Protocol))
def test_a_ring_of_four_starts_with_its_base_and_three_hops(
    sheet: str, link: str, protocol: Protocol
) -> None:
    cluster = read_cluster(sheet, root=ROOT)
    four = Shape(intra=ints(4), inter=ints(1), siblings=ints(1))
    found = float(ring_latency(cluster, Collective.ALL_GATHER, four, protocol)[0])
    assert found * 1e6 == pytest.approx(BASE[3 + protocol] + 3 * HARDWARE[link][3 + protocol])
