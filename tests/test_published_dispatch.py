"""The exchange that sends each token once to every place, against the rates that DeepEP publishes."""

import math

import numpy as np
import pytest

from ops.experts.routing import Routing, places_visited
from ops.layout import Layout, group_of
from ops.op import Axis, Comm, Phase, RoutedTokens
from ops.roles import Module, Role
from profdb.modelled.cost_model import ModelledCostModel
from solver.times.expert_exchange import hierarchical_s
from spec.arrays import ints
from spec.cluster.reader import read_cluster
from spec.collectives import Collective
from spec.files import shipped_folder

# DeepSeek-V3's experts, in fp8; between nodes its runs limit a token to four of them (tests/test_internode.py).
EXPERTS, TOPK, MOST_NODES = 256, 8, 4
ELEMENTS = 8192.0 * 7168.0


def logical_rate(cluster_name: str, ranks: int, *, by_nodes: bool) -> float:
    """GB/s as DeepEP counts them (README, "logical bandwidth"): the bytes of a rank's tokens, once for each node, or
    inside one for each rank, that has one of their experts, its own included, over the time.
    """
    cluster = read_cluster(cluster_name, root=shipped_folder())
    nodes = max(ranks // cluster.gpus_per_node, 1)
    chosen = min(nodes, MOST_NODES)
    routing = Routing(num_experts=EXPERTS, topk=TOPK, groups=nodes, chosen_groups=chosen)
    op = Comm(
        module=Module.MOE,
        role=Role.DISPATCH,
        phase=Phase.FORWARD,
        collective=Collective.ALL_TO_ALL,
        axis=Axis.EP,
        size_bytes=(ELEMENTS * places_visited(ints(ranks), routing)).astype(np.int64),
        dtype="fp8",
        routed=RoutedTokens(elements=np.asarray([ELEMENTS]), routing=routing),
    )
    group = group_of(Axis.EP, Layout.of(ranks, ep=ranks), cluster.scale_up_ranks)
    seconds = float(hierarchical_s(ModelledCostModel(cluster=cluster), op, group).seconds[0])
    places = nodes if by_nodes else ranks
    return float(ELEMENTS * places_visited(ints(places), routing)[0]) / seconds / 1e9


@pytest.mark.parametrize(
    ("cluster", "ranks", "by_nodes", "published"),
    [
        # README: SM90, 16 and 32 ranks over RDMA; SM100 inside a node. docs/legacy.md: H800 inside a node.
        ("h100-sxm", 16, True, 90.0),
        ("h100-sxm", 32, True, 61.0),
        ("b200", 8, False, 726.0),
        ("h800", 8, False, 153.0),
    ],
)
def test_published_dispatch_rates_are_predicted_within_a_sixth(
    cluster: str, ranks: int, by_nodes: bool, published: float
) -> None:
    assert abs(math.log(logical_rate(cluster, ranks, by_nodes=by_nodes) / published)) < 1 / 6
