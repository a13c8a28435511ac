"""Exchanges of HybridEP as its authors measured them, by the sheets alone."""

from pathlib import Path

import numpy as np
import pytest

from ops.experts.dispatchers import probability_bytes
from ops.experts.routing import Routing, places_visited
from ops.layout import Layout, group_of
from ops.op import Axis, Comm, Phase, RoutedTokens
from ops.roles import Module, Role
from profdb.modelled.cost_model import ModelledCostModel
from solver.times.expert_exchange import exchanged
from spec.arrays import ints
from spec.cluster.reader import read_cluster
from spec.collectives import Collective

ROOT = Path(__file__).resolve().parents[3]
TOKENS, HIDDEN, TOPK, LOCAL_EXPERTS = 4096, 7168, 8, 8


@pytest.mark.parametrize(
    ("sheet", "ranks", "of_call", "of_kernel"),
    [
        ("b200", 8, (535.94, 530.86), (734.95, 673.84)),
        ("gb200-nvl72", 8, (545.71, 568.94), (764.03, 737.13)),
        ("gb200-nvl72", 16, (523.48, 521.55), (706.95, 666.26)),
        ("gb200-nvl72", 32, (484.22, 464.54), (642.23, 605.15)),
    ],
)
def test_an_exchange_takes_its_kernel_and_less_than_the_call_that_copies_once_more(
    sheet: str, ranks: int, of_call: tuple[float, float], of_kernel: tuple[float, float]
) -> None:
    """GB/s of dispatch and combine in bf16, of the call from PyTorch and of its kernel (DeepEP, branch
    hybrid-ep, docs/README_Hybrid-EP.md: 16 multiprocessors on B200, 32 on GB200; tests/test_hybrid_ep.py
    counts the tokens that a rank receives, its own included, and sends their probabilities both ways). The
    call copies them to another buffer beside what it launches; here that is the permutation's."""
    routing = Routing(num_experts=LOCAL_EXPERTS * ranks, topk=TOPK)
    visits = float(places_visited(ints(ranks), routing)[0])
    received = 2 * TOKENS * HIDDEN * visits
    beside = TOKENS * probability_bytes("hybridep", routing)
    op = Comm(
        module=Module.MOE,
        role=Role.DISPATCH,
        phase=Phase.FORWARD,
        collective=Collective.ALL_TO_ALL,
        axis=Axis.EP,
        size_bytes=ints(int(received + beside * visits)),
        routed=RoutedTokens(
            elements=np.array([float(TOKENS * HIDDEN)]),
            routing=routing,
            weight_bytes=float(beside),
            weights_of_domain=True,
        ),
    )
    cluster = read_cluster(sheet, root=ROOT)
    group = group_of(Axis.EP, Layout.of(ranks, ep=ranks), cluster.scale_up_ranks)
    told_s = float(exchanged(ModelledCostModel(cluster=cluster), op, group).seconds[0])
    for call, kernel in zip(of_call, of_kernel, strict=True):
        assert received / (kernel * 1e9) <= told_s <= received / (call * 1e9)
