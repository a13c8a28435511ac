"""The deal of layers that lets a step end soonest: held against every deal there is."""

import ctypes
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations_with_replacement, pairwise

import numpy as np
import pytest

from solver.refinements.deal_program import Dealing, least_deal
from solver.refinements.stage_room import Room
from spec.arrays import IntArray

HEAVY_ENDS = np.array([0.3, 0.0, 0.0, 0.0, 0.0, 1.7])
DEALINGS = [
    Dealing(counts=(9,), work_s=(1.0,), ends_s=HEAVY_ENDS[[0, 1, 5]], pp=3, vpp=1, num_micro=8),
    Dealing(counts=(11,), work_s=(2e-3,), ends_s=HEAVY_ENDS * 2e-3, pp=3, vpp=2, num_micro=8),
    Dealing(counts=(2, 8), work_s=(0.4, 1.0), ends_s=HEAVY_ENDS, pp=3, vpp=2, num_micro=8),
    Dealing(
        counts=(3, 4, 3), work_s=(1.0, 0.25, 0.6), ends_s=HEAVY_ENDS[[0, 1, 2, 5]], pp=4, vpp=1, num_micro=8
    ),
    Dealing(counts=(2, 8), work_s=(0.4, 1.0), ends_s=HEAVY_ENDS, pp=2, vpp=3, num_micro=8, without=(5,)),
    Dealing(
        counts=(9,),
        work_s=(1.0,),
        ends_s=HEAVY_ENDS[[0, 1, 5]],
        pp=3,
        vpp=1,
        num_micro=8,
        rooms=(Room(place=1, bytes_of=((2.0,),), room_bytes=7.0),),
    ),
    # Two layers of a chunk run again, which takes a third more and keeps a tenth.
    Dealing(counts=(9,), work_s=(1.3, 1.0), ends_s=HEAVY_ENDS[[0, 1, 5]], pp=3, vpp=1, num_micro=8, again=2),
    Dealing(
        counts=(3, 6),
        work_s=(0.6, 1.3, 0.4, 1.0),
        ends_s=HEAVY_ENDS[[0, 1, 2, 5]],
        pp=2,
        vpp=2,
        num_micro=8,
        again=1,
        rooms=(Room(place=0, bytes_of=((1.1, 1.2, 2.0, 3.0), (0.6, 0.7, 1.0, 1.5)), room_bytes=7.0),),
    ),
]


def split(layers: IntArray, again: int) -> IntArray:
    """Every chunk's first layers run again, by run, and then the others."""
    before = np.cumsum(layers, axis=1) - layers
    first = np.clip(again - before, 0, layers)
    return np.hstack([first, layers - first])


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
        if held[inner].min() < 1 or held[list(dealing.without)].any():
            continue
        kinds_held = split(layers, dealing.again) if dealing.again else layers
        chunks = kinds_held.reshape(dealing.vpp, dealing.pp, dealing.kinds)
        if all((chunks[:, room.place] * room.bytes_of).sum() <= room.room_bytes for room in dealing.rooms):
            yield kinds_held


@pytest.mark.parametrize("dealing", DEALINGS)
def test_no_deal_lets_a_step_end_sooner(dealing: Dealing) -> None:
    found = least_deal(dealing)
    assert found is not None
    every = list(deals(dealing))
    assert any(np.array_equal(found, one) for one in every)
    spans = [dealing.span_s(one) for one in every]
    assert dealing.span_s(found) == pytest.approx(min(spans), rel=1e-5)
    # Of the deals as good in that, none has shorter rows of layers, but for the last word.
    chunk = [
        (one @ np.array(dealing.work_s)).max()
        for one, span in zip(every, spans, strict=True)
        if span <= min(spans) * (1 + 1e-6)
    ]
    mine = (found @ np.array(dealing.work_s)).max()
    assert mine <= min(chunk) + 2e-3 * max(dealing.work_s)


@pytest.mark.parametrize("dealing", DEALINGS)
def test_whether_less_work_is_possible_is_never_denied_wrongly(dealing: Dealing) -> None:
    if not dealing.rooms and not dealing.without:
        least = min(dealing.span_s(one) for one in deals(dealing))
        assert dealing.may_work_less(least * 1.001)
    assert not dealing.may_work_less(sum(dealing.ends_s) / dealing.pp)


def test_bounds_that_leave_no_deal_have_none() -> None:
    rooms = tuple(Room(place=place, bytes_of=((1.0,),), room_bytes=2.5) for place in range(3))
    assert least_deal(replace(DEALINGS[0], rooms=rooms)) is None


def test_a_deal_says_nothing_on_the_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    """HiGHS prints a line of its own where a bound leaves no room for its tolerance (DeepSeek-V3's layers on
    4 stages).
    """
    ends_s = np.zeros(16)
    ends_s[[0, 14, 15]] = 4.62906667e-05, 4.15828537e-02, 1.99773530e-02
    for work_s in ((0.01406590328384651, 0.01970178878696399), (0.016295179706372277, 0.01964057015839256)):
        for num_micro in (8, 64, 10**12):
            least_deal(
                Dealing(
                    counts=(3, 58),
                    work_s=work_s,
                    ends_s=ends_s,
                    pp=4,
                    vpp=4,
                    num_micro=num_micro,
                    without=(15,),
                )
            )
    ctypes.CDLL(None).fflush(None)
    assert capfd.readouterr().out == ""
