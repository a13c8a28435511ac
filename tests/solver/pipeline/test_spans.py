"""The replay against closed forms and against a replay written the slow way."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from solver.analysis.timeline import timeline_of
from solver.pipeline import spans as spans_module
from solver.pipeline.spans import (
    LONGEST_REPLAY,
    P2PTimes,
    first_alike,
    least_spans_s,
    period_1f1b,
    replay_1f1b_s,
    stage_spans_s,
)
from solver.pipeline.stages import PassTimes, StageTable, stage_table
from solver.plans.plan_table import Plan, PlanTable
from solver.plans.schedules import Schedule
from solver.problem.price import price_plan
from spec.arrays import FloatArray, floats, ints
from spec.frameworks import framework_preset
from tests.solver.pipeline.plain_replay import equal_stages_s
from tests.solver.questions import question, small_model


def times(forward: list[float], backward: list[float], hop: float) -> tuple[FloatArray, FloatArray, FloatArray]:
    return np.array(forward)[:, None], np.array(backward)[:, None], floats(hop)


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


@given(
    work=st.lists(st.tuples(WORK, WORK), min_size=1, max_size=7),
    hop=st.sampled_from([0.0, 0.05, 0.7]),
    num_micro=st.integers(1, 40),
)
def test_replay_is_the_slow_replay(work: list[tuple[float, float]], hop: float, num_micro: int) -> None:
    forward, backward = [f for f, _ in work], [b for _, b in work]
    quick = replay_1f1b_s(*times(forward, backward, hop), ints(num_micro))[:, 0]
    assert quick == pytest.approx(slow_replay(forward, backward, hop, num_micro), rel=1e-12)


@pytest.mark.parametrize("unlike", [0.0, 0.01, 0.5])
@pytest.mark.parametrize("hop", [0.0, 0.4])
def test_whole_periods_left_out_are_those_of_the_slow_replay(unlike: float, hop: float) -> None:
    """Plans of few and many micro-batches at once, the longest as long as any that is played."""
    draw = np.random.default_rng(7)
    for depth in (1, 4, 7):
        forward = 1.0 + unlike * draw.uniform(size=(depth, 4))
        num_micro = ints([3, 40, 111, LONGEST_REPLAY])
        stages = (forward, 1.8 * forward, np.full(4, hop))
        found = replay_1f1b_s(*stages, num_micro)
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
    replayed = replay_1f1b_s(*times([forward] * pp, [backward] * pp, 0.0), ints(num_micro))[0, 0]
    closed = equal_stages_s(pp, 1, num_micro, forward, backward)
    assert replayed == pytest.approx(closed, rel=1e-9)
    ideal = num_micro * (forward + backward)
    assert replayed / ideal - 1 == pytest.approx((pp - 1) / num_micro, abs=1e-9)


def test_beyond_the_longest_replay_the_period_takes_over() -> None:
    stages = times([1.0, 1.0, 2.0, 1.0], [2.0, 2.0, 3.0, 2.0], 0.1)
    long = LONGEST_REPLAY + 100
    grown = replay_1f1b_s(*stages, ints(long)) - replay_1f1b_s(*stages, ints(LONGEST_REPLAY))
    assert grown == pytest.approx(100 * float(period_1f1b(*stages)[0][0]))
    assert period_1f1b(*stages)[0][0] == pytest.approx(5.0)


@pytest.mark.parametrize(
    ("hop", "seconds", "micro_batches"),
    [(0.0, 3.0, 1), (0.2, 3.0 + 2 * 3 * 0.2 / 4, 4), (3.0, 3.0 + 2 * 3 * 3.0 / 4, 4)],
)
def test_a_run_of_w_stages_waits_for_2_w_minus_1_hops_in_w_micro_batches(
    hop: float, seconds: float, micro_batches: int
) -> None:
    """Four equal stages: (4 (f + b) + 6 hops) / 4, which grows with the width, so that all four decide."""
    period_s, period = period_1f1b(*times([1.0] * 4, [2.0] * 4, hop))
    assert period_s.tolist() == pytest.approx([seconds])
    assert period.tolist() == [micro_batches]


# Bounds of spans are exact where a closed form is, and never above a replay.


def spans(
    pp: int, vpp: int, num_micro: int, pace: FloatArray, p2p_s: float
) -> tuple[FloatArray, FloatArray, StageTable]:
    """(least, replayed) spans of the stage rows; ``pace`` seconds of a forward in chunks of each stage row."""
    plans = PlanTable.of(Plan(strategy="mtp", preset="megatron", pp=pp, vpp=vpp, num_micro=num_micro))
    stages = stage_table(small_model(layers=pp * vpp), plans)
    forward_s = np.resize(pace, len(stages.plan))[stages.chunks.stage]
    passes = PassTimes(forward_s=forward_s, backward_s=2.0 * forward_s, weight_s=0.0 * forward_s)
    busy_s = num_micro * np.bincount(stages.chunks.stage, 3.0 * forward_s, minlength=len(stages.plan))
    hops = P2PTimes(seconds=floats([p2p_s]))
    least = least_spans_s(plans, stages, passes, hops, busy_s)
    return least, stage_spans_s(plans, stages, passes, hops), stages


@given(pp=st.integers(1, 8), vpp=st.sampled_from([1, 2, 3]), rounds=st.integers(1, 5))
def test_equal_stages_and_free_hops_have_a_closed_form(pp: int, vpp: int, rounds: int) -> None:
    """(m + (p - 1) / v) (f + b) of a stage, arXiv 2104.04473 sec. 2.2; a chunk takes 1 + 2 seconds."""
    vpp = vpp if pp > 1 else 1
    num_micro = rounds * pp
    least, _, _ = spans(pp, vpp, num_micro, np.ones(1), 0.0)
    assert least.max() == pytest.approx((num_micro + (pp - 1) / vpp) * 3.0 * vpp)


@given(
    pp=st.integers(1, 6),
    vpp=st.sampled_from([1, 2]),
    rounds=st.integers(1, 4),
    pace=st.lists(st.floats(0.1, 2.0), min_size=3, max_size=3),
    p2p_s=st.sampled_from([0.0, 0.3]),
)
def test_no_replay_ends_sooner(pp: int, vpp: int, rounds: int, pace: list[float], p2p_s: float) -> None:
    least, played, _ = spans(pp, vpp if pp > 1 else 1, rounds * pp, np.array(pace), p2p_s)
    assert (least <= played * (1 + 1e-9)).all()


def test_one_micro_batch_crosses_every_border_twice() -> None:
    """Four stages of 3 seconds and six hops of 0.3."""
    least, played, _ = spans(4, 1, 1, np.ones(1), 0.3)
    assert least.max() == pytest.approx(4 * 3.0 + 6 * 0.3)
    assert played.max() == pytest.approx(least.max())


# Which plans share a pipeline, and that each has the span of its own.

PLAN = Plan(strategy="mtp", preset="megatron", pp=4, vpp=2, num_micro=8, dp=4)
PLANS = PlanTable.of(
    PLAN,
    replace(PLAN, zero_stage=1, zero_size=4),
    replace(PLAN, num_micro=12),
    replace(PLAN, zero_stage=1, zero_size=2),
    replace(PLAN, micro_batch=2),
    PLAN,
)
P2P_S = floats([0.1, 0.1, 0.1, 0.1, 0.1, 0.2])


def tables() -> tuple[StageTable, PassTimes]:
    """Passes by micro-batch alone."""
    stages = stage_table(small_model(layers=8), PLANS)
    rows = PLANS.layout.micro_batch[stages.plan[stages.chunks.stage]] * (1.0 + stages.chunks.head)
    return stages, PassTimes(forward_s=rows, backward_s=2.0 * rows, weight_s=0.0 * rows)


def test_plans_that_differ_in_sharding_alone_share_one() -> None:
    stages, passes = tables()
    found = first_alike(PLANS, stages, passes, P2P_S, ints(np.arange(6)))
    assert found.tolist() == [0, 0, 2, 0, 4, 5]
    assert first_alike(PLANS, stages, passes, P2P_S, ints([1, 3, 4])).tolist() == [1, 1, 4]


def test_one_chunk_that_differs_makes_a_pipeline_of_its_own() -> None:
    stages, passes = tables()
    forward_s = passes.forward_s.copy()
    forward_s[stages.chunk_starts[stages.starts[3]] + 1] += 1e-9
    found = first_alike(PLANS, stages, replace(passes, forward_s=forward_s), P2P_S, ints(np.arange(6)))
    assert found.tolist() == [0, 0, 2, 3, 4, 5]


@pytest.mark.parametrize("alike", [True, False])
def test_spans_are_those_of_each_alone(alike: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where every pipeline has the same hash."""
    if not alike:
        monkeypatch.setattr(spans_module, "row_hashes", lambda columns: 0 * columns[0])
    stages, passes = tables()
    together = stage_spans_s(PLANS, stages, passes, P2PTimes(seconds=P2P_S))
    for plan in range(6):
        only = np.arange(6) == plan
        alone = stage_spans_s(PLANS, stages, passes, P2PTimes(seconds=P2P_S), selected=only)
        assert (together == alone)[stages.plan == plan].all()
        assert (alone[stages.plan == plan] > 0).all()


def test_hashes_tell_rows_apart_by_every_column_and_its_place() -> None:
    columns = [np.array(one, dtype=np.uint64) for one in ([1, 2, 1, 0], [2, 1, 1, 0])]
    assert len(set(spans_module.row_hashes(columns).tolist())) == 4


# Messages that hold up both their stages.

FORWARD_S, BACKWARD_S = 1.0, 2.0


@pytest.mark.parametrize(("pp", "num_micro"), [(2, 4), (4, 8), (4, 16)])
def test_a_split_backward_leaves_a_third_of_the_bubble(pp: int, num_micro: int) -> None:
    """ZB-H1 of equal forwards, input and weight gradients (arXiv 2401.10241, table 2): (p - 1) (f + b - w)
    beside the work, where 1F1B waits (p - 1) (f + b + w); a stage works what its passes say, whatever is
    split."""
    told = {}
    for schedule in (Schedule.ONE_F_ONE_B, Schedule.ZB_H1):
        plans = PlanTable.of(Plan(strategy="mtp", preset="zero-bubble", pp=pp, num_micro=num_micro, schedule=schedule))
        stages = stage_table(small_model(layers=pp), plans)
        rows = np.ones(len(stages.chunks.stage))
        passes = PassTimes(forward_s=rows, backward_s=2.0 * rows, weight_s=rows)
        hops = P2PTimes(seconds=floats(0.0), post_validation=True)
        told[schedule] = stage_spans_s(plans, stages, passes, hops).max()
    work = 3.0 * num_micro
    assert told == {
        Schedule.ONE_F_ONE_B: pytest.approx(work + (pp - 1) * 3.0),
        Schedule.ZB_H1: pytest.approx(work + (pp - 1) * 1.0),
    }


@pytest.mark.parametrize(("preset", "begins_apart"), [("zero-bubble", True), ("internevo", False)])
def test_stages_wait_for_the_last_where_the_norm_is_all_of_theirs(preset: str, *, begins_apart: bool) -> None:
    """InternEvo reduces the norm over all stages before it updates (solver/optimizer/utils.py,
    ParallelMode.PIPELINE).
    """
    asked = question(model=small_model(layers=4), world_size=4, sequences=16, preset=framework_preset(preset))
    plan = Plan(strategy="mtp", preset=preset, pp=4, num_micro=16, schedule=Schedule.ZB_H1)
    played = timeline_of(asked, plan)
    first_s, last_s = played.starts_s.min(), played.ends_s.max()
    own = [
        played.ends_s[on].max() - played.starts_s[on].min()
        for on in (played.graph.stage == stage for stage in range(4))
    ]
    priced = price_plan(asked, PlanTable.of(plan))[0]
    passes_s = priced.step_s - priced.parts_s["optimizer"] - priced.parts_s["dp_comm"]
    assert passes_s == pytest.approx(max(own) if begins_apart else last_s - first_s, rel=1e-6)


@pytest.mark.parametrize("pp", [2, 4, 8])
@pytest.mark.parametrize(
    ("schedule", "own", "of_all"),
    [(Schedule.ZB_H1, 1, 1), (Schedule.ZB_H2, 0, 1), (Schedule.ZB_INTERLEAVED, 1, 1), (Schedule.ZB_V, 0, 1)],
)
def test_waiting_for_all_stages_costs_the_fill_that_nothing_hides(
    schedule: Schedule, own: int, of_all: int, pp: int
) -> None:
    """(p - 1) forwards where a stage's own work has no bubble; H1's bubble on the first stage is as long
    (arXiv 2401.10241 sec. 4, figure 4)."""
    vpp = schedule.traits.chunks[0]
    plan = Plan(strategy="mtp", preset="zero-bubble", pp=pp, vpp=vpp, num_micro=4 * pp, schedule=schedule)
    plans = PlanTable.of(plan)
    stages = stage_table(small_model(layers=2 * pp), plans)
    rows = np.ones(len(stages.chunks.stage))
    passes = PassTimes(forward_s=rows, backward_s=2.0 * rows, weight_s=rows)
    for apart, bubbles in ((True, own), (False, of_all)):
        hops = P2PTimes(seconds=floats(0.0), post_validation=apart)
        blocking = stage_spans_s(plans, stages, passes, hops).max() - 3.0 * vpp * plan.num_micro
        assert blocking == pytest.approx(bubbles * (pp - 1))
