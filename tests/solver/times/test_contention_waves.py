"""Waves of tiles beside a collective, against thread blocks that are started one by one."""

import heapq

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops.layout import Layout
from ops.op import BatchedGemm, GroupedGemm, Phase
from ops.roles import Module, Role
from profdb.modelled.cost_model import ModelledCostModel
from solver.times.contention import SECOND_WAVE, Contention, slowed, tiles
from solver.times.op_times import Pricer
from spec.arrays import ints
from spec.cluster.reader import read_cluster
from tests.solver.questions import ROOT


def _last_end(dealt: int, sms: int, free: int) -> int:
    """Tile times until all blocks of a persistent kernel have ended, each on the next free multiprocessor."""
    blocks = [len(range(block, dealt, sms)) for block in range(min(dealt, sms))]
    ends = [0] * free
    for own in blocks:
        heapq.heapreplace(ends, ends[0] + own)
    return max(ends)


@given(st.integers(1, 4000), st.integers(4, 160), st.data())
def test_blocks_that_find_no_multiprocessor_start_where_one_has_ended(
    dealt: int, sms: int, data: st.DataObject
) -> None:
    taken = data.draw(st.integers(1, sms // 2))
    expected = _last_end(dealt, sms, sms - taken) / _last_end(dealt, sms, sms)
    assert slowed(ints([dealt]), sms, taken)[0] == pytest.approx(expected)


def test_few_tiles_leave_room_and_many_take_twice_as_long() -> None:
    """H100's 132 multiprocessors, 20 of them NCCL's: 112 blocks fit beside it, 113 do not; 185 tiles are 1.4
    waves, whose second has room; 300 are 2.3; PyTorch issue 143988 saw products of many tiles take twice as
    long."""
    found = slowed(ints([0, 112, 113, 132, 185, 300, 132_000]), 132, 20)
    assert found == pytest.approx([1.0, 1.0, 2.0, 2.0, 1.0, 4 / 3, 2.0])


def _product(m: int, n: int) -> BatchedGemm:
    return BatchedGemm(module=Module.MLP, role=Role.UP, phase=Phase.FORWARD, m=ints(m), k=ints(64), n=ints(n))


def test_tiles_are_those_of_the_result_the_better_way_round() -> None:
    """4096 x 1344 is 32 x 6 lying tiles or 16 x 11 standing ones; 16 experts of 4,096 rows have 256 rows
    each, and their weight gradients of k x n are 8 x 3."""
    assert tiles(_product(4096, 1344))[0] == 176
    expert = GroupedGemm(
        module=Module.MOE,
        role=Role.UP,
        phase=Phase.FORWARD,
        groups=ints(16),
        m=ints(4096),
        k=ints(1024),
        n=ints(768),
    )
    assert tiles(expert)[0] == 2 * 3
    gradient = GroupedGemm(
        module=Module.MOE,
        role=Role.UP,
        phase=Phase.WEIGHT_GRAD,
        groups=ints(16),
        m=ints(4096),
        k=ints(1024),
        n=ints(768),
        layout="TN",
    )
    assert tiles(gradient)[0] == 8 * 3


def test_what_a_second_wave_doubles_is_what_the_waves_say() -> None:
    """``w`` of the loss lies as far from the multiprocessors' share to what was seen of second waves as the
    ratio of the waves from it to 2; where tiles come as blocks, or nobody says how many multiprocessors there
    are, the share is whole and changes nothing."""
    hopper = Contention(sm_share=20 / 132, static_tiles=True, num_sms=132)
    for columns, ratio in ((2816, 4 / 3), (1344, 132 / 112), (28672, 2 * 27 / 28)):
        product = _product(4096, columns)
        share, thinner = hopper.twice(product), 132 / 112
        loss = hopper.lost(np.ones(1), share)[0]
        seen = thinner + (ratio - thinner) / (2 - thinner) * (SECOND_WAVE - thinner)
        assert 1.0 / (1.0 - loss[0]) == pytest.approx(seen), columns
    for other in (Contention(sm_share=20 / 108, num_sms=108), Contention(sm_share=0.1, static_tiles=True)):
        assert other.twice(_product(4096, 1344)) == pytest.approx([1.0])


def test_a_priced_product_brings_what_of_it_is_doubled() -> None:
    """On H100 the seconds that run twice beside a collective, by their own tiles; on A100 all of them."""
    for name, expected in (("h100-sxm", (4 / 3 - 132 / 112) / (2 - 132 / 112)), ("a100-sxm-80g", 1.0)):
        cluster = read_cluster(name, root=ROOT)
        pricer = Pricer.on(cluster, ModelledCostModel(cluster=cluster))
        timed = pricer.time(_product(4096, 2816), Layout.of(8))
        assert timed.products_s == pytest.approx(timed.seconds * expected), name
