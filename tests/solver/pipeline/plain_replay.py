"""A pipeline played as its schedule is written: one plan, one piece of work after another."""

from collections.abc import Callable
from itertools import pairwise

import numpy as np

from solver.pipeline.simulation import ChunkTimes, TaskGraph, first_and_last, starts_and_ends
from solver.plans.schedules import Schedule, Task, TaskKind
from spec.arrays import FloatArray

Place = tuple[int, Task]


def plain_replay(schedule: Schedule, shape: tuple[int, int, int], times: ChunkTimes) -> tuple[np.ndarray, np.ndarray]:
    """When each stage begins its first work and ends its last, of the only plan of ``times``."""
    pp, vpp, num_micro = shape
    orders = schedule.orders(shape)
    at_once = times.blocking and num_micro == pp
    if at_once:
        orders = [sorted(order, key=lambda work: work.kind is not TaskKind.FORWARD) for order in orders]
    source = sources(schedule, (pp, vpp))
    # A forward directly before a backward hands its result on after that one.
    late = {
        (stage, work): (stage, after)
        for stage, order in enumerate(orders)
        for work, after in pairwise(order)
        if times.blocking and not at_once and (work.kind, after.kind) == (TaskKind.FORWARD, TaskKind.BACKWARD)
    }
    p2p_s = float(times.p2p_s[0])
    ended: dict[Place, float] = {}
    free, began, done = np.zeros(pp), np.full(pp, np.inf), [0] * pp
    while any(done[stage] < len(order) for stage, order in enumerate(orders)):
        for stage, order in enumerate(orders):
            while done[stage] < len(order):
                work = order[done[stage]]
                needed = [one for one in (source(stage, of_pass) for of_pass in work.passes) if one]
                sent = [one if one[0] == stage else late.get(one, one) for one in needed]
                if not all(one in ended for one in sent):
                    break
                start_s = max([free[stage], *(ended[one] + p2p_s * (one[0] != stage) for one in sent)])
                began[stage] = min(began[stage], start_s)
                free[stage] = start_s + seconds(times, stage, work)
                ended |= {(stage, of_pass): free[stage] for of_pass in work.passes}
                done[stage] += 1
                after = order[done[stage]].kind if done[stage] < len(order) else None
                exchanges = after and (work.kind is TaskKind.BACKWARD or after is not TaskKind.BACKWARD)
                free[stage] += p2p_s if times.blocking and after and (exchanges or at_once) else 0.0
    return began, free


def sources(schedule: Schedule, depth: tuple[int, int]) -> Callable[[int, Task], Place | None]:
    """The work whose result a pass needs."""
    chains = schedule.placement.chains(*depth)
    before = {one: prior for chain in chains for prior, one in pairwise(chain)}
    after = {one: later for chain in chains for one, later in pairwise(chain)}

    def source(stage: int, one: Task) -> Place | None:
        if one.kind is TaskKind.WEIGHT:
            return stage, one._replace(kind=TaskKind.BACKWARD)
        other = (before if one.kind is TaskKind.FORWARD else after).get((stage, one.chunk))
        if other is not None:
            return other[0], one._replace(chunk=other[1])
        return None if one.kind is TaskKind.FORWARD else (stage, one._replace(kind=TaskKind.FORWARD))

    return source


def seconds(times: ChunkTimes, stage: int, work: Task) -> float:
    """What a piece of work takes."""
    by_kind = {
        TaskKind.FORWARD: times.forward_s,
        TaskKind.BACKWARD: times.backward_s,
        TaskKind.WEIGHT: times.weight_s,
        TaskKind.WHOLE_BACKWARD: times.backward_s + times.weight_s,
        TaskKind.PAIR: times.forward_s if times.pair_s is None else times.pair_s,
    }
    return float(by_kind[work.kind][stage, work.chunk, 0])


def equal_stages_s(pp: int, vpp: int, num_micro: int, forward_s: float, backward_s: float) -> float:
    """(m + (p - 1) / v) (t_f + t_b): ideal time plus the bubble of (interleaved) 1F1B with equal stages and free messages
    (arXiv 2104.04473 sec. 2.2); seconds of one micro-batch on one whole stage."""
    return (num_micro + (pp - 1) / vpp) * (forward_s + backward_s)


def run(one: TaskGraph, times: ChunkTimes) -> tuple[FloatArray, FloatArray]:
    """When each stage begins its first work and ends its last, arrays of shape (pp, N)."""
    starts, ends = starts_and_ends(one, times)
    first, last = first_and_last(one)
    return starts[first], ends[last]
