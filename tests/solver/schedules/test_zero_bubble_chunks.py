"""Zero-bubble schedules of chunks against torch's own orders, their papers' bubbles, and what their orders hold."""

import numpy as np
import pytest

from solver.pipeline.program import program
from solver.pipeline.side_by_side import ChunkTimes, run
from solver.schedules.registry import Schedule
from solver.schedules.work import Kind, Work
from solver.schedules.zero_bubble_chunks import in_flight_chunks, interleaved, zero_bubble_v
from spec.arrays import floats, ints
from tests.solver.schedules.torch_orders import orders_of

LOOPED = [(2, 1, 4), (4, 2, 8), (4, 2, 4), (3, 3, 9), (4, 2, 3), (8, 2, 24)]
IN_A_V = [(2, 2, 3), (4, 2, 16), (4, 2, 2), (3, 2, 7), (8, 2, 15)]


@pytest.mark.parametrize("shape", LOOPED)
def test_interleaved_is_torchs_interleaved_zero_bubble(shape: tuple[int, int, int]) -> None:
    assert interleaved(shape) == orders_of("ScheduleInterleavedZeroBubble", shape)


@pytest.mark.parametrize("shape", IN_A_V)
def test_the_v_is_torchs(shape: tuple[int, int, int]) -> None:
    assert zero_bubble_v(shape) == orders_of("ScheduleZBVZeroBubble", shape, turns=True)


def longest_wait(schedule: Schedule, shape: tuple[int, int, int], times: tuple[float, float, float]) -> float:
    """Seconds of the step beyond a stage's own work; ``times`` of a chunk's F, B and W."""
    pp, vpp, num_micro = shape
    forward, backward, weight = (np.full((pp, vpp, 1), seconds) for seconds in times)
    of = ChunkTimes(forward_s=forward, backward_s=backward, weight_s=weight, hop_s=floats(0.0))
    began, ended = run(program(schedule, shape), of)
    return float((ended - began).max()) - sum(times) * vpp * num_micro


@pytest.mark.parametrize("pp", [2, 4, 8])
def test_a_v_has_no_bubble_where_all_three_take_equally_long(pp: int) -> None:
    """arXiv 2401.10241 sec. 6 and 2405.15362 sec. 3; where they do not it has one."""
    assert longest_wait(Schedule.ZB_V, (pp, 2, 4 * pp), (1.0, 1.0, 1.0)) == pytest.approx(0.0, abs=1e-9)
    assert longest_wait(Schedule.ZB_V, (pp, 2, 4 * pp), (1.0, 1.4, 0.6)) > 0.1


@pytest.mark.parametrize("pp", [2, 4, 8])
@pytest.mark.parametrize("vpp", [1, 2, 3])
def test_interleaving_leaves_a_chunk_of_every_earlier_stage(pp: int, vpp: int) -> None:
    """ZB-H1's (p - 1)(F + B - W), of chunks (arXiv 2401.10241 table 1)."""
    bubble = longest_wait(Schedule.ZB_INTERLEAVED, (pp, vpp, 4 * pp), (1.0, 1.0, 1.0))
    assert bubble == pytest.approx(pp - 1)


def most_held(order: list[Work], weighs: tuple[float, ...]) -> float:
    """The most that an order holds, a micro-batch of each chunk ``weighs`` so much, until its weight gradient
    is there.
    """
    signs = {Kind.FORWARD: 1.0, Kind.BACKWARD: 0.0, Kind.WEIGHT: -1.0}
    return float(np.cumsum([signs[work.kind] * weighs[work.chunk] for work in order]).max())


@pytest.mark.parametrize(("orders", "shapes"), [(interleaved, LOOPED), (zero_bubble_v, IN_A_V)])
def test_stages_hold_pp_micro_batches(orders, shapes: list[tuple[int, int, int]]) -> None:
    for shape in shapes:
        pp, vpp, num_micro = shape
        told = in_flight_chunks(ints(range(pp)), ints(pp), ints(vpp), ints(num_micro))
        held = [most_held(order, (1.0 / vpp,) * vpp) for order in orders(shape)]
        if num_micro >= 2 * pp - 1:
            assert told == pytest.approx(held), shape
        assert (told >= held).all()
