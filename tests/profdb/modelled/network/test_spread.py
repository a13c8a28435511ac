"""Errors told beside collectives that only a sheet tells: inside a node, between few nodes and many."""

from pathlib import Path

import numpy as np
import pytest

from profdb.cases import Family
from profdb.lookup.queries import CollectiveQuery, P2PQuery
from profdb.modelled.book import ModelledBook
from profdb.modelled.errors import MODEL_ERROR, model_error
from profdb.modelled.network import algorithms, p2p
from profdb.modelled.network.spread import BETWEEN_NODES, PER_DOUBLING, SHORT_BETWEEN_NODES
from spec.arrays import ints
from spec.cluster.reader import read_cluster
from spec.collectives import Collective
from spec.units import MIB

BOOK = ModelledBook(cluster=read_cluster("h100-sxm", root=Path(__file__).resolve().parents[4]))


@pytest.mark.parametrize(
    ("size", "inter", "std"),
    [
        (64 * MIB, 1, algorithms.RELATIVE_STD),
        (64 * MIB, 8, BETWEEN_NODES),
        (MIB // 2, 2, SHORT_BETWEEN_NODES),
        (64 * MIB, 32, float(np.hypot(BETWEEN_NODES, 2 * PER_DOUBLING))),
    ],
)
def test_collectives_between_nodes_are_known_less_well(size: int, inter: int, std: float) -> None:
    """32 nodes are two doublings of 8. A curve through modelled samples is known as well as they are."""
    query = CollectiveQuery(
        collective=Collective.ALL_GATHER, size_bytes=ints(size), intra=8, inter=inter, siblings=1
    )
    assert BOOK.collective_s(query).relative_std[0] == pytest.approx(std)
    assert model_error(Family.COLLECTIVE, query.columns())[0] == pytest.approx(std)


def test_a_message_inside_a_node_keeps_its_own_error() -> None:
    inside, across = (
        BOOK.p2p_s(P2PQuery(size_bytes=ints(MIB), intra=intra, inter=inter, siblings=1)).relative_std[0]
        for intra, inter in ((2, 1), (1, 2))
    )
    assert inside == p2p.RELATIVE_STD
    assert across == pytest.approx(max(p2p.RELATIVE_STD, BETWEEN_NODES))


def test_other_families_have_one_error() -> None:
    assert model_error(Family.GEMM, {"m": ints(np.arange(3))}) == MODEL_ERROR[Family.GEMM]
    assert model_error(Family.HOST, {}) == MODEL_ERROR[Family.HOST]  # its labels say everything
