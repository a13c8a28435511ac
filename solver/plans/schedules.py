"""Pipeline schedules: the order in which each stage runs its tasks, which virtual stages it holds, and how many
micro-batches are in flight on it.

A schedule is a row of ``Schedule``; its orders are a function of the shape (pp, vpp, num_micro).

Sources. 1F1B, interleaved: Narayanan et al. 2021 (arXiv 2104.04473 sec. 2.2), in the order in which Megatron-LM writes
it (core/pipeline_parallel/schedules.py, get_schedule_table). All forwards first: GPipe (arXiv 1811.06965 sec. 2.3) and
breadth-first pipeline parallelism (arXiv 2211.05953 sec. 4.1), in the orders of torch.distributed.pipelining (PyTorch
2.11, schedules.py: ScheduleGPipe, ``_step_microbatches``; ScheduleLoopedBFS, ``_calculate_single_rank_operations``).
Zero bubble, the backward split into B (input gradient) and W (weight gradient): Qi et al. 2023 (arXiv 2401.10241 sec.
2: H1 keeps 1F1B's memory, H2 holds up to 2p - 1 micro-batches and fills the bubble; 1p and 2p are the memory limits of
the automatic scheduler, sec. 3) and 2024 (arXiv 2405.15362 sec. 3, V-shaped building blocks); of several chunks as
PyTorch runs them (ScheduleInterleavedZeroBubble, ScheduleZBVZeroBubble), whose backward of the input's gradient keeps
its graph (_backward.py, stage_backward_input: retain_graph), so that what a forward saved stays until the weights'
gradient is there. DualPipe: DeepSeek-V3 (arXiv 2412.19437 sec. 3.2.1 and table 2) and deepseek-ai/DualPipe, commit
3da1bbe, dualpipe/dualpipe.py and dualpipev.py, ``step``, whose eight steps these are; its bubble is (P/2 - 1)(F&B + B -
3W) for P virtual stages, of which a stage holds two."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, Self

import numpy as np

from spec.arrays import FloatArray, IntArray, ints


class TaskKind(StrEnum):
    """Kinds of tasks: forward; backward, which in schedules that split it is the input gradient alone; weight gradient;
    a whole backward in schedules that split only some; a forward that runs together with a whole backward."""

    FORWARD = "F"
    BACKWARD = "B"
    WEIGHT = "W"
    WHOLE_BACKWARD = "BW"
    PAIR = "F&B"


class Task(NamedTuple):
    """One task of a stage: which chunk of its layers, for which micro-batch. Of a pair these are the forward's, and
    ``beside`` is its backward."""

    kind: TaskKind
    chunk: int
    micro: int
    beside: "Task | None" = None

    @property
    def passes(self) -> tuple["Task", ...]:
        """Returns the plain forward and backward in it, whose results other tasks wait for."""
        if self.kind is TaskKind.PAIR and self.beside is not None:
            return Task(TaskKind.FORWARD, self.chunk, self.micro), *self.beside.passes
        if self.kind is TaskKind.WHOLE_BACKWARD:
            return (Task(TaskKind.BACKWARD, self.chunk, self.micro),)
        return (self,)


Orders = Callable[[tuple[int, int, int]], list[list[Task]]]
"""Returns the tasks of every stage in order, for a pipeline of shape (pp, vpp, num_micro)."""

InFlight = Callable[[IntArray, IntArray, IntArray, IntArray], FloatArray]
"""Returns the micro-batches whose activations a stage holds at its peak, a chunk counting 1/vpp. Arguments are arrays
of one length: the stage's position, pp, vpp and num_micro."""


Place = Callable[[IntArray, IntArray, IntArray, IntArray], IntArray]
"""Returns how many virtual stages come before one. Arguments are arrays of one length: the stage's position, its chunk,
pp and vpp."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Which virtual stages each stage holds. ``directions``: copies of the model, each with a share of the
    micro-batches; with two, chunk c of a stage belongs to copy c. ``looped``: virtual stages follow each other round
    and round."""

    place: Place
    directions: int = 1
    looped: bool = True

    def chains(self, pp: int, vpp: int) -> list[list[tuple[int, int]]]:
        """Returns for each copy its (stage, chunk) in the order in which a micro-batch passes them."""
        chunk, stage = (one.reshape(-1) for one in np.indices((self.directions * vpp, pp)))
        # With two copies chunk c belongs to copy c: the offset keeps the copies apart in the sort.
        place = self.place(stage, chunk, ints(pp), ints(vpp)) + (chunk * pp if self.directions > 1 else 0)
        order = np.argsort(place).reshape(self.directions, -1)
        return [list(zip(stage[one].tolist(), chunk[one].tolist(), strict=True)) for one in order]


def _looped(stage: IntArray, chunk: IntArray, pp: IntArray, vpp: IntArray) -> IntArray:
    return stage + chunk * pp


def _bidirectional(stage: IntArray, chunk: IntArray, pp: IntArray, vpp: IntArray) -> IntArray:
    return np.where(chunk == 0, stage, pp - 1 - stage)


def _v_shaped(stage: IntArray, chunk: IntArray, pp: IntArray, vpp: IntArray) -> IntArray:
    return np.where(chunk == 0, stage, 2 * pp - 1 - stage)


# Stage s holds virtual stages s, s + pp, s + 2 pp, ... (arXiv 2104.04473 sec. 2.2.2).
LOOPED = Placement(place=_looped)
# Stage s holds stage s of one copy and stage pp - 1 - s of another (arXiv 2412.19437 sec. 3.2.1).
BIDIRECTIONAL = Placement(place=_bidirectional, directions=2, looped=False)
# Stage s holds virtual stages s and 2 pp - 1 - s (DualPipe-V, "cut in half": deepseek-ai/DualPipe, README).
V_SHAPED = Placement(place=_v_shaped, looped=False)


def one_f_one_b(shape: tuple[int, int, int]) -> list[list[Task]]:
    """Returns 1F1B: warm-up forwards, one forward and one backward in turn, remaining backwards. With several chunks it
    is interleaved, and chunks take turns every pp micro-batches."""
    pp, vpp, _ = shape
    # Warm-up forwards: pp - 1 - stage, or 2 (pp - 1 - stage) + (vpp - 1) pp where chunks interleave (Megatron-LM,
    # get_pp_rank_microbatches).
    each, chunks_ahead = (2, (vpp - 1) * pp) if vpp > 1 else (1, 0)
    return [_alternating(shape, pp, (pp - 1 - stage) * each + chunks_ahead) for stage in range(pp)]


def zero_bubble_h1(shape: tuple[int, int, int]) -> list[list[Task]]:
    """Returns ZB-H1 (2401.10241 sec. 2.1): stage s defers s of its weight gradients, which fill its tail: the bubble
    falls to (p - 1)(t_F + t_B - t_W). With several chunks it is interleaved 1F1B with half of the warm-up."""
    pp, vpp, num_micro = shape
    # PyTorch cuts the micro-batches into as many equal rounds as there are pp of them, so a round may be longer than
    # pp.
    in_turn = -(-num_micro // max(num_micro // pp, 1))
    ahead = (vpp - 1) * in_turn + pp - 1
    return [_alternating(shape, in_turn, ahead - stage, weights_late=stage) for stage in range(pp)]


def _alternating(shape: tuple[int, int, int], in_turn: int, ahead: int, weights_late: int | None = None) -> list[Task]:
    """Returns the order of one stage: forwards of each chunk for ``in_turn`` micro-batches in a row, ``ahead`` of them
    before the first backward; weight gradients ``weights_late`` backwards behind their own, None for whole
    backwards."""
    _, vpp, num_micro = shape
    # (chunk, micro-batch) in the order of forwards, as Megatron-LM's get_schedule_table; backwards go through the
    # chunks in the opposite order.
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
    """Returns the micro-batches in flight under 1F1B: pp - position. Interleaved: 2 (pp - position - 1) + (vpp - 1) pp
    + 1 chunks, which for the first stage is pp vpp (1 + (pp - 1) / (pp vpp)) (arXiv 2205.05198 sec. 4.2.3)."""
    interleaved = 2 * (pp - position - 1) + (vpp - 1) * pp + 1
    chunks = np.minimum(np.where(vpp > 1, interleaved, pp - position), num_micro * vpp)
    return np.asarray(chunks / vpp, dtype=np.float64)


def gpipe(shape: tuple[int, int, int]) -> list[list[Task]]:
    """Returns GPipe: all forwards, then all backwards, in the same order on every stage."""
    pp, _, num_micro = shape
    passes = [[Task(kind, 0, micro) for micro in range(num_micro)] for kind in (TaskKind.FORWARD, TaskKind.BACKWARD)]
    return [passes[0] + passes[1]] * pp


def breadth_first(shape: tuple[int, int, int]) -> list[list[Task]]:
    """Returns looped BFS: all micro-batches through one chunk after the other; backwards in the opposite order."""
    pp, vpp, num_micro = shape
    forwards = [Task(TaskKind.FORWARD, chunk, micro) for chunk in range(vpp) for micro in range(num_micro)]
    return [forwards + [work._replace(kind=TaskKind.BACKWARD) for work in reversed(forwards)]] * pp


def in_flight_all(position: IntArray, pp: IntArray, vpp: IntArray, num_micro: IntArray) -> FloatArray:
    """Returns every micro-batch, on every stage: no backward begins before the last forward."""
    return np.asarray(num_micro + 0.0 * position, dtype=np.float64)


def zero_bubble_h2(shape: tuple[int, int, int]) -> list[list[Task]]:
    """Returns ZB-H2 (2401.10241 sec. 2.2): with 2p - 1 micro-batches in flight no stage waits where F, B and W take
    equally long. Built slot by slot: in a slot every stage runs B if it can, else F, else W."""
    pp, _, num_micro = shape
    limit = 2 * pp - 1
    # Slots are of equal length, so a stage may use what its neighbours had done at the end of the slot before.
    orders: list[list[Task]] = [[] for _ in range(pp)]
    done = [dict.fromkeys(TaskKind, 0) for _ in range(pp)]
    while min(counts[TaskKind.WEIGHT] for counts in done) < num_micro:
        slot: list[tuple[int, TaskKind]] = []
        for stage, counts in enumerate(done):
            inputs = done[stage - 1][TaskKind.FORWARD] if stage > 0 else num_micro
            gradients = done[stage + 1][TaskKind.BACKWARD] if stage < pp - 1 else counts[TaskKind.FORWARD]
            if counts[TaskKind.BACKWARD] < min(gradients, counts[TaskKind.FORWARD]):
                slot.append((stage, TaskKind.BACKWARD))
            elif counts[TaskKind.FORWARD] < inputs and counts[TaskKind.FORWARD] - counts[TaskKind.WEIGHT] < limit:
                slot.append((stage, TaskKind.FORWARD))
            elif counts[TaskKind.WEIGHT] < counts[TaskKind.BACKWARD]:
                slot.append((stage, TaskKind.WEIGHT))
        for stage, kind in slot:
            orders[stage].append(Task(kind, 0, done[stage][kind]))
            done[stage][kind] += 1
    return orders


def in_flight_h2(position: IntArray, pp: IntArray, vpp: IntArray, num_micro: IntArray) -> FloatArray:
    """Returns the micro-batches in flight under ZB-H2: 2 pp - 1 (arXiv 2401.10241 sec. 2.2)."""
    return np.asarray(np.minimum(2 * pp - 1, num_micro) / vpp, dtype=np.float64)


def zero_bubble_v(shape: tuple[int, int, int]) -> list[list[Task]]:
    """Returns ZB-V: stage s holds virtual stages s and 2 pp - 1 - s, so the last forward of a micro-batch and its first
    backward are on the first stage. There is no bubble where forward and both halves of the backward take equally
    long."""
    pp, _, num_micro = shape
    # Fewer micro-batches than fill the pipeline run in the order of as many as do, less those that do not exist.
    orders = (_v_order(pp, stage, max(2 * pp - 1, num_micro)) for stage in range(pp))
    return [[work for work in order if work.micro < num_micro] for order in orders]


def _v_order(pp: int, stage: int, num_micro: int) -> list[Task]:
    """Returns the order of one stage, phase by phase as PyTorch's ScheduleZBVZeroBubble has them: three warm-ups, the
    steady state, two cool-downs, and the weight gradients that are left."""
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
    """Returns pp micro-batches on every stage: (vpp - 1) pp + pp - 1 - s forwards before the first backward and the one
    between, and s whose weight gradients are deferred; in a V 2 pp - s of the first chunk and s of the second."""
    return np.asarray(np.minimum(pp, num_micro) + 0.0 * position, dtype=np.float64)


def dualpipe(shape: tuple[int, int, int]) -> list[list[Task]]:
    """Returns DualPipe: half of the micro-batches enter at the first stage and half at the last. For an even number of
    stages and an even number of micro-batches, at least 2 pp."""
    pp, _, num_micro = shape
    half = pp // 2
    return [
        _DualPipe(near=int(stage >= half)).order_of(half, min(stage, pp - 1 - stage), num_micro // 2)
        for stage in range(pp)
    ]


def dualpipe_v(shape: tuple[int, int, int]) -> list[list[Task]]:
    """Returns DualPipe-V: every micro-batch passes all stages and returns. For at least 2 pp micro-batches."""
    pp, _, num_micro = shape
    return [_DualPipe(near=0).order_of(pp, stage, num_micro) for stage in range(pp)]


@dataclass(slots=True)
class _DualPipe:
    """Builds the order of one stage. ``near`` is its chunk that comes earlier on a micro-batch's way, phase 0 of the
    source; ``forwards`` and ``backwards`` count those of each phase; ``deferred`` are weight gradients to come, first
    in, first out."""

    near: int
    order: list[Task] = field(default_factory=list)
    forwards: list[int] = field(default_factory=lambda: [0, 0])
    backwards: list[int] = field(default_factory=lambda: [0, 0])
    deferred: list[Task] = field(default_factory=list)

    def order_of(self, half: int, place: int, num_micro: int) -> list[Task]:
        """Returns the order of all eight steps of a stage with ``place`` stages before its near chunk; ``half`` is half
        the number of virtual stages, ``num_micro`` the micro-batches through each chunk."""
        after = half - place - 1
        # Step 1: nF0.
        for _ in range(2 * after):
            self.forward(0)
        # Step 2: nF0F1.
        for _ in range(place + 1):
            self.forward(0)
            self.forward(1)
        # Step 3: nB1W1F1.
        for _ in range(after):
            self.backward(1, split=True)
            self.weight()
            self.forward(1)
        # Step 4, the steady state: nF0B1F1B0.
        for turn in range(num_micro - 2 * half + place + 1):
            if turn == 0 and after == 0:
                # "We don't overlap these two chunks to further reduce bubble size."
                self.forward(0)
                self.backward(1)
            else:
                self.pair(0)
            self.pair(1)
        # Step 5: nB1F1B0.
        for _ in range(after):
            self.backward(1)
            self.pair(1)
        self._drain(place)
        # Step 7: nWB0.
        for _ in range(after):
            self.weight()
            self.backward(0, split=True)
        # Step 8: nW.
        for _ in range(place + 1):
            self.weight()
        return self.order

    def _drain(self, place: int) -> None:
        """Adds step 6, nB1B0: the second half of its backwards defer their weight gradients."""
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
        """Adds a forward that runs alone."""
        self.order.append(self._next(self.forwards, TaskKind.FORWARD, phase))

    def backward(self, phase: int, *, split: bool = False) -> None:
        """Adds a backward that runs alone; ``split`` defers its weight gradient."""
        work = self._next(self.backwards, TaskKind.BACKWARD if split else TaskKind.WHOLE_BACKWARD, phase)
        self.order.append(work)
        if split:
            self.deferred.append(work._replace(kind=TaskKind.WEIGHT))

    def weight(self) -> None:
        """Adds the oldest deferred weight gradient."""
        self.order.append(self.deferred.pop(0))

    def pair(self, phase: int) -> None:
        """Adds a forward that runs together with a whole backward of the other chunk."""
        beside = self._next(self.backwards, TaskKind.WHOLE_BACKWARD, 1 - phase)
        self.order.append(self._next(self.forwards, TaskKind.PAIR, phase)._replace(beside=beside))


def pairs(place: IntArray, stages: IntArray, num_micro: IntArray) -> IntArray:
    """Returns how many of the ``num_micro`` forwards of a chunk with ``place`` of ``stages`` virtual stages before it
    run beside a backward (steps 4 and 5)."""
    half = stages // 2
    # Of the near chunk the turns of step 4 but the first of the middle stage, which runs both passes apart; of the far
    # chunk those of steps 4 and 5.
    near = num_micro - stages + place + 1 - (place == half - 1)
    return np.where(place < half, near, num_micro - half).astype(np.int64)


def in_flight_dualpipe(position: IntArray, pp: IntArray, vpp: IntArray, num_micro: IntArray) -> FloatArray:
    """Returns P + 1 halves of a stage for P virtual stages (2412.19437 table 2): P is pp of DualPipe, 2 pp of
    DualPipe-V."""
    return np.asarray((pp * vpp + 1) / 2 + 0.0 * position, dtype=np.float64)


UNLIMITED_CHUNKS = 10**6


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderTraits:
    """Properties of a schedule's orders.

    ``splits_backward``: weight gradients are scheduled apart; ``pairs``: forwards run together with backwards;
    ``rounds``: the order of a stage repeats every pp micro-batches; ``chunks``: the fewest and the most chunks of a
    stage; ``micros_per_stage``: the fewest micro-batches for each stage.
    """

    splits_backward: bool = False
    pairs: bool = False
    rounds: bool = True
    chunks: tuple[int, int] = (1, 1)
    micros_per_stage: int = 0


class Schedule(StrEnum):
    """Every schedule in a row: its name, the orders of its stages, micro-batches in flight, its traits, and which
    virtual stages a stage holds."""

    orders: Orders
    in_flight: InFlight
    traits: OrderTraits
    placement: Placement

    def __new__(
        cls, name: str, orders: Orders, in_flight: InFlight, traits: OrderTraits, placement: Placement = LOOPED
    ) -> Self:
        """Returns a member, which as a string is its name."""
        member = str.__new__(cls, name)
        member._value_ = name
        member.orders, member.in_flight, member.traits, member.placement = (orders, in_flight, traits, placement)
        return member

    ONE_F_ONE_B = "1f1b", one_f_one_b, in_flight, OrderTraits(chunks=(1, UNLIMITED_CHUNKS))
    GPIPE = "gpipe", gpipe, in_flight_all, OrderTraits(rounds=False)
    LOOPED_BFS = ("looped-bfs", breadth_first, in_flight_all, OrderTraits(rounds=False, chunks=(2, UNLIMITED_CHUNKS)))
    ZB_H1 = "zb-h1", zero_bubble_h1, in_flight, OrderTraits(splits_backward=True)
    ZB_H2 = "zb-h2", zero_bubble_h2, in_flight_h2, OrderTraits(splits_backward=True)
    ZB_1P = "zb-1p", zero_bubble_h1, in_flight, OrderTraits(splits_backward=True)
    ZB_2P = "zb-2p", zero_bubble_h2, in_flight_h2, OrderTraits(splits_backward=True)
    ZB_INTERLEAVED = (
        "zb-interleaved",
        zero_bubble_h1,
        in_flight_chunks,
        OrderTraits(splits_backward=True, chunks=(2, UNLIMITED_CHUNKS)),
    )
    ZB_V = ("zb-v", zero_bubble_v, in_flight_chunks, OrderTraits(splits_backward=True, chunks=(2, 2)), V_SHAPED)
    DUALPIPE = (
        "dualpipe",
        dualpipe,
        in_flight_dualpipe,
        OrderTraits(splits_backward=True, pairs=True, micros_per_stage=2),
        BIDIRECTIONAL,
    )
    DUALPIPE_V = (
        "dualpipe-v",
        dualpipe_v,
        in_flight_dualpipe,
        OrderTraits(splits_backward=True, pairs=True, chunks=(2, 2), micros_per_stage=2),
        V_SHAPED,
    )


SCHEDULES = {schedule.value: schedule for schedule in Schedule}
