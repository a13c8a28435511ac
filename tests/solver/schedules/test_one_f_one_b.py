"""1F1B against the papers' counts."""

import pytest

from solver.schedules.one_f_one_b import in_flight, one_f_one_b
from solver.schedules.work import Kind
from spec.arrays import ints


@pytest.mark.published
def test_micro_batches_in_flight() -> None:
    """arXiv 2104.04473 sec. 2.2.1: at most p; 2205.05198 sec. 4.2.3: interleaving holds
    1 + (p - 1)/(p v) times as much on the first stage."""
    assert in_flight(ints([0, 3]), ints([4, 4]), ints([1, 1]), ints([16, 16])).tolist() == [4, 1]
    assert in_flight(ints(0), ints(4), ints(1), ints(2))[0] == 2
    pp, vpp = 8, 3
    held = in_flight(ints(0), ints(pp), ints(vpp), ints(64))[0]
    assert held / pp == pytest.approx(1 + (pp - 1) / (pp * vpp))


@pytest.mark.parametrize(("pp", "vpp", "num_micro"), [(1, 1, 3), (4, 1, 2), (4, 1, 9), (4, 2, 8), (3, 4, 9)])
def test_the_closed_form_is_the_peak_of_the_order(pp: int, vpp: int, num_micro: int) -> None:
    for stage, order in enumerate(one_f_one_b((pp, vpp, num_micro))):
        held = peak = 0
        for work in order:
            held += 1 if work.kind is Kind.FORWARD else -1
            peak = max(peak, held)
        assert in_flight(ints(stage), ints(pp), ints(vpp), ints(num_micro))[0] == pytest.approx(peak / vpp)
