"""The schedules that a plan can name."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from solver.schedules.all_forwards import breadth_first, gpipe, in_flight_all
from solver.schedules.dual_pipe import both_ways, in_flight_dual, there_and_back
from solver.schedules.one_f_one_b import in_flight, one_f_one_b
from solver.schedules.route import BOTH_WAYS, LOOPED, THERE_AND_BACK, Route
from solver.schedules.work import InFlight, Orders
from solver.schedules.zero_bubble import filled, handcrafted, in_flight_filled
from solver.schedules.zero_bubble_chunks import in_flight_chunks, interleaved, zero_bubble_v

ANY_NUMBER = 10**6


@dataclass(frozen=True, slots=True, kw_only=True)
class Habits:
    """What a schedule's orders have in common.

    ``splits_backward``: weight gradients are scheduled apart; ``pairs``: forwards run beside backwards;
    ``rounds``: what a stage runs comes again round after round; ``chunks``: the fewest and the most of a
    stage, ``micros_per_stage``: the fewest micro-batches for each stage.
    """

    splits_backward: bool = False
    pairs: bool = False
    rounds: bool = True
    chunks: tuple[int, int] = (1, 1)
    micros_per_stage: int = 0


PLAIN = Habits()
OF_CHUNKS = Habits(chunks=(1, ANY_NUMBER))
AT_ONCE = Habits(rounds=False)
CHUNKS_AT_ONCE = Habits(rounds=False, chunks=(2, ANY_NUMBER))
APART = Habits(splits_backward=True)
CHUNKS_APART = Habits(splits_backward=True, chunks=(2, ANY_NUMBER))
IN_A_V = Habits(splits_backward=True, chunks=(2, 2))
PAIRED = Habits(splits_backward=True, pairs=True, micros_per_stage=2)
PAIRED_IN_A_V = Habits(splits_backward=True, pairs=True, chunks=(2, 2), micros_per_stage=2)


class Schedule(StrEnum):
    """A line a schedule: its name, the work of every stage in order, the micro-batches a stage holds, its habits, and
    where a stage's chunks lie on the way of a micro-batch."""

    orders: Orders
    in_flight: InFlight
    habits: Habits
    route: Route

    def __new__(
        cls, name: str, orders: Orders, holds: InFlight, habits: Habits = PLAIN, route: Route = LOOPED
    ) -> Self:
        """A member is its name."""
        member = str.__new__(cls, name)
        member._value_ = name
        member.orders, member.in_flight, member.habits, member.route = orders, holds, habits, route
        return member

    ONE_F_ONE_B = "1f1b", one_f_one_b, in_flight, OF_CHUNKS
    GPIPE = "gpipe", gpipe, in_flight_all, AT_ONCE
    LOOPED_BFS = "looped-bfs", breadth_first, in_flight_all, CHUNKS_AT_ONCE
    ZB_H1 = "zb-h1", handcrafted, in_flight, APART
    ZB_H2 = "zb-h2", filled, in_flight_filled, APART
    ZB_1P = "zb-1p", handcrafted, in_flight, APART
    ZB_2P = "zb-2p", filled, in_flight_filled, APART
    ZB_INTERLEAVED = "zb-interleaved", interleaved, in_flight_chunks, CHUNKS_APART
    ZB_V = "zb-v", zero_bubble_v, in_flight_chunks, IN_A_V, THERE_AND_BACK
    DUALPIPE = "dualpipe", both_ways, in_flight_dual, PAIRED, BOTH_WAYS
    DUALPIPE_V = "dualpipe-v", there_and_back, in_flight_dual, PAIRED_IN_A_V, THERE_AND_BACK

    @property
    def splits_backward(self) -> bool:
        """Whether weight gradients are scheduled apart."""
        return self.habits.splits_backward


def schedule_named(name: str) -> Schedule:
    """The schedule of that name; raises KeyError for one that is not in the registry."""
    return {schedule.value: schedule for schedule in Schedule}[name]
