"""Plans that differ in nothing but how far ZeRO shards: of those about as fast, one stands for all."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from solver.plans.plan_table import Plan

ABOUT_AS_FAST = 1.01
"""Far below what a prediction can tell apart (solver.answer.interval)."""


@dataclass(slots=True, kw_only=True)
class Alike:
    """The fastest plan, its place in the ranking, and the others that it stands for."""

    place: int
    plan: Plan
    step_s: float
    others: list[Plan] = field(default_factory=list)


def grouped(ranked: Iterable[tuple[int, float, Plan]], most: int) -> list[Alike]:
    """The first ``most`` groups of plans in order of their step; ``ranked`` gives place, seconds and plan."""
    groups: list[Alike] = []
    newest: dict[Plan, Alike] = {}
    for place, step_s, plan in ranked:
        if len(groups) == most and step_s > ABOUT_AS_FAST * groups[-1].step_s:
            break
        leader = next((newest[key] for key in _keys(plan) if key in newest), None)
        if leader is not None and step_s <= ABOUT_AS_FAST * leader.step_s:
            leader.others.append(plan)
        elif len(groups) < most:
            groups.append(Alike(place=place, plan=plan, step_s=step_s))
            newest.update(dict.fromkeys(_keys(plan), groups[-1]))
    return groups


def _keys(plan: Plan) -> tuple[Plan, ...]:
    """The plan without its zero_size, as itself and as one that shards nothing, of whatever ZeRO stage."""
    alone = replace(plan, zero_size=1, zero_stage=0)
    return (replace(plan, zero_size=0), alone) if plan.zero_size > 1 else (alone,)
