"""Who is named as slower than its peers, and who is not."""

import numpy as np
import pytest

from profiler.links.slower import PeerTimes, slow_peers, slow_rank_lines

EVEN = [1.0, 1.01, 0.99, 1.02, 0.98, 1.0, 1.01]


def test_a_peer_beyond_three_deviations_is_named_with_how_far() -> None:
    (slow,) = slow_peers([*EVEN, 1.5])
    assert slow.place == 7
    assert slow.ratio == pytest.approx(1.5 / 1.0, rel=0.01)
    assert slow.deviations > 3
    assert slow.text().startswith("1.49 x the median of its peers (")


@pytest.mark.parametrize(
    ("seconds", "places"),
    [
        (EVEN, []),
        ([1.0, 1.0, 1.0, 1.04], []),  # slower by less than a twentieth
        ([1.0, 0.5, 1.0, 1.0], []),  # faster
        ([1.0, 2.0], []),  # of two nobody knows
        ([1.0, 1.3, 0.8, 1.2, 0.9, 1.6, 0.7, 1.1], []),  # peers that differ that much anyway
        ([1.0, 1.0, 1.0, 2.0, 3.0], [4, 3]),
        ([np.nan, 1.0, 1.0, 1.0, 2.0], [4]),
    ],
)
def test_who_is_slow(seconds: list[float], places: list[int]) -> None:
    assert [one.place for one in slow_peers(seconds)] == places


def test_ranks_are_judged_by_the_mean_of_all_cases_of_a_kind() -> None:
    times, noise = PeerTimes(), np.random.default_rng(0)
    for size in (1.0, 10.0, 100.0):
        for _ in range(20):
            seconds = size * np.exp(noise.normal(0.0, 0.05, 8))
            seconds[6:] *= 1.2
            times.add("linear", seconds)
        times.add("host", np.full(8, size))
    hosts = ["node-1"] * 2 + ["node-2"] * 2 + ["node-3"] * 2 + ["node-4"] * 2
    (line,) = slow_rank_lines(times, hosts)
    assert line.startswith("slow: node-4: linear take 1.2")
    assert line.endswith("leave it out with launch --exclude node-4")
    times.add("linear", np.array([1, 1, 1, 1, 1, 1, 1, 1e9]))
    assert slow_rank_lines(times, ["here"] * 8)[0].startswith("slow: here, rank ")
