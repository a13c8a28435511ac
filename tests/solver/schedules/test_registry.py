"""Schedules against the papers' closed forms."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solver.pipeline.program import program
from solver.pipeline.replay_1f1b import StageTimes, equal_stages_s, replay_1f1b_s
from solver.pipeline.side_by_side import ChunkTimes, run
from solver.plans.plan_table import Plan, PlanTable
from solver.schedules.registry import Schedule
from solver.schedules.work import Kind, Work
from solver.search import price_plan
from spec.arrays import floats, ints
from tests.solver.questions import question, small_model

# A vocabulary of 8 makes the four stages all but equal.
NO_HEAD = replace(small_model(layers=8), vocab=8)


def spans(
    schedule: Schedule, shape: tuple[int, int, int], times: tuple[float, float, float], hop: float = 0.0
):
    pp, vpp, _ = shape
    forward, backward, weight = (np.full((pp, vpp, 1), seconds / vpp) for seconds in times)
    chunk = ChunkTimes(forward_s=forward, backward_s=backward, weight_s=weight, hop_s=floats(hop))
    began, ended = run(program(schedule, shape), chunk)
    return began[:, 0], ended[:, 0]


@settings(deadline=None, max_examples=40)
@given(
    pp=st.sampled_from([2, 3, 4, 8]),
    vpp=st.sampled_from([1, 2, 3]),
    rounds=st.integers(1, 4),
    forward=st.floats(0.5, 2.0),
)
def test_interleaving_divides_the_bubble_by_vpp(pp: int, vpp: int, rounds: int, forward: float) -> None:
    """arXiv 2104.04473 sec. 2.2.2: (p - 1)/v times a micro-batch's forward and backward."""
    num_micro = rounds * pp
    _, ended = spans(Schedule.ONE_F_ONE_B, (pp, vpp, num_micro), (forward, 2 * forward, 0.0))
    closed = equal_stages_s(ints(pp), ints(vpp), ints(num_micro), floats(forward), floats(2 * forward))
    assert ended[0] == pytest.approx(closed[0], rel=1e-9)


@pytest.mark.parametrize("pp", [2, 4, 8, 16])
@pytest.mark.parametrize("rounds", [2, 3, 5])
def test_zero_bubble_closed_forms(pp: int, rounds: int) -> None:
    """arXiv 2401.10241 table 1: H1 leaves (p - 1)(F + B - W), H2 (p - 1)(F + B - 2W)."""
    num_micro = rounds * pp
    work = 3.0 * num_micro
    for schedule, bubble in ((Schedule.ZB_H1, pp - 1), (Schedule.ZB_H2, 0)):
        began, ended = spans(schedule, (pp, 1, num_micro), (1.0, 1.0, 1.0))
        assert (ended - began).max() - work == pytest.approx(bubble)


@pytest.mark.parametrize("schedule", [one for one in Schedule if not one.route.turns])
@pytest.mark.parametrize("shape", [(1, 1, 3), (4, 1, 2), (4, 1, 9), (3, 1, 20)])
def test_every_stage_does_all_its_work_once(schedule: Schedule, shape: tuple[int, int, int]) -> None:
    _, _, num_micro = shape
    kinds = [Kind.FORWARD, Kind.BACKWARD] + [Kind.WEIGHT] * schedule.splits_backward
    expected = sorted(Work(kind, 0, micro) for kind in kinds for micro in range(num_micro))
    for order in schedule.orders(shape):
        assert sorted(order) == expected


def test_memory_limit_of_the_filled_schedule() -> None:
    """At most 2p - 1 forwards whose weight gradient has not run (arXiv 2401.10241 sec. 2.2)."""
    for order in Schedule.ZB_2P.orders((4, 1, 40)):
        held = peak = 0
        for work in order:
            held += {Kind.FORWARD: 1, Kind.BACKWARD: 0, Kind.WEIGHT: -1}[work.kind]
            peak = max(peak, held)
        assert peak <= 7


@settings(deadline=None, max_examples=30)
@given(
    work=st.lists(st.tuples(st.floats(0.1, 2), st.floats(0.1, 2)), min_size=1, max_size=5),
    num_micro=st.integers(1, 12),
    hop=st.sampled_from([0.0, 0.3]),
)
def test_two_replays_of_1f1b_agree(work: list[tuple[float, float]], num_micro: int, hop: float) -> None:
    forward, backward = (np.array(column)[:, None] for column in zip(*work, strict=True))
    quick = replay_1f1b_s(
        StageTimes(forward_s=forward, backward_s=backward, hop_s=floats(hop)), ints(num_micro)
    )
    whole = [column[:, None] for column in (forward, backward, 0 * forward)]
    chunk = ChunkTimes(forward_s=whole[0], backward_s=whole[1], weight_s=whole[2], hop_s=floats(hop))
    _, ended = run(program(Schedule.ONE_F_ONE_B, (len(work), 1, num_micro)), chunk)
    assert ended == pytest.approx(quick, rel=1e-9)


def test_plans_are_priced_under_their_schedule() -> None:
    plan = Plan(strategy="mtp", preset="megatron", pp=4, num_micro=16)
    asked = question(world_size=4, sequences=16, model=NO_HEAD)

    def bubble(**changes: object) -> float:
        return price_plan(asked, PlanTable.of(replace(plan, **changes)))[0].parts_s["bubble"]

    plain, interleaved = bubble(), bubble(vpp=2)
    assert interleaved < 0.7 * plain
    assert bubble(schedule=Schedule.ZB_H2) < bubble(schedule=Schedule.ZB_H1) < plain


def test_long_steps_grow_by_their_last_round() -> None:
    asked = question(world_size=4, sequences=256, model=NO_HEAD)
    plan = Plan(strategy="mtp", preset="megatron", pp=4, vpp=2, num_micro=256)
    long = price_plan(asked, PlanTable.of(plan))[0]
    busy = long.step_s - long.parts_s["bubble"] - long.parts_s["pp_comm"] - long.parts_s["optimizer"]
    # (p - 1) / (v m) of the work, within what the unequal first and last stage add.
    assert long.parts_s["bubble"] / busy < 3 / (2 * 256) + 0.02
