"""A discrete replay of any schedule, for many plans of one shape at once."""

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np

from solver.schedules.registry import Schedule
from solver.schedules.work import Kind, Work
from spec.arrays import FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    """One piece of work of one stage. ``before`` and ``needs`` are indices of earlier instructions, -1
    for none; ``hops`` whether what it needs comes from another stage; ``exchanges`` whether the stage
    sends and receives when it is done: after the forwards of the warm-up and after every backward
    (Megatron-LM, forward_backward_pipelining_with_interleaving)."""

    kind: Kind
    stage: int
    chunk: int
    micro: int
    before: int
    needs: int
    hops: bool
    exchanges: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkTimes:
    """Seconds of one micro-batch through one chunk, arrays of shape (pp, vpp, N); ``hop_s`` of shape (N,).

    ``weight_s`` is 0 where the schedule does not split the backward. ``waited``: a stage computes nothing
    while it exchanges messages.
    """

    forward_s: FloatArray
    backward_s: FloatArray
    weight_s: FloatArray
    hop_s: FloatArray
    waited: bool = False


@lru_cache(maxsize=256)
def program(
    schedule: Schedule, shape: tuple[int, int, int], *, waited: bool = False
) -> tuple[Instruction, ...]:
    """All instructions of a pipeline of ``shape`` (pp, vpp, num_micro), in an order in which what each
    needs comes first. ``waited``: a message leaves when its stage exchanges, which for a forward directly
    before a backward is after that.

    Raises ValueError when the schedule waits for itself.
    """
    pp, vpp, micro_batches = shape
    orders = schedule.orders(shape)
    forwards_first = waited and vpp > 1 and micro_batches == pp
    if forwards_first:
        orders = [_forwards_first(order) for order in orders]
    leaving = [_leaving(order) if waited and not forwards_first else {} for order in orders]
    index_of: dict[tuple[int, Work], int] = {}
    instructions: list[Instruction] = []
    done = [0] * pp
    last = [-1] * pp
    while len(instructions) < sum(len(order) for order in orders):
        moved = False
        for stage, order in enumerate(orders):
            while done[stage] < len(order):
                work = order[done[stage]]
                source = _source(work, stage, pp, vpp)
                hops = source is not None and source[0] != stage
                if source is not None and hops:
                    source = (source[0], leaving[source[0]].get(source[1], source[1]))
                if source is not None and source not in index_of:
                    break
                instructions.append(
                    Instruction(
                        kind=work.kind,
                        stage=stage,
                        chunk=work.chunk,
                        micro=work.micro,
                        before=last[stage],
                        needs=-1 if source is None else index_of[source],
                        hops=hops,
                        exchanges=forwards_first or _exchanges(order, done[stage]),
                    )
                )
                last[stage] = index_of[(stage, work)] = len(instructions) - 1
                done[stage] += 1
                moved = True
        if not moved:
            raise ValueError(f"schedule {schedule.value} of shape {shape} waits for itself")
    return tuple(instructions)


def _exchanges(order: list[Work], index: int) -> bool:
    """Whether messages travel after this work: a forward directly before a backward waits for it."""
    work = order[index]
    paired = index + 1 < len(order) and order[index + 1].kind is Kind.BACKWARD
    return index + 1 < len(order) and (work.kind is Kind.BACKWARD or not paired)


def _forwards_first(order: list[Work]) -> list[Work]:
    """All forwards, then all backwards: what interleaved stages that wait for messages run when there are just as many
    micro-batches as stages (Megatron-LM v2.5, schedules.py, all_warmup_microbatches)."""
    return sorted(order, key=lambda work: work.kind is not Kind.FORWARD)


def _leaving(order: list[Work]) -> dict[Work, Work]:
    """The backward after which a forward's message leaves, where it runs directly before one."""
    return {
        work: after
        for work, after in pairwise(order)
        if work.kind is Kind.FORWARD and after.kind is Kind.BACKWARD
    }


def _source(work: Work, stage: int, pp: int, vpp: int) -> tuple[int, Work] | None:
    """The work whose result ``work`` needs."""
    if work.kind is Kind.WEIGHT:
        return stage, work._replace(kind=Kind.BACKWARD)
    if work.kind is Kind.FORWARD:
        if stage > 0:
            return stage - 1, work
        return (pp - 1, work._replace(chunk=work.chunk - 1)) if work.chunk > 0 else None
    if stage < pp - 1:
        return stage + 1, work
    if work.chunk < vpp - 1:
        return 0, work._replace(chunk=work.chunk + 1)
    return stage, work._replace(kind=Kind.FORWARD)


def starts_and_ends(
    instructions: tuple[Instruction, ...], times: ChunkTimes
) -> tuple[FloatArray, FloatArray]:
    """When each instruction begins and ends, arrays of shape (instructions, N)."""
    plans = times.forward_s.shape[2]
    seconds = {
        Kind.FORWARD: times.forward_s,
        Kind.BACKWARD: times.backward_s,
        Kind.WEIGHT: times.weight_s,
    }
    starts = np.empty((len(instructions), plans))
    ends = np.empty((len(instructions) + 1, plans))
    ends[-1] = 0.0
    for index, one in enumerate(instructions):
        arrived = ends[one.needs] + times.hop_s if one.hops else ends[one.needs]
        free = ends[one.before]
        if times.waited and one.before >= 0 and instructions[one.before].exchanges:
            free = free + times.hop_s
        starts[index] = np.maximum(free, arrived)
        ends[index] = starts[index] + seconds[one.kind][one.stage, one.chunk]
    return starts, ends[:-1]


def run(instructions: tuple[Instruction, ...], times: ChunkTimes) -> tuple[FloatArray, FloatArray]:
    """When each stage begins its first work and ends its last, arrays of shape (pp, N)."""
    depth, _, plans = times.forward_s.shape
    starts, ends = starts_and_ends(instructions, times)
    began = np.full((depth, plans), np.inf)
    ended = np.zeros((depth, plans))
    for index, one in enumerate(instructions):
        ended[one.stage] = ends[index]
        if one.before < 0:
            began[one.stage] = starts[index]
    return began, ended
