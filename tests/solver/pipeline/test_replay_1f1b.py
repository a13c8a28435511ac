"""The replay against closed forms and against a replay written the slow way."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solver.pipeline.replay_1f1b import (
    LONGEST_REPLAY,
    StageTimes,
    equal_stages_s,
    period_of,
    replay_1f1b_s,
)
from spec.arrays import floats, ints


def times(forward: list[float], backward: list[float], hop: float) -> StageTimes:
    return StageTimes(
        forward_s=np.array(forward)[:, None], backward_s=np.array(backward)[:, None], hop_s=floats(hop)
    )


def slow_replay(forward: list[float], backward: list[float], hop: float, num_micro: int) -> list[float]:
    """Run every stage's list of operations as soon as its inputs are there."""
    depth = len(forward)
    orders: list[list[tuple[str, int]]] = []
    for stage in range(depth):
        warmup = min(depth - stage, num_micro)
        order = [("F", j) for j in range(warmup)]
        for j in range(num_micro):
            order.append(("B", j))
            if warmup + j < num_micro:
                order.append(("F", warmup + j))
        orders.append(order)
    ended: dict[tuple[str, int, int], float] = {}
    free, done = [0.0] * depth, [0] * depth
    while sum(done) < sum(map(len, orders)):
        for stage in range(depth):
            while done[stage] < len(orders[stage]):
                kind, j = orders[stage][done[stage]]
                step = -1 if kind == "F" else 1
                edge = stage + step not in range(depth)
                needs = ("F", stage, j) if edge else (kind, stage + step, j)
                if not (edge and kind == "F") and needs not in ended:
                    break
                arrival = 0.0 if edge else ended[needs] + hop
                work = forward[stage] if kind == "F" else backward[stage]
                free[stage] = max(free[stage], arrival) + work
                ended[(kind, stage, j)] = free[stage]
                done[stage] += 1
    return free


WORK = st.floats(0.1, 2.0)


@settings(max_examples=200, deadline=None)
@given(
    work=st.lists(st.tuples(WORK, WORK), min_size=1, max_size=7),
    hop=st.sampled_from([0.0, 0.05, 0.7]),
    num_micro=st.integers(1, 40),
)
def test_replay_is_the_slow_replay(work: list[tuple[float, float]], hop: float, num_micro: int) -> None:
    forward, backward = [f for f, _ in work], [b for _, b in work]
    quick = replay_1f1b_s(times(forward, backward, hop), ints(num_micro))[:, 0]
    assert quick == pytest.approx(slow_replay(forward, backward, hop, num_micro), rel=1e-12)


@pytest.mark.parametrize("unlike", [0.0, 0.01, 0.5])
@pytest.mark.parametrize("hop", [0.0, 0.4])
def test_whole_periods_left_out_are_those_of_the_slow_replay(unlike: float, hop: float) -> None:
    """Plans of few and many micro-batches at once, the longest as long as any that is played."""
    draw = np.random.default_rng(7)
    for depth in (1, 4, 7):
        forward = 1.0 + unlike * draw.uniform(size=(depth, 4))
        num_micro = ints([3, 40, 111, LONGEST_REPLAY])
        stages = StageTimes(forward_s=forward, backward_s=1.8 * forward, hop_s=np.full(4, hop))
        found = replay_1f1b_s(stages, num_micro)
        for plan, count in enumerate(num_micro.tolist()):
            work = forward[:, plan].tolist()
            whole = slow_replay(work, [1.8 * one for one in work], hop, count)
            assert found[:, plan] == pytest.approx(whole, rel=1e-9)


@given(pp=st.integers(1, 16), extra=st.integers(0, 40), forward=WORK, backward=WORK)
def test_closed_form_is_exact_for_equal_stages_and_free_hops(
    pp: int, extra: int, forward: float, backward: float
) -> None:
    """arXiv 2104.04473 sec. 2.2: bubble fraction (p - 1) / m for m >= p."""
    num_micro = pp + extra
    replayed = replay_1f1b_s(times([forward] * pp, [backward] * pp, 0.0), ints(num_micro))[0, 0]
    closed = equal_stages_s(ints(pp), ints(1), ints(num_micro), floats(forward), floats(backward))[0]
    assert replayed == pytest.approx(closed, rel=1e-9)
    ideal = num_micro * (forward + backward)
    assert replayed / ideal - 1 == pytest.approx((pp - 1) / num_micro, abs=1e-9)


def test_beyond_the_longest_replay_the_period_takes_over() -> None:
    stages = times([1.0, 1.0, 2.0, 1.0], [2.0, 2.0, 3.0, 2.0], 0.1)
    long = LONGEST_REPLAY + 100
    grown = replay_1f1b_s(stages, ints(long)) - replay_1f1b_s(stages, ints(LONGEST_REPLAY))
    assert grown == pytest.approx(100 * float(period_of(stages).seconds[0]))
    assert period_of(stages).seconds[0] == pytest.approx(5.0)


@pytest.mark.parametrize(
    ("hop", "seconds", "micro_batches"),
    [(0.0, 3.0, 1), (0.2, 3.0 + 2 * 3 * 0.2 / 4, 4), (3.0, 3.0 + 2 * 3 * 3.0 / 4, 4)],
)
def test_a_run_of_w_stages_waits_for_2_w_minus_1_hops_in_w_micro_batches(
    hop: float, seconds: float, micro_batches: int
) -> None:
    """Four equal stages: (4 (f + b) + 6 hops) / 4, which grows with the width, so that all four decide."""
    period = period_of(times([1.0] * 4, [2.0] * 4, hop))
    assert period.seconds.tolist() == pytest.approx([seconds])
    assert period.micro_batches.tolist() == [micro_batches]


def test_hops_cost_more_with_every_micro_batch() -> None:
    """Stage 0 cannot send forward k + p before backward k has come back over 2 (p - 1) hops."""
    free = replay_1f1b_s(times([1.0] * 4, [2.0] * 4, 0.0), ints([8]))[0, 0]
    few = replay_1f1b_s(times([1.0] * 4, [2.0] * 4, 0.2), ints([8]))[0, 0] - free
    free_many = replay_1f1b_s(times([1.0] * 4, [2.0] * 4, 0.0), ints([80]))[0, 0]
    many = replay_1f1b_s(times([1.0] * 4, [2.0] * 4, 0.2), ints([80]))[0, 0] - free_many
    assert many > 5 * few


def test_plans_with_different_micro_batches_do_not_disturb_each_other() -> None:
    together = StageTimes(forward_s=np.ones((3, 2)), backward_s=np.full((3, 2), 2.0), hop_s=np.zeros(2))
    both = replay_1f1b_s(together, ints([4, 9]))[0]
    assert both.tolist() == [3 * (4 + 2), 3 * (9 + 2)]
