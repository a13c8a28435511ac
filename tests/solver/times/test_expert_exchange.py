"""Deduplicated exchanges priced by hand, and their overlap."""

from dataclasses import replace

import numpy as np
import pytest

from ops.experts.routing import Routing, places_visited
from ops.layout import Layout
from ops.op import Axis, Comm, Lane, Phase, RoutedTokens
from ops.roles import Module, Role
from solver.times.op_times import Pricer, TimedOp
from solver.times.overlap import exposed
from spec.arrays import ints
from spec.collectives import Collective
from tests.solver.flat_book import INTER_BANDWIDTH, INTRA_BANDWIDTH, FlatBook

ROUTING, ELEMENTS = Routing(num_experts=64, topk=8), 1_000_000


def exchange(ep: int) -> Comm:
    visits = places_visited(ints(ep), ROUTING)[0]
    return Comm(
        module=Module.MOE,
        role=Role.DISPATCH,
        phase=Phase.FORWARD,
        collective=Collective.ALL_TO_ALL,
        axis=Axis.EP,
        size_bytes=ints(int(2 * ELEMENTS * visits)),
        routed=RoutedTokens(elements=np.array([float(ELEMENTS)]), routing=ROUTING),
    )


def seconds(op: Comm, world: int, ep: int) -> float:
    pricer = Pricer(book=FlatBook(), domain_ranks=8)
    return float(pricer.time(op, Layout.of(world, ep=ep)).seconds[0])


def test_inside_a_domain_each_rank_is_sent_what_it_wants() -> None:
    visits = places_visited(ints(8), ROUTING)[0]
    assert seconds(exchange(8), 8, 8) == pytest.approx(
        2 * ELEMENTS * visits * 7 / 8 / INTRA_BANDWIDTH, rel=1e-5
    )


def test_between_domains_a_token_crosses_once() -> None:
    """Two domains of eight: half of what both domains are sent crosses, not all copies."""
    op = exchange(16)
    across = 2 * ELEMENTS * places_visited(ints(2), ROUTING)[0] / 2 / INTER_BANDWIDTH
    assert seconds(op, 16, 16) == pytest.approx(across, rel=1e-5)
    assert seconds(op, 16, 16) < seconds(replace(op, routed=None), 16, 16)


def test_an_overlapped_exchange_costs_what_outlasts_the_pass() -> None:
    def timed(op: Comm, part: str, took: float) -> TimedOp:
        one = np.ones(1)
        return TimedOp(
            op=op, part=part, family=part, seconds=took * one, relative_std=one, origin=np.ones(1, np.int64)
        )

    beside = replace(exchange(8), lane=Lane.PREFETCH)
    work = replace(exchange(8), name="work")
    for comm_s, waited in ((1.0, 0.0), (5.0, 2.0)):
        shares = exposed([timed(beside, "ep_comm", comm_s), timed(work, "gemm", 3.0)])
        assert shares[0].seconds[0] == pytest.approx(waited)
