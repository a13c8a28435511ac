"""A discrete replay of any schedule, for many plans of one shape at once."""

from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import pairwise

import numpy as np

from solver.schedules.registry import Schedule
from solver.schedules.route import Route
from solver.schedules.work import Kind, Work
from spec.arrays import FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    """One piece of work of one stage. ``before`` is the index of its earlier instruction, -1 for none; ``needs``
    those of the instructions it waits for and whether their results come from another stage; ``exchanges`` whether
    the stage sends and receives when it is done: after the forwards of the warm-up and after every backward
    (Megatron-LM, forward_backward_pipelining_with_interleaving)."""

    kind: Kind
    stage: int
    chunk: int
    micro: int
    before: int
    needs: tuple[tuple[int, bool], ...]
    exchanges: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkTimes:
    """Seconds of one micro-batch through one chunk, arrays of shape (pp, vpp, N); ``hop_s`` of shape (N,).

    ``weight_s`` is 0 where the schedule does not split the backward, ``pair_s`` what a forward of the chunk takes
    beside a backward of the stage's other one. ``waited``: a stage computes nothing while it exchanges messages.
    """

    forward_s: FloatArray
    backward_s: FloatArray
    weight_s: FloatArray
    hop_s: FloatArray
    waited: bool = False
    pair_s: FloatArray | None = None


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
    sources = _Sources.of(schedule.route, pp, vpp)
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
                found = [
                    one if one[0] == stage else (one[0], leaving[one[0]].get(one[1], one[1]))
                    for one in map(partial(sources.of_pass, stage), work.passes)
                    if one is not None
                ]
                if not all(one in index_of for one in found):
                    break
                instructions.append(
                    Instruction(
                        kind=work.kind,
                        stage=stage,
                        chunk=work.chunk,
                        micro=work.micro,
                        before=last[stage],
                        needs=tuple((index_of[one], one[0] != stage) for one in found),
                        exchanges=forwards_first or _exchanges(order, done[stage]),
                    )
                )
                last[stage] = len(instructions) - 1
                index_of |= {(stage, one): last[stage] for one in work.passes}
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


@dataclass(frozen=True, slots=True)
class _Sources:
    """The (stage, chunk) before and after each on a micro-batch's way, None at the ends."""

    before: dict[tuple[int, int], tuple[int, int] | None]
    after: dict[tuple[int, int], tuple[int, int] | None]

    @staticmethod
    def of(route: Route, pp: int, vpp: int) -> "_Sources":
        """Those of a route."""
        chains = route.chains(pp, vpp)
        return _Sources(
            before={one: prior for chain in chains for prior, one in pairwise([None, *chain]) if one},
            after={one: later for chain in chains for one, later in pairwise([*chain, None]) if one},
        )

    def of_pass(self, stage: int, work: Work) -> tuple[int, Work] | None:
        """The work whose result ``work``, a plain pass of ``stage``, needs."""
        if work.kind is Kind.WEIGHT:
            return stage, work._replace(kind=Kind.BACKWARD)
        forward = work.kind is Kind.FORWARD
        other = (self.before if forward else self.after)[(stage, work.chunk)]
        if other is not None:
            return other[0], work._replace(chunk=other[1])
        return None if forward else (stage, work._replace(kind=Kind.FORWARD))


def starts_and_ends(
    instructions: tuple[Instruction, ...], times: ChunkTimes
) -> tuple[FloatArray, FloatArray]:
    """When each instruction begins and ends, arrays of shape (instructions, N)."""
    plans = times.forward_s.shape[2]
    seconds = {
        Kind.FORWARD: times.forward_s,
        Kind.BACKWARD: times.backward_s,
        Kind.WEIGHT: times.weight_s,
        Kind.WHOLE_BACKWARD: times.backward_s + times.weight_s,
        Kind.PAIR: times.forward_s if times.pair_s is None else times.pair_s,
    }
    starts = np.empty((len(instructions), plans))
    ends = np.empty((len(instructions) + 1, plans))
    ends[-1] = 0.0
    for index, one in enumerate(instructions):
        free = ends[one.before]
        if times.waited and one.before >= 0 and instructions[one.before].exchanges:
            free = free + times.hop_s
        for needed, hops in one.needs:
            free = np.maximum(free, ends[needed] + times.hop_s if hops else ends[needed])
        starts[index] = free
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
