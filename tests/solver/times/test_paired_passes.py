"""A forward beside a backward: what hides of the experts' exchange, and the host that issues both."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from profdb.lookup.overlap_losses import Losses
from solver.pipeline.stages import PassTimes
from solver.times.contention import ALONE, Contention
from solver.times.expert_overlap import Exchanges, pair_s
from solver.times.overlap import beside
from spec.arrays import floats

NONE = (0.0, 0.0)


def exchanged(
    forward_s: list[float],
    backward_s: list[float],
    *,
    host_s: tuple[float, float] = NONE,
    losses: Losses | None = None,
) -> Exchanges:
    """Of two chunks; ``host_s`` is the host's of a forward and of a backward."""
    return Exchanges(
        forward_s=floats(forward_s),
        backward_s=floats(backward_s),
        forward_host_s=floats([host_s[0]] * 2),
        backward_host_s=floats([host_s[1]] * 2),
        losses=losses,
    )


def test_each_exchange_hides_beside_the_other_s_compute_and_no_longer() -> None:
    """Forward of 2 with an exchange of 1, 20 or 0; backward of 3 and a weight gradient of 2 with one of 4, 0 or 9."""
    for forward_x, backward_x, expected in ((1.0, 4.0, 7.0), (20.0, 0.0, 7.0 + 17.0), (0.0, 9.0, 7.0 + 5.0)):
        passes = PassTimes(
            forward_s=floats([2.0 + forward_x, 2.0]),
            backward_s=floats([5.0, 5.0 + backward_x]),
            weight_s=floats([2.0, 2.0]),
        )
        exchanges = exchanged([forward_x, 0.0], [0.0, backward_x])
        assert pair_s(passes, exchanges, ALONE)[0] == pytest.approx(expected)
        slower = pair_s(passes, exchanges, Contention(sm_share=0.2))[0]
        waits = beside(floats(forward_x), floats(3.0), 0.2) + beside(floats(backward_x), floats(4.0), 0.2)
        assert slower == pytest.approx(7.0 + waits[0])


def test_pairs_lose_what_was_measured_of_exchanges_beside_products() -> None:
    """Products lose a quarter and the exchange a half while both run: an exchange of 1 lasts 2 of the 3 s of gradients,
    which then do 1.5, and one of 4 lasts 8 beside 4 s of forward and weight gradients, which take 16 / 3 and hide 8 / 3
    of it."""
    passes = PassTimes(
        forward_s=floats([3.0, 2.0]),
        backward_s=floats([5.0, 9.0]),
        weight_s=floats([2.0, 2.0]),
        products=floats([1.0, 1.0]),
    )
    lost = Losses(compute=floats([0.25, 0.25]), comm=floats([0.5, 0.5]))
    exchanges = exchanged([1.0, 0.0], [0.0, 4.0], losses=lost)
    told = pair_s(passes, exchanges, Contention(sm_share=0.2, static_tiles=True))
    assert told[0] == pytest.approx(7.0 + 0.25 * 2.0 + (4.0 / 3.0 + 4.0 / 3.0))
    # beside what holds no products nothing of that was measured: the exchange loses nothing, the rest its multiprocessors
    bare = replace(passes, products=floats([0.0, 0.0]))
    assert pair_s(bare, exchanges, Contention(sm_share=0.2))[0] == pytest.approx(7.0 + 0.2 * (1.0 + 4.0))


@given(
    exchange_s=st.floats(min_value=0.0, max_value=10.0),
    faster=st.floats(min_value=0.0, max_value=1.0),
    host_s=st.floats(min_value=0.0, max_value=20.0),
)
def test_one_host_issues_both_passes_of_a_pair(exchange_s: float, faster: float, host_s: float) -> None:
    """Computes of 2 and 5 with an exchange each, waiting for a host that needs ``host_s`` for either: together never
    less than twice that, never more than one after the other, and a faster exchange never takes longer."""

    def told(seconds: float) -> float:
        passes = PassTimes(
            forward_s=np.maximum(floats([2.0 + seconds] * 2), host_s),
            backward_s=np.maximum(floats([5.0 + seconds] * 2), host_s),
            weight_s=floats([2.0, 2.0]),
        )
        pair = pair_s(passes, exchanged([seconds] * 2, [seconds] * 2, host_s=(host_s, host_s)), ALONE)[0]
        assert 2.0 * host_s <= pair * (1.0 + 1e-12)
        assert pair <= (passes.forward_s + passes.backward_s)[0] * (1.0 + 1e-12)
        return float(pair)

    whole_s = told(exchange_s)
    if host_s >= 5.0 + exchange_s:
        assert whole_s == pytest.approx(2.0 * host_s)
        assert told(exchange_s * faster) <= whole_s * (1.0 + 1e-12)
