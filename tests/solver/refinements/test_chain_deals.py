"""What no deal over a chain of stages is below: held against every deal there is, and against the program it spares."""

from dataclasses import replace

import numpy as np
import pytest

from solver.estimate import estimate_memory
from solver.memory.device_memory import usable_bytes
from solver.plans.plan_table import PlanTable
from solver.refinements import dealt_anew
from solver.refinements.chain_deals import least_chain_span_s
from solver.refinements.deal_program import Dealing, least_deal
from solver.refinements.stage_room import Room
from tests.solver.refinements.test_deal_program import DEALINGS, HEAVY_ENDS, deals
from tests.solver.refinements.test_dealt_anew_within_memory import AS_IT_IS, STAGES, long_sequences

CHAINS = [
    *(one for one in DEALINGS if one.vpp == 1),
    # Without layers on the stage behind prediction blocks; two rooms of unlike layers, of which one lies in the middle.
    replace(DEALINGS[3], without=(3,), ends_s=HEAVY_ENDS[[0, 1, 5, 2]]),
    Dealing(
        counts=(4, 5),
        work_s=(0.5, 1.0),
        ends_s=HEAVY_ENDS[[0, 1, 2, 5]],
        pp=4,
        vpp=1,
        num_micro=2,
        rooms=(
            Room(place=0, bytes_of=((1.0, 2.0),), room_bytes=3.0),
            Room(place=2, bytes_of=((1.0, 2.0),), room_bytes=4.5),
        ),
    ),
    # A busy stage that still has a layer, as it stands between the ends.
    Dealing(counts=(5,), work_s=(1.0,), ends_s=np.array([0.3, 5.0, 0.0, 1.7]), pp=4, vpp=1, num_micro=8),
    Dealing(
        counts=(2, 6),
        work_s=(0.7, 1.4, 0.5, 1.0),
        ends_s=HEAVY_ENDS[[0, 1, 5]],
        pp=3,
        vpp=1,
        num_micro=1,
        again=2,
    ),
]


@pytest.mark.parametrize("dealing", CHAINS)
def test_no_deal_is_below_the_bound_and_one_is_at_it(dealing: Dealing) -> None:
    least_s = min(dealing.span_s(one) for one in deals(dealing))
    bound_s = least_chain_span_s(dealing)
    assert bound_s <= least_s * (1 + 1e-12)
    if not dealing.again:
        assert bound_s == pytest.approx(least_s, rel=1e-12)
    # Else what runs again before a stage is left out, which weighs the less the more micro-batches there are.
    many = replace(dealing, num_micro=10**12)
    assert least_chain_span_s(many) == pytest.approx(min(many.span_s(one) for one in deals(many)), rel=1e-9)


def test_a_room_is_as_large_as_told_and_what_is_spared() -> None:
    tight = replace(
        DEALINGS[0], rooms=tuple(Room(place=at, bytes_of=((2.0,),), room_bytes=5.9) for at in range(3))
    )
    assert list(deals(tight)) == []
    assert least_chain_span_s(tight) == np.inf
    assert least_chain_span_s(tight, spare=0.04) == np.inf
    assert least_chain_span_s(tight, spare=0.06) == pytest.approx(4.7 + 6.3 / 8)
    assert np.isfinite(least_chain_span_s(DEALINGS[0], spare=-0.1))


def test_no_program_is_solved_for_deals_that_cannot_win(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = long_sequences(7)
    table = estimate_memory(asked.model, asked.job, PlanTable.of(AS_IT_IS), asked.cluster)
    dealing = Dealing(
        counts=(7,), work_s=(1.0,), ends_s=np.array([0.0, 0.0, 0.0, 1.0]), pp=STAGES, vpp=1, num_micro=16
    )
    best = least_deal(dealing)
    assert best is not None
    least_s, limit = dealing.span_s(best), usable_bytes(asked.cluster)
    solved: list[Dealing] = []
    monkeypatch.setattr(dealt_anew, "least_deal", lambda one: solved.append(one) or least_deal(one))
    assert dealt_anew.fitting_layout(asked, table, dealing, (least_s * 1.01, limit))
    assert len(solved) == 1
    assert dealt_anew.fitting_layout(asked, table, dealing, (least_s * 0.99, limit)) is None
    assert len(solved) == 1
    # Where no deal keeps the bounds the plan's next way is asked about, whatever the span.
    full = replace(
        dealing, rooms=tuple(Room(place=at, bytes_of=((1.0,),), room_bytes=1.5) for at in range(STAGES))
    )
    assert dealt_anew.fitting_layout(asked, table, full, (least_s * 0.5, limit)) == ""
