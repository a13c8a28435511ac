"""GPipe and breadth-first pipelines against torch's own orders and their papers' bubbles."""

import numpy as np
import pytest

from solver.pipeline.program import program
from solver.pipeline.replay_1f1b import equal_stages_s
from solver.pipeline.side_by_side import ChunkTimes, run
from solver.schedules.all_forwards import breadth_first, gpipe, in_flight_all
from solver.schedules.registry import Schedule
from solver.schedules.work import Kind, Work
from spec.arrays import floats, ints
from tests.solver.schedules.torch_orders import orders_of


@pytest.mark.parametrize("shape", [(2, 1, 3), (4, 2, 8), (3, 3, 7), (4, 2, 4)])
def test_breadth_first_is_torchs_looped_bfs(shape: tuple[int, int, int]) -> None:
    assert breadth_first(shape) == orders_of("ScheduleLoopedBFS", shape)


def test_gpipe_runs_all_forwards_then_all_backwards_in_turn() -> None:
    """PyTorch 2.11, schedules.py, ScheduleGPipe, _step_microbatches: both loops go from the first to the last."""
    every = [Work(kind, 0, micro) for kind in (Kind.FORWARD, Kind.BACKWARD) for micro in range(5)]
    assert gpipe((3, 1, 5)) == [every] * 3


@pytest.mark.parametrize("schedule", [Schedule.GPIPE, Schedule.LOOPED_BFS])
@pytest.mark.parametrize(("pp", "vpp", "rounds"), [(2, 2, 1), (4, 1, 3), (4, 3, 2), (8, 2, 4)])
def test_bubble_is_that_of_1f1b(schedule: Schedule, pp: int, vpp: int, rounds: int) -> None:
    """(p - 1) of m + p - 1 (arXiv 1811.06965 sec. 2.3), a v-th of it with v chunks (arXiv 2211.05953 eq. 3)."""
    shape = (pp, 1 if schedule is Schedule.GPIPE else vpp, rounds * pp)
    forward, backward = (np.full((pp, shape[1], 1), seconds / shape[1]) for seconds in (1.0, 2.0))
    times = ChunkTimes(
        forward_s=forward, backward_s=backward, weight_s=0.0 * forward, hop_s=floats(0.0), waited=False
    )
    _, ended = run(program(schedule, shape), times)
    closed = equal_stages_s(ints(pp), ints(shape[1]), ints(shape[2]), floats(1.0), floats(2.0))
    assert ended.max() == pytest.approx(closed[0], rel=1e-12)


@pytest.mark.parametrize("shape", [(4, 1, 9), (4, 2, 8)])
def test_every_micro_batch_is_held_on_every_stage(shape: tuple[int, int, int]) -> None:
    pp, vpp, num_micro = shape
    for stage, order in enumerate(breadth_first(shape)):
        steps = np.cumsum([1 if work.kind is Kind.FORWARD else -1 for work in order])
        told = in_flight_all(ints(stage), ints(pp), ints(vpp), ints(num_micro))[0]
        assert told == steps.max() / vpp == num_micro
