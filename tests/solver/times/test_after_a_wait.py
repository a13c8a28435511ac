"""What the device does while the host, which has just waited for it, has issued nothing yet."""

import pytest

from solver.times.cpu_time import Issued, between_waits_s
from spec.arrays import floats


def issued(host_s: float, device_s: float, *, launches: float = 1.0, waits: bool = False) -> Issued:
    """An operation of one row."""
    return Issued(host_s=floats(host_s), device_s=floats(device_s), launches=floats(launches), waits=waits)


def round_s(*operations: Issued) -> float:
    """Seconds from wait to wait."""
    return float(between_waits_s(operations)[0])


def test_the_round_begins_where_the_host_waits() -> None:
    """Long device work before the wait hides no issuing after it: the small kernel runs from 3 on, the long one is
    issued at 5 and runs for 10. With the wait before the long one, the small one is issued beside it."""
    assert round_s(issued(2.0, 10.0), issued(3.0, 1.0, waits=True)) == pytest.approx(15.0)
    assert round_s(issued(2.0, 10.0, waits=True), issued(3.0, 1.0)) == pytest.approx(13.0)


def test_the_slower_of_host_and_device_sets_the_pace_in_between() -> None:
    slow_host = [issued(4.0, 1.0, waits=True), issued(4.0, 1.0), issued(4.0, 1.0)]
    assert round_s(*slow_host) == pytest.approx(13.0)
    slow_device = [issued(1.0, 4.0, waits=True), issued(1.0, 4.0), issued(1.0, 4.0)]
    assert round_s(*slow_device) == pytest.approx(13.0)


def test_equal_launches_run_as_they_are_issued() -> None:
    """Ten experts' products: the first is issued after a tenth of the host's time, the last runs for a tenth of the
    device's after it."""
    assert round_s(issued(10.0, 20.0, launches=10.0, waits=True)) == pytest.approx(21.0)
    assert round_s(issued(20.0, 10.0, launches=10.0, waits=True)) == pytest.approx(21.0)
    assert round_s(issued(10.0, 20.0, waits=True)) == pytest.approx(30.0)


def test_at_a_second_wait_the_host_has_issued_nothing_ahead() -> None:
    """The long kernel runs from 1 to 11; a host that waits for it issues the next at 13, one that does not
    has issued it at 3 and the last at 5."""
    last = issued(2.0, 1.0)
    assert round_s(issued(1.0, 10.0, waits=True), issued(2.0, 1.0, waits=True), last) == pytest.approx(16.0)
    assert round_s(issued(1.0, 10.0, waits=True), issued(2.0, 1.0), last) == pytest.approx(13.0)


def test_what_does_not_run_delays_nothing() -> None:
    assert round_s(issued(1.0, 5.0, waits=True), issued(0.0, 0.0)) == pytest.approx(6.0)


def test_a_layer_without_a_wait_has_no_round() -> None:
    with pytest.raises(ValueError, match="never waits"):
        between_waits_s([issued(1.0, 1.0)])
