"""The schedules that a plan can name."""

from enum import StrEnum
from typing import Self

from solver.schedules.one_f_one_b import in_flight, one_f_one_b
from solver.schedules.work import InFlight, Orders
from solver.schedules.zero_bubble import filled, handcrafted, in_flight_filled


class Schedule(StrEnum):
    """A line a schedule: its name, the work of every stage in order, the micro-batches a stage holds, and
    whether weight gradients are scheduled apart."""

    orders: Orders
    in_flight: InFlight
    splits_backward: bool

    def __new__(cls, name: str, orders: Orders, holds: InFlight, splits_backward: bool) -> Self:
        """A member is its name."""
        member = str.__new__(cls, name)
        member._value_ = name
        member.orders, member.in_flight, member.splits_backward = orders, holds, splits_backward
        return member

    ONE_F_ONE_B = "1f1b", one_f_one_b, in_flight, False
    ZB_H1 = "zb-h1", handcrafted, in_flight, True
    ZB_H2 = "zb-h2", filled, in_flight_filled, True
    ZB_1P = "zb-1p", handcrafted, in_flight, True
    ZB_2P = "zb-2p", filled, in_flight_filled, True


def schedule_named(name: str) -> Schedule:
    """The schedule of that name; raises KeyError for one that is not in the registry."""
    return {schedule.value: schedule for schedule in Schedule}[name]
