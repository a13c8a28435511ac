"""The schedules that a plan can name."""

from enum import StrEnum
from typing import Self

from solver.schedules.dual_pipe import both_ways, in_flight_dual, there_and_back
from solver.schedules.one_f_one_b import in_flight, one_f_one_b
from solver.schedules.route import BOTH_WAYS, LOOPED, THERE_AND_BACK, Route
from solver.schedules.work import InFlight, Orders
from solver.schedules.zero_bubble import filled, handcrafted, in_flight_filled


class Schedule(StrEnum):
    """A line a schedule: its name, the work of every stage in order, the micro-batches a stage holds, whether
    weight gradients are scheduled apart, and where a stage's chunks lie on the way of a micro-batch."""

    orders: Orders
    in_flight: InFlight
    splits_backward: bool
    route: Route

    def __new__(
        cls, name: str, orders: Orders, holds: InFlight, splits_backward: bool, route: Route = LOOPED
    ) -> Self:
        """A member is its name."""
        member = str.__new__(cls, name)
        member._value_ = name
        member.orders, member.in_flight, member.splits_backward = orders, holds, splits_backward
        member.route = route
        return member

    ONE_F_ONE_B = "1f1b", one_f_one_b, in_flight, False
    ZB_H1 = "zb-h1", handcrafted, in_flight, True
    ZB_H2 = "zb-h2", filled, in_flight_filled, True
    ZB_1P = "zb-1p", handcrafted, in_flight, True
    ZB_2P = "zb-2p", filled, in_flight_filled, True
    DUALPIPE = "dualpipe", both_ways, in_flight_dual, True, BOTH_WAYS
    DUALPIPE_V = "dualpipe-v", there_and_back, in_flight_dual, True, THERE_AND_BACK

    @property
    def updates_apart(self) -> bool:
        """Whether a stage begins its next step as soon as it is done (post-validation, arXiv 2401.10241 sec. 4)."""
        return self.splits_backward and not self.route.turns


def schedule_named(name: str) -> Schedule:
    """The schedule of that name; raises KeyError for one that is not in the registry."""
    return {schedule.value: schedule for schedule in Schedule}[name]
