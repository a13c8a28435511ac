"""One message: NCCL's start and hop, then the link's rate."""

import pytest

from profdb.modelled.network import links
from profdb.modelled.network.links import CommGroup, Protocol, link_latency_s, scale_up_rate
from profdb.modelled.network.send_recv import p2p_seconds
from spec.arrays import floats, ints
from spec.cluster.reader import read_cluster
from tests.solver.questions import ROOT

PAIR = CommGroup(intra=ints(2), inter=ints(1), siblings=ints(1))


def seconds(name: str, size: float) -> float:
    return float(p2p_seconds(read_cluster(name, root=ROOT), floats(size), PAIR)[0])


def test_a_short_message_inside_a_node_is_a_start_and_a_hop() -> None:
    """LL: 6.6 us + 0.6 us (NCCL baseLatencies, hwLatencies); nothing to send costs nothing."""
    assert seconds("h100-sxm", 1.0) == pytest.approx(7.2e-6, rel=1e-3)
    assert seconds("h100-sxm", 0.0) == 0.0


def test_a_long_message_is_bound_by_the_link() -> None:
    rate = float(scale_up_rate(read_cluster("h100-sxm", root=ROOT), ints(2))[0]) * links.LONG_SHARE
    assert seconds("h100-sxm", 2.0e9) - seconds("h100-sxm", 1.0e9) == pytest.approx(1.0e9 / rate)


def test_processes_that_share_a_memory_start_no_kernel() -> None:
    """gloo on one machine: a hop alone."""
    (latency,) = {float(link_latency_s(read_cluster("cpu", root=ROOT).domains[0], Protocol.LL))}
    assert seconds("cpu", 1.0) == pytest.approx(latency, rel=1e-3)
