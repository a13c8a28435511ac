"""How simple a plan is: the number of switches that whoever launches it must set and look after.

Of plans that no prediction tells apart (solver.search) the one with the fewest is the first answer."""

from collections.abc import Callable, Sequence

from ops.layout import Layout, ranks_and_stride
from ops.recompute import Recompute
from solver.plans.plan_table import Plan
from solver.plans.schedules import Schedule


def shards_a_part(plan: Plan) -> bool:
    """Returns whether ZeRO shards over some of the ranks that hold the same weights: neither over one nor over all."""
    if plan.zero_size == 1:
        return False
    copies = plan.sharding.traits.copies
    layout = Layout.of(plan.world_size, tp=plan.tp, pp=plan.pp, cp=plan.cp, wp=plan.wp)
    ranks, _ = ranks_and_stride(copies.axes(copies.linear_owner)[0], layout)
    return plan.zero_size < int(ranks[0])


RARE = 3
"""Assumption: what hands layers or the optimizer to the host is worth as many switches as tensor, pipeline and virtual
stages: few recipes use it, and its time hangs on the host's memory and processors, which nobody has measured."""

SWITCHES: tuple[tuple[str, Callable[[Plan], int]], ...] = (
    ("tensor parallelism", lambda plan: plan.tp > 1),
    ("context parallelism", lambda plan: plan.cp > 1),
    ("pipeline stages", lambda plan: plan.pp > 1),
    ("virtual chunks", lambda plan: plan.vpp > 1),
    ("expert parallelism", lambda plan: plan.ep > 1),
    ("tensor parallelism of experts", lambda plan: plan.etp > 1),
    ("weight groups", lambda plan: plan.wp > 1),
    ("ZeRO over a part of the ranks", shards_a_part),
    ("another schedule than 1F1B", lambda plan: plan.schedule is not Schedule.ONE_F_ONE_B),
    ("a layout written by hand", lambda plan: bool(plan.stage_layout)),
    ("recomputation", lambda plan: plan.recompute is not Recompute.NONE or bool(plan.recompute_modules)),
    ("recomputation of some layers", lambda plan: plan.recompute is Recompute.BLOCK),
    ("recomputed parts of layers", lambda plan: len(plan.recompute_modules)),
    ("an optimizer on the host", lambda plan: RARE * int(plan.optimizer_offload > 0.0)),
    ("a part of the optimizer on the host", lambda plan: 0.0 < plan.optimizer_offload < 1.0),
    ("layers on the host", lambda plan: RARE * int(plan.offloaded_layers > 0)),
    ("parts of layers on the host", lambda plan: RARE * bool(plan.offload_modules) + len(plan.offload_modules)),
)
"""What a plan may have, and how many switches it is."""


def family(plan: Plan) -> tuple[object, ...]:
    """Returns what makes a plan another way to train, and not the same with another number: strategy, how the model is
    cut, the schedule, and whether stages are written by hand, layers recomputed, and the host holds anything."""
    cuts = (plan.strategy, plan.tp, plan.cp, plan.pp, plan.ep, plan.etp, plan.wp)
    recomputes = plan.recompute is not Recompute.NONE or bool(plan.recompute_modules)
    uses_host = bool(plan.optimizer_offload or plan.offloaded_layers or plan.offload_modules)
    return (*cuts, plan.schedule, bool(plan.stage_layout), recomputes, uses_host)


def alternatives(plans: Sequence[Plan], most: int) -> list[int]:
    """Returns the places of ``most`` plans behind the first, in order: the best of every other family, and where these
    are fewer the best of the rest."""
    best: dict[tuple[object, ...], int] = {}
    leads = [best.setdefault(family(plan), place) == place for place, plan in enumerate(plans)]
    return sorted(sorted(range(1, len(plans)), key=lambda place: not leads[place])[:most])


def num_switches(plan: Plan) -> int:
    """Returns the number of switches of a plan."""
    return sum(int(count(plan)) for _, count in SWITCHES)


def switches_beyond(plan: Plan, other: Plan) -> list[str]:
    """Returns in words what a plan has more of than another one."""
    return [words for words, count in SWITCHES if count(plan) > count(other)]
