import pytest

from runner.logs.log import bandwidths, bus_factor
from workload.aicb.csv_workload import GeneralItem

# AICB's factors for 4 ranks: an all-to-all counts whole, unlike in nccl-tests.
FACTORS = {
    "all_reduce": 1.5,
    "all_gather": 0.75,
    "reduce_scatter": 0.75,
    "broadcast": 1.0,
    "all_to_all": 1.0,
    "isend": 1.0,
    "barrier": 0.0,
    "computation": 0.0,
}


@pytest.mark.parametrize(("kind", "factor"), FACTORS.items())
def test_bus_factors(kind: str, factor: float) -> None:
    assert bus_factor(kind, 4) == factor


def test_a_gibibyte_in_half_a_second() -> None:
    item = GeneralItem(comm_type="all_reduce", comm_group="tp_group", comm_group_size=4, msg_size=2**30)
    assert bandwidths(item, 500.0) == (2.0, 3.0)


def test_the_tutorials_line() -> None:
    # AICB's log of an A100 run: 40 MB in 0.66 ms are 59.10 GiB/s; 8 ranks give the bus 103.42.
    item = GeneralItem(comm_type="all_reduce", comm_group="tp_group", comm_group_size=8, msg_size=40 * 2**20)
    algbw, busbw = bandwidths(item, 0.661)
    assert (algbw, busbw) == (pytest.approx(59.10, abs=0.01), pytest.approx(103.42, abs=0.02))


def test_without_a_size_of_the_group_there_is_no_bus_bandwidth() -> None:
    item = GeneralItem(comm_type="all_reduce", comm_group="ep_group", msg_size=2**30)
    assert bandwidths(item, 1000.0) == (1.0, 0.0)
