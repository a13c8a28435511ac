"""Bus bandwidths as nccl-tests defines them."""

import numpy as np
import pytest

from spec.collectives import Collective, busbw_factor


@pytest.mark.parametrize(
    ("kind", "factor"),
    [
        # nccl-tests, doc/PERFORMANCE.md: all-reduce 2(n-1)/n; reduce-scatter, all-gather, alltoall
        # (n-1)/n; broadcast and sendrecv 1; here n = 8
        (Collective.ALL_REDUCE, 1.75),
        (Collective.ALL_GATHER, 0.875),
        (Collective.REDUCE_SCATTER, 0.875),
        (Collective.ALL_TO_ALL, 0.875),
        (Collective.BROADCAST, 1.0),
        (Collective.P2P, 1.0),
        (Collective.REDUCE, 1.0),
        # src/gather.cu, scatter.cu; hypercube.cu: algbw is (n-1)/n of size / time there, busbw the same
        (Collective.GATHER, 0.875),
        (Collective.SCATTER, 0.875),
        (Collective.HYPERCUBE, 0.875),
    ],
)
def test_factors_of_nccl_tests(kind: Collective, factor: float) -> None:
    assert busbw_factor(kind, np.asarray([8])) == pytest.approx([factor])
