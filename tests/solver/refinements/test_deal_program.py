"""The deal of layers that makes the busiest stage work least: held against every deal there is."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations_with_replacement, pairwise

import numpy as np
import pytest

from solver.refinements.deal_program import Dealing, least_deal
from spec.arrays import IntArray

HEAVY_ENDS = np.array([0.3, 0.0, 0.0, 0.0, 0.0, 1.7])
DEALINGS = [
    Dealing(counts=(9,), work_s=(1.0,), ends_s=HEAVY_ENDS[[0, 1, 5]], pp=3, vpp=1),
    Dealing(counts=(11,), work_s=(2e-3,), ends_s=HEAVY_ENDS * 2e-3, pp=3, vpp=2),
    Dealing(counts=(2, 8), work_s=(0.4, 1.0), ends_s=HEAVY_ENDS, pp=3, vpp=2),
    Dealing(counts=(3, 4, 3), work_s=(1.0, 0.25, 0.6), ends_s=HEAVY_ENDS[[0, 1, 2, 5]], pp=4, vpp=1),
    Dealing(counts=(2, 8), work_s=(0.4, 1.0), ends_s=HEAVY_ENDS, pp=2, vpp=3, without=(5,)),
    Dealing(counts=(9,), work_s=(1.0,), ends_s=HEAVY_ENDS[[0, 1, 5]], pp=3, vpp=1, most={1: 3}),
]


def deals(dealing: Dealing) -> Iterator[IntArray]:
    """Every deal in order: where each virtual stage ends."""
    kinds = np.repeat(np.arange(len(dealing.counts)), dealing.counts)
    for borders in combinations_with_replacement(range(len(kinds) + 1), dealing.stages - 1):
        bounds = [0, *borders, len(kinds)]
        layers = np.array(
            [np.bincount(kinds[low:high], minlength=len(dealing.counts)) for low, high in pairwise(bounds)]
        )
        held = layers.sum(axis=1)
        inner = [v for v in range(1, dealing.stages - 1) if v not in dealing.without]
        per_stage = held.reshape(dealing.vpp, dealing.pp).sum(axis=0)
        if held[inner].min() < 1 or held[list(dealing.without)].any():
            continue
        if all(per_stage[stage] <= most for stage, most in dealing.most.items()):
            yield layers


@pytest.mark.parametrize("dealing", DEALINGS)
def test_no_deal_makes_the_busiest_stage_work_less(dealing: Dealing) -> None:
    found = least_deal(dealing)
    assert found is not None
    every = list(deals(dealing))
    assert any(np.array_equal(found, one) for one in every)
    busiest = [dealing.stage_work_s(one).max() for one in every]
    assert dealing.stage_work_s(found).max() == pytest.approx(min(busiest), rel=1e-5)
    # Of the deals as good in that, none has shorter rows of layers, but for the last word.
    chunk = [
        (one @ np.array(dealing.work_s)).max()
        for one, work in zip(every, busiest, strict=True)
        if work <= min(busiest) * (1 + 1e-6)
    ]
    mine = (found @ np.array(dealing.work_s)).max()
    assert mine <= min(chunk) + 2e-3 * max(dealing.work_s)


@pytest.mark.parametrize("dealing", DEALINGS)
def test_whether_less_work_is_possible_is_never_denied_wrongly(dealing: Dealing) -> None:
    if not dealing.most and not dealing.without:
        least = min(dealing.stage_work_s(one).max() for one in deals(dealing))
        assert dealing.may_work_less(least * 1.001)
    assert not dealing.may_work_less(sum(dealing.ends_s) / dealing.pp)


def test_bounds_that_leave_no_deal_have_none() -> None:
    assert least_deal(replace(DEALINGS[0], most={0: 1, 1: 1, 2: 1})) is None
