"""What a stage runs in turn, and where interleaved stages that wait for their messages run forwards first."""

import numpy as np
import pytest

from solver.pipeline.simulation import (
    BACKWARD,
    FORWARD,
    NONE,
    WEIGHT,
    WHOLE_BACKWARD,
    ChunkTimes,
    PipelineRun,
    TaskGraph,
    _settled_rows,
    ends_side_by_side,
    graph_spans_s,
    seconds_of_a_round,
    task_graph,
)
from solver.plans.schedules import Schedule
from spec.arrays import bools, ints
from spec.errors import ConfigError
from tests.solver.pipeline.plain_replay import plain_replay


def kinds_of_last_stage(shape: tuple[int, int, int], *, blocking: bool) -> str:
    """F and B in the order the last stage runs them."""
    told = task_graph(Schedule.ONE_F_ONE_B, shape, blocking=blocking)
    kinds = told.kind[told.stage == shape[0] - 1]
    assert set(kinds.tolist()) <= {FORWARD, BACKWARD, WHOLE_BACKWARD}
    return "".join("F" if kind == FORWARD else "B" for kind in kinds.tolist())


@pytest.mark.parametrize("num_micro", [2, 4, 8])
def test_plain_1f1b_takes_turns_whatever_the_micro_batches(num_micro: int) -> None:
    assert kinds_of_last_stage((4, 1, num_micro), blocking=False) == "FB" * num_micro


def test_interleaved_stages_with_as_many_micro_batches_run_all_forwards_first() -> None:
    """Megatron-LM v2.5, schedules.py, all_warmup_microbatches; with messages beside compute, and with more
    micro-batches, not.
    """
    assert kinds_of_last_stage((4, 2, 4), blocking=True) == "F" * 8 + "B" * 8
    assert kinds_of_last_stage((4, 2, 4), blocking=False) != "F" * 8 + "B" * 8
    assert kinds_of_last_stage((4, 2, 8), blocking=True) != "F" * 16 + "B" * 16


# Rounds that are added against rounds that are played.

SHAPES = [
    (Schedule.ONE_F_ONE_B, (2, 3, 40)),
    (Schedule.ONE_F_ONE_B, (4, 2, 64)),
    (Schedule.ONE_F_ONE_B, (4, 2, 4)),
    (Schedule.ONE_F_ONE_B, (5, 1, 47)),
    (Schedule.ZB_H1, (4, 1, 50)),
    (Schedule.ZB_H2, (4, 1, 53)),
    (Schedule.DUALPIPE, (4, 1, 60)),
    (Schedule.DUALPIPE_V, (2, 2, 50)),
    (Schedule.ZB_INTERLEAVED, (4, 2, 48)),
    (Schedule.ZB_V, (4, 2, 53)),
]

# Nothing comes again in them: all is played.
AT_ONCE = [(Schedule.GPIPE, (4, 1, 50)), (Schedule.LOOPED_BFS, (4, 2, 48))]

# Rounds as few as are played first, and fewer.
SHORT = [
    *((Schedule.ONE_F_ONE_B, (pp, vpp, rounds * pp)) for pp in (2, 4) for vpp in (2, 3) for rounds in (2, 3, 4)),
    *((schedule, (4, 1, 4 * rounds)) for schedule in (Schedule.ZB_H1, Schedule.DUALPIPE) for rounds in (3, 4)),
    (Schedule.ZB_H2, (4, 1, 17)),
    (Schedule.DUALPIPE_V, (2, 2, 8)),
]


def chunk_times(
    schedule: Schedule, shape: tuple[int, int, int], *, unlike: float, blocking: bool, plans: int = 3
) -> ChunkTimes:
    """Chunks that differ by up to ``unlike``, hops that cost from nothing to a third of a forward."""
    draw = np.random.default_rng(sum(shape))
    of_chunks = (shape[0], schedule.placement.directions * shape[1], plans)
    forward_s = draw.uniform(0.5, 2.0, plans) * (1.0 + unlike * draw.uniform(size=of_chunks))
    return ChunkTimes(
        forward_s=forward_s,
        backward_s=1.7 * forward_s,
        weight_s=0.8 * forward_s,
        p2p_s=np.linspace(0.0, 0.3, plans),
        blocking=blocking,
        post_validation=schedule.traits.splits_backward and schedule.placement.looped,
        pair_s=2.4 * forward_s if not schedule.placement.looped else None,
    )


@pytest.mark.parametrize("unlike", [0.0, 0.02, 0.4])
@pytest.mark.parametrize(("schedule", "shape"), [*SHAPES, *AT_ONCE])
def test_steps_are_those_of_all_rounds_played(schedule: Schedule, shape: tuple[int, int, int], unlike: float) -> None:
    for blocking in {False, shape[1] > 1 and schedule.traits.rounds and schedule.placement.looped}:
        times = chunk_times(schedule, shape, unlike=unlike, blocking=blocking)
        found = graph_spans_s([PipelineRun(schedule=schedule, shape=shape, times=times)])[0]
        for plan in range(3):
            began, ended = plain_replay(schedule, shape, times.take(slice(plan, plan + 1)))
            whole = ended - began if times.post_validation else ended
            assert found[:, plan] == pytest.approx(whole, rel=1e-9)


def test_pipelines_of_many_shapes_are_played_as_each_alone() -> None:
    asked = [
        PipelineRun(
            schedule=schedule, shape=shape, times=chunk_times(schedule, shape, unlike=0.3, blocking=False, plans=plans)
        )
        for (schedule, shape), plans in zip(SHAPES, (1, 70, 2, 33, 5, 1, 4, 9, 3, 2), strict=True)
    ]
    for one, together in zip(asked, graph_spans_s(asked), strict=True):
        assert np.array_equal(graph_spans_s([one])[0], together)


def test_a_round_is_added_only_where_the_last_two_are_alike() -> None:
    """Of two stages in two chunks each the first takes 1 % longer: for 16 rounds and more it still lives on
    its lead.
    """
    shape = (2, 2, 8)
    unequal = np.ones((2, 2, 2))
    unequal[0, :, 1] = 1.01
    times = ChunkTimes(forward_s=unequal, backward_s=2.0 * unequal, weight_s=0.0 * unequal, p2p_s=np.zeros(2))
    one = task_graph(Schedule.ONE_F_ONE_B, shape)
    ((_, _, ends),) = ends_side_by_side([(one, times)])
    round_s = seconds_of_a_round(one, ends, 1)
    # Two micro-batches through two chunks, forward 1 s and backward 2 s.
    assert round_s[0] == pytest.approx(12.0)
    assert np.isnan(round_s[1])
    long = (2, 2, 300)
    found = graph_spans_s([PipelineRun(schedule=Schedule.ONE_F_ONE_B, shape=long, times=times)])[0][:, 1]
    _, ended = plain_replay(Schedule.ONE_F_ONE_B, long, times.take(slice(1, 2)))
    assert found == pytest.approx(ended, rel=1e-9)


def test_a_schedule_that_waits_for_itself_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    orders = Schedule.ONE_F_ONE_B.orders
    monkeypatch.setattr(Schedule.ZB_1P, "orders", lambda shape: [list(reversed(one)) for one in orders(shape)])
    with pytest.raises(ConfigError, match="waits for itself"):
        task_graph(Schedule.ZB_1P, (2, 1, 2))
    with pytest.raises(ConfigError, match=r"num_micro = 2: .*; a multiple of 4 does not"):
        task_graph(Schedule.ONE_F_ONE_B, (4, 2, 2), blocking=True)


Name = tuple[int, int, int, int]


def waits(one: TaskGraph, micros_later: int = 0) -> dict[Name, tuple[object, ...]]:
    """For each piece of work (kind, stage, chunk, micro-batch) what it waits for, and whether its stage
    exchanges before it; all as if it came so many micro-batches later."""
    names = list(zip(one.kind, one.stage, one.chunk, one.micro + micros_later, strict=True))
    needed = zip(one.before, *one.needs, strict=True)
    return {
        name: (*(None if row == NONE else names[row] for row in rows), bool(one.exchanges[rows[0]]))
        for name, rows in zip(names, needed, strict=True)
    }


@pytest.mark.parametrize("blocking", [False, True])
@pytest.mark.parametrize(("schedule", "shape"), [*SHAPES, *SHORT])
def test_a_round_more_comes_between_work_that_hangs_on_the_looked_at_alone(
    schedule: Schedule, shape: tuple[int, int, int], blocking: bool
) -> None:
    """The program with a round more, piece by piece: up to the last level looked at it is the same, all behind it
    comes a round later, and what comes between is as it was a round earlier."""
    blocking = blocking and shape[1] > 1 and schedule.placement.looped
    shift = shape[0] // schedule.placement.directions
    one = task_graph(schedule, shape, blocking=blocking)
    longer = waits(task_graph(schedule, (*shape[:2], shape[2] + shape[0]), blocking=blocking))
    rows, earlier = _settled_rows(one, shift)
    if not len(rows):
        assert shape[2] < 4 * shape[0]
        return
    assert (one.micro[rows] - one.micro[earlier] == shift).all()
    assert all((of[rows] == of[earlier]).all() for of in (one.kind, one.stage, one.chunk))
    names, last = list(waits(one)), one.level[rows].max()
    before, after = waits(one), waits(one, micros_later=shift)
    ends = {name for name, level in zip(names, one.level, strict=True) if level <= last}
    same = {name: longer[name] for name in ends}
    assert same == {name: before[name] for name in ends}
    later = {name: needs for name, needs, old in zip(after, after.values(), names, strict=True) if old not in ends}
    assert {name: longer[name] for name in later} == later
    between = longer.keys() - ends - later.keys()
    assert len(between) == len(longer) - len(before)
    assert {name: longer[name] for name in between} == {name: after[name] for name in between}
    # Neither what comes behind, nor the round between a round earlier, waits for work that was not looked at.
    looked_at = set(rows.tolist()) | {NONE}
    behind = one.level > last
    for needed in (one.before, *one.needs):
        assert {row for row in needed[behind].tolist() if not behind[row]} <= looked_at


def chain(micros: int, later: dict[int, int] | None = None, *, quiet: int = NONE) -> TaskGraph:
    """Forwards of stage 0 one behind another, and of stage 1, each behind the one of stage 0 or of another
    micro-batch as ``later`` says (NONE: of none); behind the forward ``quiet`` of stage 0 nothing is
    exchanged. Last, at the very beginning, stands work that nobody waits for."""
    waits_for = [(later or {}).get(micro, micro) for micro in range(micros)]
    own = np.arange(micros)
    level = [0] * micros
    for micro, of in enumerate(waits_for):
        level[micro] = max(level[micro - 1] + 1 if micro else 0, of + 1)
    return TaskGraph(
        shape=(2, 1, micros),
        kind=ints([FORWARD] * 2 * micros + [WEIGHT]),
        stage=ints([0] * micros + [1] * micros + [0]),
        chunk=np.zeros(2 * micros + 1, dtype=np.int64),
        micro=ints([*own, *own, 0]),
        before=ints([*(own - 1), NONE, *(own[1:] + micros - 1), NONE]),
        needs=np.stack([ints([NONE] * micros + waits_for + [NONE]), ints([NONE] * (2 * micros + 1))]),
        exchanges=bools([*(own != quiet), *(own >= 0), True]),
        level=ints([*own, *level, 0]),
    )


def looked_at(one: TaskGraph) -> set[tuple[int, int]]:
    """Stage and micro-batch of what decides, each a micro-batch behind its like."""
    rows, earlier = _settled_rows(one, 1)
    assert (one.micro[rows] == one.micro[earlier] + 1).all()
    assert (one.stage[rows] == one.stage[earlier]).all()
    return set(zip(one.stage[rows].tolist(), one.micro[rows].tolist(), strict=True))


def test_what_decides_is_the_last_that_is_as_it_was_a_micro_batch_earlier() -> None:
    """Forwards look back one level: to their stage's last and the same micro-batch of the stage before."""
    assert looked_at(chain(6)) == {(0, 5), (1, 4)}
    # The first micro-batch has no like, the second one's like waits for nothing: with four, a level is left.
    assert looked_at(chain(4)) == {(0, 3), (1, 2)}
    assert looked_at(chain(3)) == set()


def test_work_that_waits_where_its_like_did_not_is_looked_at_no_more() -> None:
    """Stage 1 begins by itself: its sixth forward is the first that waits, and for one that itself has no like."""
    began = dict.fromkeys(range(5), NONE)
    assert looked_at(chain(6, began | {5: 0})) == {(0, 4), (1, 4)}


def test_work_behind_no_exchange_is_looked_at_no_more() -> None:
    assert looked_at(chain(6, quiet=4)) == {(0, 4), (1, 3)}
