"""PAT, by which one rank a node gathers and scatters, in closed form."""

from pathlib import Path

import numpy as np
import pytest

from profdb.modelled.network.bus import bus_rate, long_share
from profdb.modelled.network.links import Shape
from profdb.modelled.network.pat import pat_seconds
from profdb.modelled.network.shares import NETWORK_START_S
from spec.arrays import floats, ints
from spec.cluster.reader import read_cluster
from spec.collectives import Collective

H100 = read_cluster("h100-sxm", root=Path(__file__).resolve().parents[4])


def group(intra: int, inter: int) -> Shape:
    return Shape(intra=ints(intra), inter=ints(inter), siblings=ints(1))


def seconds(size: float, shape: Shape) -> float:
    return float(pat_seconds(H100, Collective.ALL_GATHER, floats(size), shape)[0])


@pytest.mark.parametrize(("nodes", "depth"), [(2, 1), (4, 2), (5, 3), (64, 6)])
def test_the_start_grows_with_the_logarithm_of_the_ranks_and_a_little_with_each(
    nodes: int, depth: int
) -> None:
    """NCCL tuning.cc: 8 us, 14 us / 3.5 a level of the tree and 2.8 us a rank, after the network's start."""
    expected = NETWORK_START_S + 8.0e-6 + depth * 4.0e-6 + nodes * 2.8e-6
    assert seconds(0.0, group(1, nodes)) == pytest.approx(expected)


def test_long_messages_reach_three_quarters_of_the_bus() -> None:
    shape = group(1, 8)
    rate = 0.75 * float((bus_rate(H100, shape) * long_share(H100, shape))[0])
    assert seconds(2.0e9, shape) - seconds(1.0e9, shape) == pytest.approx(1.0e9 / rate)


def test_several_ranks_a_node_and_one_node_do_not_run_it() -> None:
    assert np.isinf(seconds(1.0e6, group(2, 8)))
    assert np.isinf(seconds(1.0e6, group(8, 1)))
