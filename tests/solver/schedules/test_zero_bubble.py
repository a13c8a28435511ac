"""What stages of zero-bubble schedules hold and in what order, against their orders of work."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solver.schedules.registry import Schedule
from solver.schedules.work import Kind, Work
from solver.schedules.zero_bubble import filled, handcrafted, in_flight_filled
from spec.arrays import ints


def peak(order: list[Work]) -> int:
    """Micro-batches of which a forward ran and the weight gradients did not."""
    held = most = 0
    for work in order:
        held += (work.kind is Kind.FORWARD) - (work.kind is Kind.WEIGHT)
        most = max(most, held)
    return most


@given(pp=st.integers(2, 6), num_micro=st.integers(1, 24))
def test_every_stage_runs_all_three_of_each_micro_batch_once(pp: int, num_micro: int) -> None:
    for orders in (handcrafted((pp, 1, num_micro)), filled((pp, 1, num_micro))):
        assert len(orders) == pp
        for order in orders:
            for kind in (Kind.FORWARD, Kind.BACKWARD, Kind.WEIGHT):
                assert [work.micro for work in order if work.kind is kind] == [*range(num_micro)]


@given(pp=st.integers(2, 6), num_micro=st.integers(1, 24))
def test_no_stage_holds_more_than_2_p_minus_1(pp: int, num_micro: int) -> None:
    """ZB-H2 (arXiv 2401.10241 sec. 2.2); the first stage holds as many."""
    told = in_flight_filled(ints(0), ints(pp), ints(1), ints(num_micro))[0]
    peaks = [peak(order) for order in filled((pp, 1, num_micro))]
    assert max(peaks) <= told == min(2 * pp - 1, num_micro)
    if num_micro >= 2 * pp - 1:
        assert peaks[0] == told


@pytest.mark.parametrize("pp", [2, 4])
def test_the_handcrafted_one_holds_what_1f1b_does(pp: int) -> None:
    """Its table 2: p micro-batches on the first stage, and no stage more."""
    peaks = [peak(order) for order in handcrafted((pp, 1, 4 * pp))]
    assert peaks == [pp] * pp
    assert Schedule.ZB_H1.in_flight(ints(0), ints(pp), ints(1), ints(4 * pp)).tolist() == [pp]
