"""The matrix of pairs: rounds in which everybody meets everybody, and what is named in it."""

from pathlib import Path

import numpy as np
import pytest

from profiler.links.pairs import PairTimes, draw_pairs, half_lines, matrix_lines, pair_lines, rounds
from spec.arrays import FloatArray

NODES, SLOTS = 8, 4
NAMES = tuple(f"node-{number}" for number in range(1, NODES + 1))


@pytest.mark.parametrize("count", [2, 3, 7, 8])
def test_everybody_meets_everybody_once_and_one_at_a_time(count: int) -> None:
    met = [pair for meetings in rounds(count) for pair in meetings]
    assert sorted(met) == [(a, b) for a in range(count) for b in range(a + 1, count)]
    for meetings in rounds(count):
        players = [player for pair in meetings for player in pair]
        assert len(players) == len(set(players)) == count - count % 2


def times(**slow: float) -> PairTimes:
    """Even times with a little noise; ``a_b_slot`` (-1: all) takes so many times as long."""
    seconds = 0.01 * np.exp(np.random.default_rng(0).normal(0.0, 0.01, (NODES, NODES, SLOTS)))
    for key, factor in slow.items():
        a, b, slot = (None if part == "x" else int(part) for part in key.removeprefix("of_").split("_"))
        at = (slice(None) if a is None else a, slice(None) if b is None else b, slice(None) if slot is None else slot)
        seconds[at] *= factor
        seconds[at[1], at[0], at[2]] *= factor
    seconds[np.arange(NODES), np.arange(NODES)] = np.nan
    return PairTimes(seconds=seconds, names=NAMES, size_bytes=64 << 20)


def test_even_links_are_no_finding() -> None:
    assert pair_lines(times(), NAMES) == []


@pytest.mark.parametrize(
    ("slow", "said"),
    [
        ({"of_2_x_x": 1.5}, "slow: node-3: its messages take 1.5"),
        ({"of_2_x_1": 1.5}, "slow: node-3, the NIC of local rank 1: its messages take 1."),
        ({"of_2_5_x": 1.5}, "slow: the link between node-3 and node-6: its messages take 1.5"),
    ],
)
def test_a_slow_node_and_a_slow_link_are_told_apart(slow: dict[str, float], said: str) -> None:
    (line,) = pair_lines(times(**slow), NAMES)
    assert line.startswith(said)


def test_a_slow_nic_is_named_by_its_rank_where_the_node_is_not_slow() -> None:
    """Of every node alike, so that no node is slow."""
    lines = pair_lines(times(of_x_x_2=1.3), NAMES)
    assert len(lines) == NODES
    assert all("the NIC of local rank 2" in line for line in lines)


def test_a_slow_half_is_named_at_every_size() -> None:
    halves: list[tuple[int, FloatArray]] = [(4, np.array([0.02])), (2, np.array([0.01, 0.02])), (1, np.array([0.01, 0.01, 0.02, 0.01]))]  # fmt: skip
    lines = half_lines(halves, 64 << 20, 2)
    assert lines[0].startswith("all_reduce in 1 x 4 nodes: ")
    # busbw of nccl-tests: 2 (n - 1) / n x size / seconds; 4 ranks, 64 MiB in 10 ms
    assert lines[1] == "all_reduce in 2 x 2 nodes: 10.1 to 5.03 GB/s; slowest: nodes 3 to 4"
    assert lines[2].endswith("slowest: nodes 3 to 3")


def test_the_matrix_is_text_and_a_picture(tmp_path: Path) -> None:
    made = times(of_2_5_x=2.0)
    text = matrix_lines(made)
    assert len(text) == 2 + NODES
    # 64 MiB in 10 ms is 6.71 GB/s, of the slowest of four NICs a little less
    assert float(text[2].split()[2]) == pytest.approx(6.7, rel=0.05)
    assert float(text[4].split()[6]) == pytest.approx(3.35, rel=0.05)
    draw_pairs(made, tmp_path / "pairs.png")
    assert (tmp_path / "pairs.png").read_bytes()[:4] == b"\x89PNG"
