"""Deduplicated exchanges priced by hand, and their overlap."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ops.experts.dispatchers import probability_bytes
from ops.experts.routing import Routing, places_visited
from ops.layout import Layout, group_of
from ops.op import Axis, Comm, Lane, Phase, RoutedTokens
from ops.roles import Role
from profdb.cases import ExpertExchangeCase
from profdb.cost_model import ProfileCostModel
from profdb.modelled.cost_model import ModelledCostModel
from profdb.queries import CollectiveQuery
from profdb.sample import Sample
from solver.times.expert_exchange import hierarchical_s
from solver.times.op_times import OpTimer, TimedOp
from solver.times.overlap import exposed_shares
from spec.arrays import ints
from spec.cluster.reader import read_cluster
from spec.collectives import Collective
from spec.origin import Origin
from tests.ops import operations
from tests.profdb.profiles import collective_samples, profile
from tests.solver.flat_cost_model import INTER_BANDWIDTH, INTRA_BANDWIDTH, FlatCostModel
from tests.solver.questions import cluster

ROUTING, ELEMENTS = Routing(num_experts=64, topk=8), 1_000_000


def exchange(ep: int) -> Comm:
    visits = places_visited(ints(ep), ROUTING)[0]
    routed = RoutedTokens(elements=np.array([float(ELEMENTS)]), routing=ROUTING)
    return operations.exchange(int(2 * ELEMENTS * visits), routed=routed)


def seconds(op: Comm, world: int, ep: int) -> float:
    op_timer = OpTimer(cost_model=FlatCostModel(), domain_ranks=8)
    return float(op_timer.time(op, Layout.of(world, ep=ep)).seconds[0])


def test_inside_a_domain_each_rank_is_sent_what_it_wants() -> None:
    visits = places_visited(ints(8), ROUTING)[0]
    assert seconds(exchange(8), 8, 8) == pytest.approx(2 * ELEMENTS * visits * 7 / 8 / INTRA_BANDWIDTH, rel=1e-5)


def test_between_domains_a_token_crosses_once() -> None:
    """Two domains of eight: half of what both domains are sent crosses, not all copies."""
    op = exchange(16)
    across = 2 * ELEMENTS * places_visited(ints(2), ROUTING)[0] / 2 / INTER_BANDWIDTH
    assert seconds(op, 16, 16) == pytest.approx(across, rel=1e-5)
    assert seconds(op, 16, 16) < seconds(replace(op, routed=None), 16, 16)


def test_both_ways_of_an_exchange_are_asked_for_as_they_run() -> None:
    """All that a rank is sent inside its domain of 8; between two domains a rank's part, beside those of its
    7 neighbours.
    """
    cost_model, op = FlatCostModel(), exchange(16)
    OpTimer(cost_model=cost_model, domain_ranks=8).time(op, Layout.of(16, ep=16))
    columns = [query.columns() for query in cost_model.asked if isinstance(query, CollectiveQuery)]
    asked = [[int(c[name][0]) for name in ("intra", "inter", "siblings", "size_bytes")] for c in columns]
    visits = float(places_visited(ints(2), ROUTING)[0])
    assert asked == [[8, 1, 1, int(op.size_bytes[0])], [1, 2, 8, int(2 * ELEMENTS * visits)]]


@pytest.mark.parametrize("ep", [2, 4])
def test_few_ranks_of_a_domain_exchange_inside_it(ep: int) -> None:
    visits = places_visited(ints(ep), ROUTING)[0]
    assert seconds(exchange(ep), ep, ep) == pytest.approx(
        2 * ELEMENTS * visits * (ep - 1) / ep / INTRA_BANDWIDTH, rel=1e-5
    )


def taken(direction: str, tokens: int, seconds: float, **changed: Any) -> Sample:
    values: dict[str, Any] = {"hidden": 64, "experts": 64, "topk": 8, "intra": 8, "inter": 1} | changed
    case = ExpertExchangeCase(direction=direction, tokens=tokens, **values)
    return Sample(case=case, trials_s=(seconds,))


def asked(role: Role, phase: Phase, tokens: int, kernel: str) -> Comm:
    """What a layer of so many tokens of 64 channels asks for (ops.experts.exchange)."""
    copies = 8 if kernel == "all2all" else float(places_visited(ints(8), ROUTING)[0])
    routed = RoutedTokens(elements=np.array([tokens * 64.0]), routing=ROUTING)
    size = ints(int(np.ceil(tokens * copies)) * 64 * 2)
    op = replace(exchange(8), role=role, phase=phase, size_bytes=size, kernel=kernel)
    return replace(op, routed=None if kernel == "all2all" else routed)


def told(op: Comm, samples: list[Sample], ep: int = 8) -> TimedOp:
    collectives = collective_samples(Collective.ALL_TO_ALL)
    return OpTimer.on(cluster(), ProfileCostModel(profile([*collectives, *samples]))).time(op, Layout.of(8, ep=ep))


@pytest.mark.parametrize("kernel", ["all2all", "deepep"])
def test_an_exchange_takes_what_was_measured_of_it(kernel: str) -> None:
    """Where it was; a backward's goes the other way, and beyond the measured sizes their factor over the
    curves stays.
    """
    samples = [
        taken(way, tokens, seconds * tokens, kernel=kernel)
        for way, seconds in (("dispatch", 2e-6), ("combine", 5e-6))
        for tokens in (1024, 4096)
    ]
    there, back = Role.DISPATCH, Role.COMBINE
    ahead, behind = Phase.FORWARD, Phase.INPUT_GRAD
    ways = ((there, ahead, 2e-6), (back, ahead, 5e-6), (there, behind, 5e-6), (back, behind, 2e-6))
    for role, phase, per_token_s in ways:
        for tokens in (1024, 4096):
            found = told(asked(role, phase, tokens, kernel), samples)
            assert found.seconds[0] == pytest.approx(per_token_s * tokens)
            assert found.origin.tolist() == [int(Origin.MEASURED)]
    between = told(asked(there, ahead, 2048, kernel), samples)
    assert 2e-6 * 1024 < between.seconds[0] < 2e-6 * 4096
    assert between.origin.tolist() == [int(Origin.MEASURED)]
    long = asked(there, ahead, 16384, kernel)
    factor = 2e-6 * 4096 / told(asked(there, ahead, 4096, kernel), []).seconds[0]
    assert told(long, samples).seconds[0] == pytest.approx(factor * told(long, []).seconds[0])
    assert told(long, samples).origin.tolist() == [int(Origin.EXTRAPOLATED)]


def test_a_measured_exchange_has_sent_the_probabilities_already() -> None:
    op = asked(Role.DISPATCH, Phase.FORWARD, 4096, "deepep")
    assert op.routed is not None
    weight_bytes = np.array([4096 * 96.0])
    arriving = np.ceil(weight_bytes * places_visited(ints(8), ROUTING)).astype(np.int64)
    carrying = replace(op, size_bytes=op.size_bytes + arriving, routed=replace(op.routed, weight_bytes=weight_bytes))
    samples = [taken("dispatch", tokens, 2e-6 * tokens, kernel="deepep") for tokens in (1024, 4096)]
    assert told(carrying, samples).seconds[0] == pytest.approx(2e-6 * 4096)
    assert told(carrying, []).seconds[0] > told(op, []).seconds[0]


def test_an_exchange_that_nobody_measured_so_keeps_the_curves_of_collectives() -> None:
    samples = [taken("dispatch", tokens, 1.0) for tokens in (1024, 4096)]
    op = asked(Role.DISPATCH, Phase.FORWARD, 2048, "all2all")
    assert told(op, samples).seconds[0] > 0.1
    for change in ({"kernel": ""}, {"kernel": "deepep"}, {"dtype": "fp8"}, {"role": Role.COMBINE}):
        other = replace(op, **change)
        assert told(other, samples).seconds.tolist() == told(other, []).seconds.tolist()

    assert told(op, samples, ep=4).seconds.tolist() == told(op, [], ep=4).seconds.tolist()
    failed = replace(taken("dispatch", 2048, 1.0), status="failed", trials_s=())
    modelled = replace(taken("dispatch", 2048, 1.0), origin=Origin.MODELLED)
    assert told(op, [failed, modelled]).seconds.tolist() == told(op, []).seconds.tolist()


@pytest.mark.parametrize(("of_domain", "share"), [(True, 2), (False, 1)])
def test_between_domains_a_token_carries_its_probabilities(of_domain: bool, share: int) -> None:
    """Those of all experts are sent to each domain for the experts it holds, half of them to each of two."""
    op = exchange(16)
    assert op.routed is not None
    weights = 40_000.0
    carrying = replace(op.routed, weight_bytes=np.array([weights]), weights_of_domain=of_domain)
    visits = places_visited(ints(2), ROUTING)[0]
    more = weights / share * visits / 2 / INTER_BANDWIDTH
    told = seconds(replace(op, routed=carrying), 16, 16) - seconds(op, 16, 16)
    assert told == pytest.approx(more, rel=1e-3)


def test_an_overlapped_exchange_costs_what_outlasts_the_pass() -> None:
    prefetched = replace(exchange(8), lane=Lane.PREFETCH)
    work = operations.timed(replace(exchange(8), name="work"), "gemm", 3.0)
    for comm_s, waited in ((1.0, 0.0), (5.0, 2.0)):
        shares = exposed_shares([operations.timed(prefetched, "ep_comm", comm_s), work])
        assert shares[0].seconds[0] == pytest.approx(waited)


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
    probabilities = TOKENS * probability_bytes("hybridep", routing)
    routed = RoutedTokens(
        elements=np.array([float(TOKENS * HIDDEN)]),
        routing=routing,
        weight_bytes=float(probabilities),
        weights_of_domain=True,
    )
    op = operations.exchange(int(received + probabilities * visits), routed=routed)
    cluster = read_cluster(sheet, root=ROOT)
    group = group_of(Axis.EP, Layout.of(ranks, ep=ranks), cluster.scale_up_ranks)
    told_s = float(hierarchical_s(ModelledCostModel(cluster=cluster), op, group).seconds[0])
    for call, kernel in zip(of_call, of_kernel, strict=True):
        assert received / (kernel * 1e9) <= told_s <= received / (call * 1e9)
