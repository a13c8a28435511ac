"""1F1B against the papers' counts."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from solver.pipeline.simulation import ChunkTimes, task_graph
from solver.plans.plan_table import Plan, PlanTable
from solver.plans.schedules import (
    Schedule,
    Task,
    TaskKind,
    breadth_first,
    gpipe,
    in_flight,
    in_flight_all,
    in_flight_chunks,
    in_flight_h2,
    one_f_one_b,
    zero_bubble_h1,
    zero_bubble_h2,
    zero_bubble_v,
)
from solver.problem.price import price_plan
from spec.arrays import FloatArray, floats, ints
from tests.solver.pipeline.plain_replay import equal_stages_s, run
from tests.solver.pipeline.torch_orders import orders_of
from tests.solver.questions import question, small_model


@pytest.mark.published
def test_micro_batches_in_flight() -> None:
    """arXiv 2104.04473 sec. 2.2.1: at most p; 2205.05198 sec. 4.2.3: interleaving holds
    1 + (p - 1)/(p v) times as much on the first stage."""
    assert in_flight(ints([0, 3]), ints([4, 4]), ints([1, 1]), ints([16, 16])).tolist() == [4, 1]
    assert in_flight(ints(0), ints(4), ints(1), ints(2))[0] == 2
    pp, vpp = 8, 3
    held = in_flight(ints(0), ints(pp), ints(vpp), ints(64))[0]
    assert held / pp == pytest.approx(1 + (pp - 1) / (pp * vpp))


@pytest.mark.parametrize(("pp", "vpp", "num_micro"), [(1, 1, 3), (4, 1, 2), (4, 1, 9), (4, 2, 8), (3, 4, 9)])
def test_the_closed_form_is_the_peak_of_the_order(pp: int, vpp: int, num_micro: int) -> None:
    for stage, order in enumerate(one_f_one_b((pp, vpp, num_micro))):
        held = peak = 0
        for work in order:
            held += 1 if work.kind is TaskKind.FORWARD else -1
            peak = max(peak, held)
        assert in_flight(ints(stage), ints(pp), ints(vpp), ints(num_micro))[0] == pytest.approx(peak / vpp)


def spans(
    schedule: Schedule, shape: tuple[int, int, int], times: tuple[float, float, float]
) -> tuple[FloatArray, FloatArray]:
    """When each stage begins and ends; ``times`` of F, B and W of all of a stage's chunks."""
    pp, vpp, _ = shape
    forward, backward, weight = (np.full((pp, vpp, 1), seconds / vpp) for seconds in times)
    chunk = ChunkTimes(forward_s=forward, backward_s=backward, weight_s=weight, p2p_s=floats(0.0))
    began, ended = run(task_graph(schedule, shape), chunk)
    return began[:, 0], ended[:, 0]


# GPipe and breadth-first pipelines against torch's own orders and their papers' bubbles.


@pytest.mark.parametrize("shape", [(2, 1, 3), (4, 2, 8), (3, 3, 7), (4, 2, 4)])
def test_breadth_first_is_torchs_looped_bfs(shape: tuple[int, int, int]) -> None:
    assert breadth_first(shape) == orders_of("ScheduleLoopedBFS", shape)


def test_gpipe_runs_all_forwards_then_all_backwards_in_turn() -> None:
    """PyTorch 2.11, schedules.py, ScheduleGPipe, _step_microbatches: both loops go from the first to the last."""
    every = [Task(kind, 0, micro) for kind in (TaskKind.FORWARD, TaskKind.BACKWARD) for micro in range(5)]
    assert gpipe((3, 1, 5)) == [every] * 3


@pytest.mark.parametrize("schedule", [Schedule.GPIPE, Schedule.LOOPED_BFS])
@pytest.mark.parametrize(("pp", "vpp", "rounds"), [(2, 2, 1), (4, 1, 3), (4, 3, 2), (8, 2, 4)])
def test_bubble_is_that_of_1f1b(schedule: Schedule, pp: int, vpp: int, rounds: int) -> None:
    """(p - 1) of m + p - 1 (arXiv 1811.06965 sec. 2.3), a v-th of it with v chunks (arXiv 2211.05953 eq. 3)."""
    shape = (pp, 1 if schedule is Schedule.GPIPE else vpp, rounds * pp)
    _, ended = spans(schedule, shape, (1.0, 2.0, 0.0))
    assert ended.max() == pytest.approx(equal_stages_s(*shape, 1.0, 2.0), rel=1e-12)


@pytest.mark.parametrize("shape", [(4, 1, 9), (4, 2, 8)])
def test_every_micro_batch_is_held_on_every_stage(shape: tuple[int, int, int]) -> None:
    pp, vpp, num_micro = shape
    for stage, order in enumerate(breadth_first(shape)):
        steps = np.cumsum([1 if work.kind is TaskKind.FORWARD else -1 for work in order])
        told = in_flight_all(ints(stage), ints(pp), ints(vpp), ints(num_micro))[0]
        assert told == steps.max() / vpp == num_micro


# What stages of zero-bubble schedules hold and in what order, against their orders of work.


def peak(order: list[Task]) -> int:
    """Micro-batches of which a forward ran and the weight gradients did not."""
    held = most = 0
    for work in order:
        held += (work.kind is TaskKind.FORWARD) - (work.kind is TaskKind.WEIGHT)
        most = max(most, held)
    return most


@given(pp=st.integers(2, 6), num_micro=st.integers(1, 24))
def test_no_stage_holds_more_than_2_p_minus_1(pp: int, num_micro: int) -> None:
    """ZB-H2 (arXiv 2401.10241 sec. 2.2); the first stage holds as many."""
    told = in_flight_h2(ints(0), ints(pp), ints(1), ints(num_micro))[0]
    peaks = [peak(order) for order in zero_bubble_h2((pp, 1, num_micro))]
    assert max(peaks) <= told == min(2 * pp - 1, num_micro)
    if num_micro >= 2 * pp - 1:
        assert peaks[0] == told


@pytest.mark.parametrize("pp", [2, 4])
def test_the_split_one_f_one_b_one_holds_what_1f1b_does(pp: int) -> None:
    """Its table 2: p micro-batches on the first stage, and no stage more."""
    peaks = [peak(order) for order in zero_bubble_h1((pp, 1, 4 * pp))]
    assert peaks == [pp] * pp
    assert Schedule.ZB_H1.in_flight(ints(0), ints(pp), ints(1), ints(4 * pp)).tolist() == [pp]


# Zero-bubble schedules of chunks against torch's own orders, their papers' bubbles, and what their orders hold.

LOOPED = [(2, 1, 4), (4, 2, 8), (4, 2, 4), (3, 3, 9), (4, 2, 3), (8, 2, 24)]
IN_A_V = [(2, 2, 3), (4, 2, 16), (4, 2, 2), (3, 2, 7), (8, 2, 15)]


@pytest.mark.parametrize("shape", LOOPED)
def test_interleaved_is_torchs_interleaved_zero_bubble(shape: tuple[int, int, int]) -> None:
    assert zero_bubble_h1(shape) == orders_of("ScheduleInterleavedZeroBubble", shape)


@pytest.mark.parametrize("shape", IN_A_V)
def test_the_v_is_torchs(shape: tuple[int, int, int]) -> None:
    assert zero_bubble_v(shape) == orders_of("ScheduleZBVZeroBubble", shape, turns=True)


def longest_wait(schedule: Schedule, shape: tuple[int, int, int], times: tuple[float, float, float]) -> float:
    """Seconds of the step beyond a stage's own work; ``times`` of a chunk's F, B and W."""
    _, vpp, num_micro = shape
    whole = tuple(vpp * seconds for seconds in times)
    began, ended = spans(schedule, shape, whole)
    return float((ended - began).max()) - sum(whole) * num_micro


@pytest.mark.parametrize("pp", [2, 4, 8])
def test_a_v_has_no_bubble_where_all_three_take_equally_long(pp: int) -> None:
    """arXiv 2401.10241 sec. 6 and 2405.15362 sec. 3; where they do not it has one."""
    assert longest_wait(Schedule.ZB_V, (pp, 2, 4 * pp), (1.0, 1.0, 1.0)) == pytest.approx(0.0, abs=1e-9)
    assert longest_wait(Schedule.ZB_V, (pp, 2, 4 * pp), (1.0, 1.4, 0.6)) > 0.1


@pytest.mark.parametrize("pp", [2, 4, 8])
@pytest.mark.parametrize("vpp", [1, 2, 3])
def test_interleaving_leaves_a_chunk_of_every_earlier_stage(pp: int, vpp: int) -> None:
    """ZB-H1's (p - 1)(F + B - W), of chunks (arXiv 2401.10241 table 1)."""
    bubble = longest_wait(Schedule.ZB_INTERLEAVED, (pp, vpp, 4 * pp), (1.0, 1.0, 1.0))
    assert bubble == pytest.approx(pp - 1)


def most_held(order: list[Task], weighs: tuple[float, ...]) -> float:
    """The most that an order holds, a micro-batch of each chunk ``weighs`` so much, until its weight gradient
    is there.
    """
    signs = {TaskKind.FORWARD: 1.0, TaskKind.BACKWARD: 0.0, TaskKind.WEIGHT: -1.0}
    return float(np.cumsum([signs[work.kind] * weighs[work.chunk] for work in order]).max())


@pytest.mark.parametrize(("orders", "shapes"), [(zero_bubble_h1, LOOPED), (zero_bubble_v, IN_A_V)])
def test_stages_hold_pp_micro_batches(orders, shapes: list[tuple[int, int, int]]) -> None:
    for shape in shapes:
        pp, vpp, num_micro = shape
        told = in_flight_chunks(ints(range(pp)), ints(pp), ints(vpp), ints(num_micro))
        held = [most_held(order, (1.0 / vpp,) * vpp) for order in orders(shape)]
        if num_micro >= 2 * pp - 1:
            assert told == pytest.approx(held), shape
        assert (told >= held).all()


# Schedules against the papers' closed forms.

# A vocabulary of 8 makes the four stages all but equal.
NO_HEAD = replace(small_model(layers=8), vocab=8)


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
    closed = equal_stages_s(pp, vpp, num_micro, forward, 2 * forward)
    assert ended[0] == pytest.approx(closed, rel=1e-9)


@pytest.mark.parametrize("pp", [2, 4, 8, 16])
@pytest.mark.parametrize("rounds", [2, 3, 5])
def test_zero_bubble_closed_forms(pp: int, rounds: int) -> None:
    """arXiv 2401.10241 table 1: H1 leaves (p - 1)(F + B - W), H2 (p - 1)(F + B - 2W)."""
    num_micro = rounds * pp
    work = 3.0 * num_micro
    for schedule, bubble in ((Schedule.ZB_H1, pp - 1), (Schedule.ZB_H2, 0)):
        began, ended = spans(schedule, (pp, 1, num_micro), (1.0, 1.0, 1.0))
        assert (ended - began).max() - work == pytest.approx(bubble)


@pytest.mark.parametrize("schedule", [one for one in Schedule if one.placement.looped])
@pytest.mark.parametrize("shape", [(1, 1, 3), (4, 1, 2), (4, 1, 9), (3, 1, 20)])
def test_every_stage_does_all_its_work_once(schedule: Schedule, shape: tuple[int, int, int]) -> None:
    _, _, num_micro = shape
    kinds = [TaskKind.FORWARD, TaskKind.BACKWARD] + [TaskKind.WEIGHT] * schedule.traits.splits_backward
    expected = sorted(Task(kind, 0, micro) for kind in kinds for micro in range(num_micro))
    for order in schedule.orders(shape):
        assert sorted(order) == expected


def test_memory_limit_of_the_filled_schedule() -> None:
    """At most 2p - 1 forwards whose weight gradient has not run (arXiv 2401.10241 sec. 2.2)."""
    assert max(peak(order) for order in Schedule.ZB_2P.orders((4, 1, 40))) <= 7


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
