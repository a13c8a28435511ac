"""A discrete replay of any schedule, for many plans of one shape at once."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from solver.schedules import Kind, Schedule, Work, stage_orders
from spec.arrays import FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    """One piece of work of one stage. ``before`` and ``needs`` are indices of earlier instructions, -1
    for none; ``hops`` whether what it needs comes from another stage."""

    kind: Kind
    stage: int
    before: int
    needs: int
    hops: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkTimes:
    """Seconds of one micro-batch through one chunk, arrays of shape (pp, N); ``hop_s`` of shape (N,).

    ``weight_s`` is 0 where the schedule does not split the backward.
    """

    forward_s: FloatArray
    backward_s: FloatArray
    weight_s: FloatArray
    hop_s: FloatArray


@lru_cache(maxsize=256)
def program(schedule: Schedule, shape: tuple[int, int, int]) -> tuple[Instruction, ...]:
    """All instructions of a pipeline of ``shape`` (pp, vpp, num_micro), in an order in which what each
    needs comes first.

    Raises ValueError when the schedule waits for itself.
    """
    pp, vpp, _ = shape
    orders = stage_orders(schedule, shape)
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
                if source is not None and source not in index_of:
                    break
                instructions.append(
                    Instruction(
                        kind=work.kind,
                        stage=stage,
                        before=last[stage],
                        needs=-1 if source is None else index_of[source],
                        hops=source is not None and source[0] != stage,
                    )
                )
                last[stage] = index_of[(stage, work)] = len(instructions) - 1
                done[stage] += 1
                moved = True
        if not moved:
            raise ValueError(f"schedule {schedule.value} of shape {shape} waits for itself")
    return tuple(instructions)


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


def run(instructions: tuple[Instruction, ...], times: ChunkTimes) -> tuple[FloatArray, FloatArray]:
    """When each stage begins its first work and ends its last, arrays of shape (pp, N)."""
    depth, plans = times.forward_s.shape
    seconds = {
        Kind.FORWARD: times.forward_s,
        Kind.BACKWARD: times.backward_s,
        Kind.WEIGHT: times.weight_s,
    }
    ends = np.empty((len(instructions) + 1, plans))
    ends[-1] = 0.0
    began = np.full((depth, plans), np.inf)
    ended = np.zeros((depth, plans))
    for index, one in enumerate(instructions):
        arrived = ends[one.needs] + times.hop_s if one.hops else ends[one.needs]
        start = np.maximum(ends[one.before], arrived)
        ends[index] = ended[one.stage] = start + seconds[one.kind][one.stage]
        if one.before < 0:
            began[one.stage] = start
    return began, ended
