"""Pipeline schedules: the order in which each stage runs its work, where its chunks lie on a micro-batch's way, and how
many micro-batches it holds.

A schedule is a row of ``Schedule``; its orders of work are a function of the shape (pp, vpp, num_micro).

Sources. 1F1B, interleaved: Narayanan et al. 2021 (arXiv 2104.04473 sec. 2.2), in the order in which Megatron-LM writes it
(core/pipeline_parallel/schedules.py, get_schedule_table). All forwards first: GPipe (arXiv 1811.06965 sec. 2.3) and
breadth-first pipeline parallelism (arXiv 2211.05953 sec. 4.1), in the orders of torch.distributed.pipelining (PyTorch
2.11, schedules.py: ScheduleGPipe, ``_step_microbatches``; ScheduleLoopedBFS, ``_calculate_single_rank_operations``).
Zero bubble, the backward split into B (input gradient) and W (weight gradient): Qi et al. 2023 (arXiv 2401.10241 sec. 2:
H1 keeps 1F1B's memory, H2 holds up to 2p - 1 micro-batches and fills the bubble; 1p and 2p are the memory limits of the
automatic scheduler, sec. 3) and 2024 (arXiv 2405.15362 sec. 3, V-shaped building blocks); of several chunks as PyTorch
runs them (ScheduleInterleavedZeroBubble, ScheduleZBVZeroBubble), whose backward of the input's gradient keeps its graph
(_backward.py, stage_backward_input: retain_graph), so that what a forward saved stays until the weights' gradient is
there. DualPipe: DeepSeek-V3 (arXiv 2412.19437 sec. 3.2.1 and table 2) and deepseek-ai/DualPipe, commit 3da1bbe,
dualpipe/dualpipe.py and dualpipev.py, ``step``, whose eight steps these are; its bubble is (P/2 - 1)(F&B + B - 3W) for P
virtual stages, of which a stage holds two.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, Self

import numpy as np

from spec.arrays import FloatArray, IntArray, ints


class TaskKind(StrEnum):
    """Forward, backward (the input gradient alone where W is apart), weight gradient; where W is apart of some
    backwards only, the whole of another; a forward beside a whole backward."""

    FORWARD = "F"
    BACKWARD = "B"
    WEIGHT = "W"
    WHOLE_BACKWARD = "BW"
    PAIR = "F&B"


class Task(NamedTuple):
    """One piece of work of a stage: which chunk of its layers, for which micro-batch; of a pair those of the forward,
    the backward is ``beside``."""

    kind: TaskKind
    chunk: int
    micro: int
    beside: "Task | None" = None

    @property
    def passes(self) -> tuple["Task", ...]:
        """The plain forward and backward in it, whose results other work waits for."""
        if self.kind is TaskKind.PAIR and self.beside is not None:
            return Task(TaskKind.FORWARD, self.chunk, self.micro), *self.beside.passes
        if self.kind is TaskKind.WHOLE_BACKWARD:
            return (Task(TaskKind.BACKWARD, self.chunk, self.micro),)
        return (self,)


Orders = Callable[[tuple[int, int, int]], list[list[Task]]]
"""The work of every stage in order, for a pipeline of shape (pp, vpp, num_micro)."""

InFlight = Callable[[IntArray, IntArray, IntArray, IntArray], FloatArray]
"""Micro-batches whose activations a stage holds at its peak, a chunk counting 1/vpp; by arrays of one length of
the stage's position, pp, vpp and num_micro."""


Place = Callable[[IntArray, IntArray, IntArray, IntArray], IntArray]
"""By arrays of one length of a stage's position, its chunk, pp and vpp: how many (virtual) stages come before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """How virtual stages lie on stages. ``ways``: copies of the model, each with a share of the micro-batches;
    with two, chunk c of a stage belongs to copy c. ``turns``: whether a placement other than round and round."""

    place: Place
    directions: int = 1
    looped: bool = True

    def chunks(self, vpp: int) -> int:
        """Chunks of a stage: vpp of every copy."""
        return self.directions * vpp

    def chains(self, pp: int, vpp: int) -> list[list[tuple[int, int]]]:
        """For each copy its (stage, chunk) in the order a micro-batch passes them."""
        chunk, stage = (one.reshape(-1) for one in np.indices((self.chunks(vpp), pp)))
        place = self.place(stage, chunk, ints(pp), ints(vpp)) + (chunk * pp if self.directions > 1 else 0)
        order = np.argsort(place).reshape(self.directions, -1)
        return [list(zip(stage[one].tolist(), chunk[one].tolist(), strict=True)) for one in order]


def _looped(stage: IntArray, chunk: IntArray, pp: IntArray, vpp: IntArray) -> IntArray:
    return stage + chunk * pp


def _both_ways(stage: IntArray, chunk: IntArray, pp: IntArray, vpp: IntArray) -> IntArray:
    return np.where(chunk == 0, stage, pp - 1 - stage)


def _there_and_back(stage: IntArray, chunk: IntArray, pp: IntArray, vpp: IntArray) -> IntArray:
    return np.where(chunk == 0, stage, 2 * pp - 1 - stage)


# Stage s holds virtual stages s, s + pp, s + 2 pp, ... (arXiv 2104.04473 sec. 2.2.2).
LOOPED = Placement(place=_looped)
# Stage s holds stage s of one copy and stage pp - 1 - s of another (arXiv 2412.19437 sec. 3.2.1).
BOTH_WAYS = Placement(place=_both_ways, directions=2, looped=False)
# Stage s holds virtual stages s and 2 pp - 1 - s (DualPipe-V, "cut in half": deepseek-ai/DualPipe, README).
THERE_AND_BACK = Placement(place=_there_and_back, looped=False)


def one_f_one_b(shape: tuple[int, int, int]) -> list[list[Task]]:
    """Warm-up forwards, one forward and one backward in turn, remaining backwards; chunks take turns every pp
    micro-batches."""
    pp, vpp, _ = shape
    each, chunks_ahead = (2, (vpp - 1) * pp) if vpp > 1 else (1, 0)
    return [_alternating(shape, pp, (pp - 1 - stage) * each + chunks_ahead) for stage in range(pp)]


def split_one_f_one_b(shape: tuple[int, int, int]) -> list[list[Task]]:
    """ZB-H1 (2401.10241 sec. 2.1): stage s puts off s of its weight gradients, which fill its tail: the bubble falls to
    (p - 1)(t_F + t_B - t_W). With chunks, interleaved 1F1B with half its warm-up."""
    pp, vpp, num_micro = shape
    in_turn = -(-num_micro // max(num_micro // pp, 1))
    ahead = (vpp - 1) * in_turn + pp - 1
    return [_alternating(shape, in_turn, ahead - stage, weights_late=stage) for stage in range(pp)]


def _alternating(shape: tuple[int, int, int], in_turn: int, ahead: int, weights_late: int | None = None) -> list[Task]:
    """The order of one stage: forwards of each chunk for ``in_turn`` micro-batches after another, ``ahead`` of them before
    the first backward; each weight gradient, where those are apart, ``weights_late`` backwards after its own."""
    _, vpp, num_micro = shape
    table = [
        (chunk, micro)
        for first in range(0, num_micro, in_turn)
        for chunk in range(vpp)
        for micro in range(first, min(first + in_turn, num_micro))
    ]
    ahead = min(ahead, len(table))
    forwards = [Task(TaskKind.FORWARD, chunk, micro) for chunk, micro in table]
    backwards = [Task(TaskKind.BACKWARD, vpp - 1 - chunk, micro) for chunk, micro in table]
    weights = [] if weights_late is None else [work._replace(kind=TaskKind.WEIGHT) for work in backwards]
    late = weights_late or 0
    order = forwards[:ahead]
    for index, backward in enumerate(backwards):
        order += forwards[ahead + index : ahead + index + 1]
        order.append(backward)
        if index >= late:
            order += weights[index - late : index - late + 1]
    return order + weights[max(len(weights) - late, 0) :]


def in_flight(position: IntArray, pp: IntArray, vpp: IntArray, num_micro: IntArray) -> FloatArray:
    """1F1B: pp - position micro-batches. Interleaved: 2 (pp - position - 1) + (vpp - 1) pp + 1 chunks,
    which for the first stage is pp vpp (1 + (pp - 1) / (pp vpp)) (arXiv 2205.05198 sec. 4.2.3).
    """
    interleaved = 2 * (pp - position - 1) + (vpp - 1) * pp + 1
    chunks = np.minimum(np.where(vpp > 1, interleaved, pp - position), num_micro * vpp)
    return np.asarray(chunks / vpp, dtype=np.float64)


def gpipe(shape: tuple[int, int, int]) -> list[list[Task]]:
    """The same order on every stage."""
    pp, _, num_micro = shape
    passes = [[Task(kind, 0, micro) for micro in range(num_micro)] for kind in (TaskKind.FORWARD, TaskKind.BACKWARD)]
    return [passes[0] + passes[1]] * pp


def breadth_first(shape: tuple[int, int, int]) -> list[list[Task]]:
    """Chunk by chunk, every micro-batch; backwards from the last of both."""
    pp, vpp, num_micro = shape
    forwards = [Task(TaskKind.FORWARD, chunk, micro) for chunk in range(vpp) for micro in range(num_micro)]
    return [forwards + [work._replace(kind=TaskKind.BACKWARD) for work in reversed(forwards)]] * pp


def in_flight_all(position: IntArray, pp: IntArray, vpp: IntArray, num_micro: IntArray) -> FloatArray:
    """Every micro-batch, on every stage."""
    return np.asarray(num_micro + 0.0 * position, dtype=np.float64)


def filled(shape: tuple[int, int, int]) -> list[list[Task]]:
    """ZB-H2 (sec. 2.2): with 2p - 1 micro-batches in flight no stage ever waits when F, B and W take
    equally long. Built by letting every stage in every time slot do B if it can, else F, else W."""
    pp, _, num_micro = shape
    limit = 2 * pp - 1
    orders: list[list[Task]] = [[] for _ in range(pp)]
    done = [dict.fromkeys(TaskKind, 0) for _ in range(pp)]
    while min(counts[TaskKind.WEIGHT] for counts in done) < num_micro:
        slot: list[tuple[int, TaskKind]] = []
        for stage, counts in enumerate(done):
            behind = done[stage - 1][TaskKind.FORWARD] if stage > 0 else num_micro
            after = done[stage + 1][TaskKind.BACKWARD] if stage < pp - 1 else counts[TaskKind.FORWARD]
            if counts[TaskKind.BACKWARD] < min(after, counts[TaskKind.FORWARD]):
                slot.append((stage, TaskKind.BACKWARD))
            elif counts[TaskKind.FORWARD] < behind and counts[TaskKind.FORWARD] - counts[TaskKind.WEIGHT] < limit:
                slot.append((stage, TaskKind.FORWARD))
            elif counts[TaskKind.WEIGHT] < counts[TaskKind.BACKWARD]:
                slot.append((stage, TaskKind.WEIGHT))
        for stage, kind in slot:
            orders[stage].append(Task(kind, 0, done[stage][kind]))
            done[stage][kind] += 1
    return orders


def in_flight_filled(position: IntArray, pp: IntArray, vpp: IntArray, num_micro: IntArray) -> FloatArray:
    """A stage of a schedule that fills the bubble may hold 2 pp - 1 micro-batches (arXiv 2401.10241 sec. 2.2)."""
    return np.asarray(np.minimum(2 * pp - 1, num_micro) / vpp, dtype=np.float64)


def zero_bubble_v(shape: tuple[int, int, int]) -> list[list[Task]]:
    """ZB-V: stage s holds virtual stages s and 2 pp - 1 - s, so the last forward of a micro-batch and its
    first backward are on the first stage. Without a bubble where forward and both halves of the backward take
    equally long."""
    pp, _, num_micro = shape
    # Orders of fewer micro-batches than fill the pipeline are those of as many, without what is not there.
    orders = (_v_order(pp, stage, max(2 * pp - 1, num_micro)) for stage in range(pp))
    return [[work for work in order if work.micro < num_micro] for order in orders]


def _v_order(pp: int, stage: int, num_micro: int) -> list[Task]:
    order: list[Task] = []
    done = dict.fromkeys([(kind, chunk) for kind in TaskKind for chunk in (0, 1)], 0)

    def run(chunk: int, *kinds: TaskKind) -> None:
        for kind in kinds:
            order.append(Task(kind, chunk, done[kind, chunk]))
            done[kind, chunk] += 1

    for _ in range(2 * (pp - stage) - 1):
        run(0, TaskKind.FORWARD)
    for _ in range(stage):
        run(1, TaskKind.FORWARD)
        run(0, TaskKind.FORWARD)
    for _ in range(pp - stage):
        run(1, TaskKind.FORWARD, TaskKind.BACKWARD, TaskKind.WEIGHT)
    while done[TaskKind.FORWARD, 1] < num_micro:
        if done[TaskKind.FORWARD, 0] < num_micro:
            run(0, TaskKind.FORWARD)
        run(0, TaskKind.BACKWARD, TaskKind.WEIGHT)
        run(1, TaskKind.FORWARD, TaskKind.BACKWARD, TaskKind.WEIGHT)
    for _ in range(stage):
        run(0, TaskKind.BACKWARD)
        run(1, TaskKind.BACKWARD)
    for _ in range(pp - stage):
        run(0, TaskKind.BACKWARD, TaskKind.WEIGHT)
    for chunk in (1, 0):
        while done[TaskKind.WEIGHT, chunk] < num_micro:
            run(chunk, TaskKind.WEIGHT)
    return order


def in_flight_chunks(position: IntArray, pp: IntArray, vpp: IntArray, num_micro: IntArray) -> FloatArray:
    """pp micro-batches on every stage: (vpp - 1) pp + pp - 1 - s forwards before the first backward and the
    one between, and s whose weight gradients are put off; of a V 2 pp - s of the first chunk and s of the
    second."""
    return np.asarray(np.minimum(pp, num_micro) + 0.0 * position, dtype=np.float64)


def both_ways(shape: tuple[int, int, int]) -> list[list[Task]]:
    """DualPipe: half of the micro-batches enter at the first stage and half at the last; for an even number of stages
    and an even number of micro-batches, at least 2 pp."""
    pp, _, num_micro = shape
    half = pp // 2
    return [
        _DualPipe(near=int(stage >= half)).order_of(half, min(stage, pp - 1 - stage), num_micro // 2)
        for stage in range(pp)
    ]


def there_and_back(shape: tuple[int, int, int]) -> list[list[Task]]:
    """DualPipe-V: every micro-batch passes all stages and returns; for at least 2 pp micro-batches."""
    pp, _, num_micro = shape
    return [_DualPipe(near=0).order_of(pp, stage, num_micro) for stage in range(pp)]


@dataclass(slots=True)
class _DualPipe:
    """One stage's order in the making. ``near`` is its chunk that comes earlier on a micro-batch's way, phase 0 of
    the source; ``put_off`` are weight gradients to come, first in, first out."""

    near: int
    order: list[Task] = field(default_factory=list)
    forwards: list[int] = field(default_factory=lambda: [0, 0])
    backwards: list[int] = field(default_factory=lambda: [0, 0])
    put_off: list[Task] = field(default_factory=list)

    def order_of(self, half: int, place: int, num_micro: int) -> list[Task]:
        """The order of all eight steps of a stage with ``place`` stages before its near chunk; ``half`` of the virtual stages,
        ``num_micro`` micro-batches through each chunk."""
        after = half - place - 1
        for _ in range(2 * after):
            self.forward(0)
        for _ in range(place + 1):
            self.forward(0)
            self.forward(1)
        for _ in range(after):
            self.backward(1, split=True)
            self.weight()
            self.forward(1)
        for turn in range(num_micro - 2 * half + place + 1):
            if turn == 0 and after == 0:
                # "We don't overlap these two chunks to further reduce bubble size."
                self.forward(0)
                self.backward(1)
            else:
                self.pair(0)
            self.pair(1)
        for _ in range(after):
            self.backward(1)
            self.pair(1)
        self._drain(place)
        for _ in range(after):
            self.weight()
            self.backward(0, split=True)
        for _ in range(place + 1):
            self.weight()
        return self.order

    def _drain(self, place: int) -> None:
        """Step 6: the second half of its backwards put their weight gradients off."""
        split = False
        for turn in range(place + 1):
            middle = turn == (place + 1) // 2
            split = split or (middle and place % 2 == 1)
            self.backward(1, split=split)
            split = split or (middle and place % 2 == 0)
            self.backward(0, split=split)

    def _next(self, counts: list[int], kind: TaskKind, phase: int) -> Task:
        work = Task(kind, phase ^ self.near, counts[phase])
        counts[phase] += 1
        return work

    def forward(self, phase: int) -> None:
        """A forward alone."""
        self.order.append(self._next(self.forwards, TaskKind.FORWARD, phase))

    def backward(self, phase: int, *, split: bool = False) -> None:
        """A backward alone; ``split`` puts its weight gradient off."""
        work = self._next(self.backwards, TaskKind.BACKWARD if split else TaskKind.WHOLE_BACKWARD, phase)
        self.order.append(work)
        if split:
            self.put_off.append(work._replace(kind=TaskKind.WEIGHT))

    def weight(self) -> None:
        """The oldest weight gradient that was put off."""
        self.order.append(self.put_off.pop(0))

    def pair(self, phase: int) -> None:
        """A forward beside a whole backward of the other chunk."""
        beside = self._next(self.backwards, TaskKind.WHOLE_BACKWARD, 1 - phase)
        self.order.append(self._next(self.forwards, TaskKind.PAIR, phase)._replace(beside=beside))


def pairs(place: IntArray, stages: IntArray, num_micro: IntArray) -> IntArray:
    """Returns how many of the ``num_micro`` forwards of a chunk with ``place`` of ``stages`` virtual stages before it run
    beside a backward (steps 4 and 5)."""
    half = stages // 2
    near = num_micro - stages + place + 1 - (place == half - 1)
    return np.where(place < half, near, num_micro - half).astype(np.int64)


def in_flight_dual(position: IntArray, pp: IntArray, vpp: IntArray, num_micro: IntArray) -> FloatArray:
    """P + 1 of the halves of a stage, P virtual stages (2412.19437 table 2): pp of DualPipe, 2 pp of DualPipe-V."""
    return np.asarray((pp * vpp + 1) / 2 + 0.0 * position, dtype=np.float64)


ANY_NUMBER = 10**6


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderTraits:
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


class Schedule(StrEnum):
    """A line a schedule: its name, the work of every stage in order, the micro-batches a stage holds, its traits, and
    where a stage's chunks lie on the way of a micro-batch."""

    orders: Orders
    in_flight: InFlight
    traits: OrderTraits
    placement: Placement

    def __new__(
        cls,
        name: str,
        orders: Orders,
        in_flight: InFlight,
        traits: OrderTraits,
        placement: Placement = LOOPED,
    ) -> Self:
        """A member is its name."""
        member = str.__new__(cls, name)
        member._value_ = name
        member.orders, member.in_flight, member.traits, member.placement = (
            orders,
            in_flight,
            traits,
            placement,
        )
        return member

    ONE_F_ONE_B = "1f1b", one_f_one_b, in_flight, OrderTraits(chunks=(1, ANY_NUMBER))
    GPIPE = "gpipe", gpipe, in_flight_all, OrderTraits(rounds=False)
    LOOPED_BFS = (
        "looped-bfs",
        breadth_first,
        in_flight_all,
        OrderTraits(rounds=False, chunks=(2, ANY_NUMBER)),
    )
    ZB_H1 = "zb-h1", split_one_f_one_b, in_flight, OrderTraits(splits_backward=True)
    ZB_H2 = "zb-h2", filled, in_flight_filled, OrderTraits(splits_backward=True)
    ZB_1P = "zb-1p", split_one_f_one_b, in_flight, OrderTraits(splits_backward=True)
    ZB_2P = "zb-2p", filled, in_flight_filled, OrderTraits(splits_backward=True)
    ZB_INTERLEAVED = (
        "zb-interleaved",
        split_one_f_one_b,
        in_flight_chunks,
        OrderTraits(splits_backward=True, chunks=(2, ANY_NUMBER)),
    )
    ZB_V = (
        "zb-v",
        zero_bubble_v,
        in_flight_chunks,
        OrderTraits(splits_backward=True, chunks=(2, 2)),
        THERE_AND_BACK,
    )
    DUALPIPE = (
        "dualpipe",
        both_ways,
        in_flight_dual,
        OrderTraits(splits_backward=True, pairs=True, micros_per_stage=2),
        BOTH_WAYS,
    )
    DUALPIPE_V = (
        "dualpipe-v",
        there_and_back,
        in_flight_dual,
        OrderTraits(splits_backward=True, pairs=True, chunks=(2, 2), micros_per_stage=2),
        THERE_AND_BACK,
    )

    @property
    def splits_backward(self) -> bool:
        """Returns whether weight gradients are scheduled apart."""
        return self.traits.splits_backward


SCHEDULES = {schedule.value: schedule for schedule in Schedule}
