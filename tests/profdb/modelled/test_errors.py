"""Errors told beside collectives that only a sheet tells: inside a node, between few nodes and many."""

from pathlib import Path

import numpy as np
import pytest

from profdb.cases import Family
from profdb.modelled.cost_model import ModelledCostModel
from profdb.modelled.errors import BETWEEN_NODES, MODEL_ERROR, between_nodes_std, model_error
from profdb.modelled.network import nccl, send_recv
from profdb.queries import CollectiveQuery, P2PQuery
from spec.arrays import ints
from spec.cluster.reader import read_cluster
from spec.collectives import Collective
from spec.units import MIB

COST_MODEL = ModelledCostModel(cluster=read_cluster("h100-sxm", root=Path(__file__).resolve().parents[3]))


@pytest.mark.parametrize(
    ("size", "inter", "std"),
    [
        (64 * MIB, 1, nccl.RELATIVE_STD),
        (64 * MIB, 8, 0.25),
        (MIB // 2, 2, 0.30),
        (64 * MIB, 32, float(np.hypot(0.25, 2 * 0.06))),
    ],
)
def test_collectives_between_nodes_are_known_less_well(size: int, inter: int, std: float) -> None:
    """32 nodes are two doublings of 8. A curve through modelled samples is known as well as they are."""
    query = CollectiveQuery(collective=Collective.ALL_GATHER, size_bytes=ints(size), intra=8, inter=inter, siblings=1)
    assert COST_MODEL.collective_s(query).relative_std[0] == pytest.approx(std)
    assert model_error(Family.COLLECTIVE, query.columns())[0] == pytest.approx(std)


@pytest.mark.parametrize(("nodes", "seen"), [(32, 0.26), (128, 0.34)])
def test_what_is_told_is_what_published_runs_miss_by(nodes: int, seen: float) -> None:
    """Root mean square of log(told / measured), all runs of 17 to 64 nodes and of more
    (benchmarks/multinode_accuracy.py).
    """
    assert between_nodes_std(np.array([64.0 * MIB]), ints(nodes))[0] == pytest.approx(seen, rel=0.1)


def test_a_message_inside_a_node_keeps_its_own_error() -> None:
    inside, across = (
        COST_MODEL.p2p_s(P2PQuery(size_bytes=ints(MIB), intra=intra, inter=inter, siblings=1)).relative_std[0]
        for intra, inter in ((2, 1), (1, 2))
    )
    assert inside == send_recv.P2P_STD
    assert across == pytest.approx(max(send_recv.P2P_STD, BETWEEN_NODES))


def test_other_families_have_one_error() -> None:
    assert model_error(Family.GEMM, {"m": ints(np.arange(3))}) == MODEL_ERROR[Family.GEMM]
    assert model_error(Family.HOST, {}) == MODEL_ERROR[Family.HOST]  # its labels say everything
