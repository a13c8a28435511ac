"""Collectives beside products: what is hidden is bounded by both, and pieces take turns as a replay of them does."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops.op import Axis, Lane, Pieces
from ops.roles import Role
from profdb.overlap_losses import Losses
from solver.times.contention import Contention
from solver.times.overlap import buckets_exposed_s, exposed_s, exposed_shares, in_pieces
from spec.arrays import floats, ints
from spec.collectives import Collective
from tests.ops.operations import comm, exchange, memory_bound, product, timed

SECONDS = st.floats(min_value=0.0, max_value=10.0)
SHARES = st.floats(min_value=0.0, max_value=0.5)
COUNTS = st.integers(min_value=1, max_value=16)


def _pieces(count: int, *, last_waits: bool) -> Pieces:
    return Pieces(count=np.array([count]), last_waits=last_waits, thread_blocks=0)


def _gathered(comm_s: float, compute_s: float, count: int) -> float:
    """Pieces of the input arrive one after another, the own one is there; each is multiplied once it and the
    product before it are."""
    arrived, done = 0.0, compute_s / count
    for _ in range(count - 1):
        arrived += comm_s / (count - 1)
        done = max(done, arrived) + compute_s / count
    return done if count > 1 else comm_s + compute_s


def _reduced(comm_s: float, compute_s: float, count: int) -> float:
    """Each piece of the output leaves once it is made and the one before it has left."""
    made, left = 0.0, 0.0
    for _ in range(count):
        made += compute_s / count
        left = max(left, made) + comm_s / count
    return left


@pytest.mark.parametrize(("blocks", "share"), [(0, 0.2), (20, 0.2), (10, 0.1)])
def test_what_runs_ahead_slows_compute_by_the_multiprocessors_it_says_it_takes(blocks: int, share: float) -> None:
    """A second of an exchange beside ten of compute, on a GPU where a collective's 20 blocks are a fifth."""
    sent = timed(exchange(lane=Lane.PREFETCH, thread_blocks=blocks), "ep_comm", 1.0)
    waits = exposed_shares([timed(memory_bound(), "memory_bound", 10.0), sent], Contention(sm_share=0.2))
    assert [float(one.seconds[0]) for one in waits] == pytest.approx([10.0, share])


def test_copies_run_beside_what_a_rank_waits_for_too() -> None:
    """12 s of a gather ahead of 10 of compute leave 2; 11 of copies end within those 12, 13 leave one."""
    for copies_s, left_s in ((11.0, 0.0), (13.0, 1.0)):
        pass_ops = [
            timed(memory_bound(), "memory_bound", 10.0),
            timed(memory_bound(lane=Lane.PREFETCH), "dp_comm", 12.0),
            timed(memory_bound(lane=Lane.COPY), "offload", copies_s),
        ]
        assert [float(one.seconds[0]) for one in exposed_shares(pass_ops)] == pytest.approx([10.0, 2.0, left_s])


@given(SECONDS, SECONDS, COUNTS)
def test_pieces_of_an_all_gather_end_as_a_replay_of_them_does(comm_s: float, compute_s: float, count: int) -> None:
    wait = in_pieces(floats(comm_s), floats(compute_s), _pieces(count, last_waits=False), 0.0)
    assert compute_s + wait[0] == pytest.approx(_gathered(comm_s, compute_s, count), abs=1e-9)


@given(SECONDS, SECONDS, COUNTS)
def test_pieces_of_a_reduce_scatter_end_as_a_replay_of_them_does(comm_s: float, compute_s: float, count: int) -> None:
    wait = in_pieces(floats(comm_s), floats(compute_s), _pieces(count, last_waits=True), 0.0)
    assert compute_s + wait[0] == pytest.approx(_reduced(comm_s, compute_s, count), abs=1e-9)


@given(SECONDS, SECONDS, COUNTS, SHARES, st.sampled_from(["beside", "bucketed", "pieces", "ring"]))
def test_no_overlap_hides_more_than_the_shorter_of_the_two(
    comm_s: float, compute_s: float, count: int, share: float, kind: str
) -> None:
    """Together they take at least the longer of the two, and no longer than one after the other where the
    collective's multiprocessors are fewer than half."""
    comm, compute = floats(comm_s), floats(compute_s)
    wait = {
        "beside": lambda: exposed_s(comm, compute, share),
        "bucketed": lambda: buckets_exposed_s(comm, compute, floats(count), share),
        "pieces": lambda: in_pieces(comm, compute, _pieces(count, last_waits=True), share),
        "ring": lambda: in_pieces(comm, compute, _pieces(count, last_waits=False), share),
    }[kind]()
    total = compute_s + wait[0]
    assert total >= max(comm_s, compute_s) - 1e-9
    assert total <= comm_s + compute_s + 1e-9
    if share == 0.0 and kind == "beside":
        assert total == pytest.approx(max(comm_s, compute_s))


def test_a_group_that_crosses_domains_is_waited_for_whole() -> None:
    """User buffers reach the GPUs of one domain (Transformer Engine, userbuffers.cu): beyond it nothing takes turns."""
    ran = memory_bound()
    cut = {"lane": Lane.PIECES, "overlaps": ran.key, "pieces": _pieces(4, last_waits=False)}
    gather = comm(Role.ENTER, Collective.ALL_GATHER, Axis.TP, **cut)
    rows = replace(timed(gather, "tp_comm", 3.0, 3.0), crosses=np.array([False, True]))
    waits = exposed_shares([timed(ran, "attention", 2.0, 2.0), rows])
    assert waits[1].seconds.tolist() == [3.0 - 0.75 * 2.0, 3.0]


@pytest.mark.parametrize(
    ("lane", "last_waits", "blocks", "wait"),
    [
        # 16 of the 20 blocks that take a fifth: for a second, 0.16 s of the product
        (Lane.OVERLAP, True, 16, 0.16),
        # four pieces: a quarter is waited for, the rest costs 0.16 a second
        (Lane.PIECES, True, 16, 0.25 + 0.16 * 0.75),
        # copy engines
        (Lane.PIECES, False, 0, 0.0),
    ],
)
def test_user_buffers_take_the_multiprocessors_that_their_kernels_are_given(
    lane: Lane, last_waits: bool, blocks: int, wait: float
) -> None:
    """A second of a collective beside ten of a product (Transformer Engine, initialize_ub: num_sm 16,
    set_sm_margin), which has no second wave there."""
    down = product(role=Role.DOWN)
    pieces = Pieces(count=ints(1 if lane is Lane.OVERLAP else 4), last_waits=last_waits, thread_blocks=blocks)
    scatter = comm(Role.LEAVE, Collective.REDUCE_SCATTER, Axis.TP, lane=lane, overlaps=down.key, pieces=pieces)
    sent = replace(timed(scatter, "tp_comm", 1.0), crosses=np.array([False]))
    waits = exposed_shares([timed(down, "gemm", 10.0), sent], Contention(sm_share=0.2, static_tiles=True))
    assert float(waits[1].seconds[0]) == pytest.approx(wait)


def test_multiprocessors_of_a_collective_slow_what_computes_beside_it() -> None:
    """20 of 100 for one second cost 0.2 s of what all 100 would have done."""
    assert exposed_s(floats(1.0), floats(4.0), 0.2)[0] == pytest.approx(0.2)
    assert exposed_s(floats(6.0), floats(4.0), 0.2)[0] == pytest.approx(2.0)


@given(SECONDS, SECONDS, SHARES, SHARES)
def test_where_both_lose_each_goes_on_at_its_own_pace(
    comm_s: float, compute_s: float, loss: float, comm_loss: float
) -> None:
    """A replay: both at their slower rates until one has ended, then the other as if alone."""
    together = min(comm_s / (1.0 - comm_loss), compute_s / (1.0 - loss))
    left = max(comm_s - together * (1.0 - comm_loss), compute_s - together * (1.0 - loss), 0.0)
    wait = exposed_s(floats(comm_s), floats(compute_s), loss, comm_loss)[0]
    assert compute_s + wait == pytest.approx(together + left, abs=1e-9)


def test_what_was_measured_takes_the_place_of_the_model_on_both_sides() -> None:
    """A second of a gather beside ten of products that lose 30 % of their rate, while it loses half of its:
    it takes two seconds, in which 0.6 of the products' are lost. A pass over memory loses the
    multiprocessors, as ever."""
    gathered = timed(comm(Role.WEIGHT_GATHER, Collective.ALL_GATHER, Axis.WP, lane=Lane.PREFETCH), "wp_comm", 1.0)
    measured = replace(gathered, losses=Losses(compute=floats(0.3), comm=floats(0.5)))
    products, contention = timed(product(), "gemm", 10.0), Contention(sm_share=0.2)
    for one, wait in ((products, 0.6), (timed(memory_bound(), "memory_bound", 10.0), 0.2)):
        assert float(exposed_shares([one, measured], contention)[1].seconds[0]) == pytest.approx(wait)
    unknown = exposed_shares([products, gathered], contention)
    assert float(unknown[1].seconds[0]) == pytest.approx(0.2)
    # one of two unmeasured: the model answers for both
    mixed = exposed_shares([products, measured, gathered], contention)
    assert sum(float(one.seconds[0]) for one in mixed[1:]) == pytest.approx(0.4)
