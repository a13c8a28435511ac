"""Exchanges of two micro-batches in opposite directions take as long as a replay of Megatron-LM's two streams."""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops.op import Comm, Lane, Phase
from ops.roles import Module, Role
from profdb.overlap_losses import Losses
from solver.pipeline.stages import PassTimes
from solver.times.contention import ALONE, Contention
from solver.times.expert_overlap import Exchanges, across_passes, pair_s
from solver.times.op_times import TimedOp
from solver.times.overlap import exposed_s, exposed_shares
from spec.arrays import floats
from tests.ops.operations import exchange, memory_bound, timed

SECONDS = st.floats(min_value=0.0, max_value=10.0)
LAYERS = 40


def _work(phase: Phase, seconds: float) -> TimedOp:
    return timed(memory_bound(module=Module.MOE, phase=phase), "memory_bound", seconds)


def _exchange(role: Role, phase: Phase, seconds: float) -> TimedOp:
    return timed(exchange(role=role, phase=phase, lane=Lane.ACROSS), "ep_comm", seconds)


def _passes(compute: list[float], exchange: list[float]) -> tuple[list[TimedOp], list[TimedOp]]:
    around, inside, around_back, around_weights, inside_back, inside_weights = compute
    dispatch, combine, combine_back, dispatch_back = exchange
    ahead, back, weights = Phase.FORWARD, Phase.INPUT_GRAD, Phase.WEIGHT_GRAD
    forward = [
        _work(ahead, around),
        _exchange(Role.DISPATCH, ahead, dispatch),
        _work(ahead, inside),
        _exchange(Role.COMBINE, ahead, combine),
    ]
    backward = [
        _exchange(Role.COMBINE, back, combine_back),
        _work(back, inside_back),
        _work(weights, inside_weights),
        _exchange(Role.DISPATCH, back, dispatch_back),
        _work(back, around_back),
        _work(weights, around_weights),
    ]
    return forward, backward


def _told(compute: list[float], exchange: list[float], *, delayed: bool, contention: Contention = ALONE) -> float:
    return _seconds(_passes(compute, exchange), contention, delayed=delayed)


def _seconds(passes: Iterable[list[TimedOp]], contention: Contention, *, delayed: bool) -> float:
    ahead, back = ((ops, exposed_shares(ops, contention)) for ops in passes)
    waited = across_passes(ahead, back, contention, delayed=delayed)
    return sum(float(share.seconds[0]) for _, shares in waited for share in shares)


def _replayed(compute: list[float], exchange: list[float], *, delayed: bool) -> float:
    """Seconds a layer of a long stack: TransformerLayerSchedulePlan.run, call after call, each when its
    stream is free and its input there."""
    around, inside, around_back, around_weights, inside_back, inside_weights = compute
    dispatch, combine, combine_back, dispatch_back = exchange
    computing = sending = forward_input = gradient = 0.0
    ends = []
    for _ in range(LAYERS):
        sending = max(sending, gradient) + combine_back
        arrived = sending
        computing = max(computing, forward_input) + around
        routed = computing
        computing = max(computing, arrived) + inside_back + (0.0 if delayed else inside_weights)
        gradient = computing
        sending = max(sending, routed) + dispatch
        arrived = sending
        computing += inside_weights if delayed else 0.0
        sending = max(sending, gradient) + dispatch_back
        gradient = sending
        computing = max(computing, arrived) + inside
        sending = max(sending, computing) + combine
        forward_input = sending
        computing = max(computing, gradient) + around_back + (0.0 if delayed else around_weights)
        gradient = computing
        computing += around_weights if delayed else 0.0
        ends.append(max(computing, sending))
    return (ends[-1] - ends[LAYERS // 2 - 1]) / (LAYERS - LAYERS // 2)


@given(st.lists(SECONDS, min_size=6, max_size=6), st.lists(SECONDS, min_size=4, max_size=4), st.booleans())
def test_a_pair_of_layers_takes_what_a_replay_of_two_streams_does(
    compute: list[float], exchange: list[float], delayed: bool
) -> None:
    told = _told(compute, exchange, delayed=delayed)
    assert told == pytest.approx(_replayed(compute, exchange, delayed=delayed), abs=1e-6)
    assert told >= max(sum(compute), sum(exchange)) - 1e-9
    assert told <= sum(compute) + sum(exchange) + 1e-9


def test_weight_gradients_put_off_hide_the_next_exchange() -> None:
    """Each exchange of two seconds, each stretch of compute of one: the backward's exchanges lie beside a
    forward of one second, or beside that and the weight gradients of one."""
    compute, exchange = [1.0] * 6, [2.0] * 4
    assert _told(compute, exchange, delayed=False) == pytest.approx(6.0 + 2 * 1.0)
    assert _told(compute, exchange, delayed=True) == pytest.approx(8.0)
    short = [1.0, 1.0, 2.0, 2.0]
    assert _told(compute, short, delayed=False) == pytest.approx(8.0)
    assert _told(compute, short, delayed=True) == pytest.approx(6.0)


def test_what_hides_an_exchange_computes_slower_meanwhile() -> None:
    """A fifth of the multiprocessors for four seconds of exchanges, all of them hidden."""
    told = _told([10.0] * 6, [1.0] * 4, delayed=True, contention=Contention(sm_share=0.2))
    assert told == pytest.approx(60.0 + 0.2 * 4.0)


def test_a_gradient_that_hides_a_bulk_reduction_is_not_put_off() -> None:
    forward, backward = _passes([1.0] * 6, [0.0, 0.0, 2.0, 0.0])
    host = backward[-1].op
    hidden = replace(
        _exchange(Role.ENTER, Phase.INPUT_GRAD, 0.0),
        op=replace(
            backward[0].op, role=Role.ENTER, lane=Lane.OVERLAP, overlaps=host.key, overlap_phase=Phase.WEIGHT_GRAD
        ),
    )
    host_timed = replace(backward[-1], part="attention")
    waits = []
    for rest in ([], [hidden]):
        ops = [*backward[:-1], host_timed, *rest]
        ahead, back = ((one, exposed_shares(one, ALONE)) for one in (forward, ops))
        _, (_, shares) = across_passes(ahead, back, ALONE, delayed=True)
        waits.append(float(shares[0].seconds[0]))
    assert waits == [0.0, 1.0]


def test_what_was_measured_to_be_lost_beats_the_multiprocessors() -> None:
    """Products alone, of which exchanges take a quarter of the rate and lose half of theirs: one second alone
    takes two, in which half a second of products is lost. Beside other kernels the multiprocessors count."""
    compute, exchange = [10.0] * 6, [1.0] * 4
    losses = Losses(compute=np.array([0.25]), comm=np.array([0.5]))

    def told(part: str) -> float:
        def known(one: TimedOp) -> TimedOp:
            return replace(one, losses=losses) if isinstance(one.op, Comm) else replace(one, part=part)

        passes = ([known(one) for one in ops] for ops in _passes(compute, exchange))
        return _seconds(passes, Contention(sm_share=0.2), delayed=True)

    assert told("gemm") == pytest.approx(60.0 + 4 * 0.5)
    assert told("memory_bound") == pytest.approx(60.0 + 4 * 0.2)


def test_a_product_of_which_nothing_runs_twice_loses_its_multiprocessors_alone() -> None:
    """As kernels that are no products do; one whose tiles are all dealt out before loses a second wave."""
    compute, exchange = [10.0] * 6, [1.0] * 4

    def told(part: str, second_wave: float) -> float:
        def known(one: TimedOp) -> TimedOp:
            wave = np.array([second_wave])
            return one if isinstance(one.op, Comm) else replace(one, part=part, second_wave=wave)

        passes = ([known(one) for one in ops] for ops in _passes(compute, exchange))
        return _seconds(passes, Contention(sm_share=0.2, static_tiles=True, num_sms=100), delayed=True)

    assert told("gemm", 0.0) == pytest.approx(told("memory_bound", 1.0))
    assert told("gemm", 0.0) < told("gemm", 0.5) < told("gemm", 1.0)


NONE = (0.0, 0.0)


def exchange_times(
    forward_s: list[float], backward_s: list[float], *, host_s: tuple[float, float] = NONE, losses: Losses | None = None
) -> Exchanges:
    """Of two chunks; ``host_s`` is the host's of a forward and of a backward."""
    return Exchanges(
        forward_s=floats(forward_s),
        backward_s=floats(backward_s),
        forward_host_s=floats([host_s[0]] * 2),
        backward_host_s=floats([host_s[1]] * 2),
        losses=losses,
    )


def test_each_exchange_hides_beside_the_other_s_compute_and_no_longer() -> None:
    """Forward of 2 with an exchange of 1, 20 or 0; backward of 3 and a weight gradient of 2 with one of 4, 0 or 9."""
    for forward_x, backward_x, expected in ((1.0, 4.0, 7.0), (20.0, 0.0, 7.0 + 17.0), (0.0, 9.0, 7.0 + 5.0)):
        passes = PassTimes(
            forward_s=floats([2.0 + forward_x, 2.0]),
            backward_s=floats([5.0, 5.0 + backward_x]),
            weight_s=floats([2.0, 2.0]),
        )
        exchanges = exchange_times([forward_x, 0.0], [0.0, backward_x])
        assert pair_s(passes, exchanges, ALONE)[0] == pytest.approx(expected)
        slower = pair_s(passes, exchanges, Contention(sm_share=0.2))[0]
        waits = exposed_s(floats(forward_x), floats(3.0), 0.2) + exposed_s(floats(backward_x), floats(4.0), 0.2)
        assert slower == pytest.approx(7.0 + waits[0])


def test_pairs_lose_what_was_measured_of_exchanges_beside_products() -> None:
    """Products lose a quarter and the exchange a half while both run: an exchange of 1 lasts 2 of the 3 s of gradients,
    which then do 1.5, and one of 4 lasts 8 beside 4 s of forward and weight gradients, which take 16 / 3 and hide 8 / 3
    of it."""
    passes = PassTimes(
        forward_s=floats([3.0, 2.0]),
        backward_s=floats([5.0, 9.0]),
        weight_s=floats([2.0, 2.0]),
        products=floats([1.0, 1.0]),
    )
    losses = Losses(compute=floats([0.25, 0.25]), comm=floats([0.5, 0.5]))
    exchanges = exchange_times([1.0, 0.0], [0.0, 4.0], losses=losses)
    told = pair_s(passes, exchanges, Contention(sm_share=0.2, static_tiles=True))
    assert told[0] == pytest.approx(7.0 + 0.25 * 2.0 + (4.0 / 3.0 + 4.0 / 3.0))
    # beside what holds no products nothing of that was measured: the exchange loses nothing, the rest its multiprocessors
    bare = replace(passes, products=floats([0.0, 0.0]))
    assert pair_s(bare, exchanges, Contention(sm_share=0.2))[0] == pytest.approx(7.0 + 0.2 * (1.0 + 4.0))


@given(
    exchange_s=st.floats(min_value=0.0, max_value=10.0),
    faster=st.floats(min_value=0.0, max_value=1.0),
    host_s=st.floats(min_value=0.0, max_value=20.0),
)
def test_one_host_issues_both_passes_of_a_pair(exchange_s: float, faster: float, host_s: float) -> None:
    """Computes of 2 and 5 with an exchange each, waiting for a host that needs ``host_s`` for either: together never
    less than twice that, never more than one after the other, and a faster exchange never takes longer."""

    def told(seconds: float) -> float:
        passes = PassTimes(
            forward_s=np.maximum(floats([2.0 + seconds] * 2), host_s),
            backward_s=np.maximum(floats([5.0 + seconds] * 2), host_s),
            weight_s=floats([2.0, 2.0]),
        )
        pair = pair_s(passes, exchange_times([seconds] * 2, [seconds] * 2, host_s=(host_s, host_s)), ALONE)[0]
        assert 2.0 * host_s <= pair * (1.0 + 1e-12)
        assert pair <= (passes.forward_s + passes.backward_s)[0] * (1.0 + 1e-12)
        return float(pair)

    whole_s = told(exchange_s)
    if host_s >= 5.0 + exchange_s:
        assert whole_s == pytest.approx(2.0 * host_s)
        assert told(exchange_s * faster) <= whole_s * (1.0 + 1e-12)
