"""Simulates pipelines under any schedule.

A schedule is a program: all work of a pipeline and what each piece of it waits for, as arrays. Programs of many plans run
side by side, all work of one level of all of them at once. They are a system of max-plus equations: work begins when the
last of what it needs is there. Where all work of the levels in which it looks back ends by one and the same time later
than its like a round earlier, so does all that follows (adding a constant to all inputs of a maximum of sums adds it to
the outputs), until the order of work changes: every further round adds that time, exactly. What has not settled is
simulated for more rounds, in the end for all.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np

from solver.plans.schedules import Placement, Schedule, Task, TaskKind
from spec.arrays import BoolArray, FloatArray, IntArray, bools, ints

KINDS: tuple[TaskKind, ...] = (
    TaskKind.FORWARD,
    TaskKind.BACKWARD,
    TaskKind.WEIGHT,
    TaskKind.WHOLE_BACKWARD,
    TaskKind.PAIR,
)
FORWARD, BACKWARD, WEIGHT, WHOLE_BACKWARD, PAIR = range(len(KINDS))
NONE = -1

COLUMNS = 32
"""Plans of one shape in one row of numbers; fewer where there are fewer."""

MOST_CELLS = 3_000_000
"""Ends held at once, of which there are two of 8 bytes and the seconds that lead to them."""

FIRST_ROUNDS = 4
"""Rounds of pp micro-batches that are simulated first, and as many again whenever that was too few; it moves no answer."""

ALIKE = 1e-11
"""Relative to a round, by how much ends may differ from being a round apart: rounding, not unlike cycles."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    """A row of a program; ``needs`` are the rows of other stages whose message it waits for."""

    kind: TaskKind
    stage: int
    chunk: int
    micro: int
    needs: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TaskGraph:
    """All work of a pipeline of ``shape`` (pp, chunks, num_micro); columns of one length, in an order in which what
    each piece needs comes before it.

    ``kind`` is a place in KINDS; ``before`` the row of the stage's earlier work, NONE for none; ``needs`` two
    columns of rows of other stages whose message it waits for; ``exchanges`` whether the stage sends and
    receives when it is done: after the forwards of the warm-up and after every backward (Megatron-LM,
    forward_backward_pipelining_with_interleaving). ``level`` is the length of the longest chain of work
    before it: what is of one level waits for none of it.
    """

    shape: tuple[int, int, int]
    kind: IntArray
    stage: IntArray
    chunk: IntArray
    micro: IntArray
    before: IntArray
    needs: IntArray
    exchanges: BoolArray
    level: IntArray

    def __len__(self) -> int:
        return len(self.kind)

    def instructions(self) -> tuple[Instruction, ...]:
        """Every row."""
        columns = (self.kind, self.stage, self.chunk, self.micro, *self.needs)
        return tuple(
            Instruction(
                kind=KINDS[kind],
                stage=stage,
                chunk=chunk,
                micro=micro,
                needs=tuple(one for one in needs if one != NONE),
            )
            for kind, stage, chunk, micro, *needs in zip(*(one.tolist() for one in columns), strict=True)
        )


def task_graph(schedule: Schedule, shape: tuple[int, int, int], *, blocking: bool = False) -> TaskGraph:
    """The program of a pipeline of ``shape`` (pp, vpp, num_micro). ``blocking``, of interleaved stages alone: a
    message leaves when its stage exchanges, which for a forward directly before a backward is after that.

    Raises ValueError when the schedule waits for itself.
    """
    # Schedules that differ in what they let a stage hold alone run the same program.
    like = next(one for one in Schedule if (one.orders, one.placement) == (schedule.orders, schedule.placement))
    return _program(like, shape, blocking=blocking)


@lru_cache(maxsize=512)
def _program(schedule: Schedule, shape: tuple[int, int, int], *, blocking: bool) -> TaskGraph:
    pp, vpp, num_micro = shape
    orders = schedule.orders(shape)
    forwards_first = blocking and num_micro == pp
    if forwards_first:
        orders = [_forwards_first(order) for order in orders]
    work = _Columns.of(orders)
    needs = _needs(work, schedule.placement, (pp, vpp))
    if blocking and not forwards_first:
        needs = np.where((needs >= 0) & work.leaves_late[needs], needs + 1, needs)
    level = _levels(work, needs)
    if level is None:
        raise ValueError(f"schedule {schedule.value} of shape {shape} waits for itself")
    order = np.argsort(level, kind="stable")
    place = np.append(np.argsort(order), NONE)
    return TaskGraph(
        shape=(pp, schedule.placement.chunks(vpp), num_micro),
        kind=work.kind[order],
        stage=work.stage[order],
        chunk=work.chunk[order],
        micro=work.micro[order],
        before=place[work.before[order]],
        needs=place[needs[:, order]],
        exchanges=work.exchanges[order] | forwards_first,
        level=level[order],
    )


def _forwards_first(order: list[Task]) -> list[Task]:
    """All forwards, then all backwards: what interleaved stages that wait for messages run when there are just as many
    micro-batches as stages (Megatron-LM v2.5, schedules.py, all_warmup_microbatches)."""
    return sorted(order, key=lambda work: work.kind is not TaskKind.FORWARD)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Columns:
    """Task stage by stage, each in its order; ``beside`` (chunk, micro) of a pair's backward."""

    kind: IntArray
    stage: IntArray
    chunk: IntArray
    micro: IntArray
    beside: tuple[IntArray, IntArray]
    first: BoolArray

    @staticmethod
    def of(orders: Sequence[list[Task]]) -> "_Columns":
        """The orders of all stages as columns."""
        code = {kind: index for index, kind in enumerate(KINDS)}
        flat = [work for order in orders for work in order]
        sizes = np.array([len(order) for order in orders])
        besides = [work.beside or work for work in flat]
        first = np.zeros(len(flat), dtype=np.bool_)
        first[np.cumsum(sizes) - sizes] = True
        return _Columns(
            kind=ints([code[work.kind] for work in flat]),
            stage=np.repeat(np.arange(len(orders)), sizes).astype(np.int64),
            chunk=ints([work.chunk for work in flat]),
            micro=ints([work.micro for work in flat]),
            beside=(ints([work.chunk for work in besides]), ints([work.micro for work in besides])),
            first=first,
        )

    @property
    def before(self) -> IntArray:
        """The row of the stage's earlier work."""
        return np.where(self.first, NONE, np.arange(len(self.kind)) - 1).astype(np.int64)

    @property
    def leaves_late(self) -> BoolArray:
        """Forwards directly before a backward."""
        return np.asarray((self.kind == FORWARD) & self._before_backward, dtype=np.bool_)

    @property
    def exchanges(self) -> BoolArray:
        """Returns whether messages travel after this work: a forward directly before a backward waits for it."""
        last = np.append(self.first[1:], True)
        return bools(~last & ((self.kind == BACKWARD) | ~self._before_backward))

    @property
    def _before_backward(self) -> BoolArray:
        return np.append((self.kind[1:] == BACKWARD) & ~self.first[1:], False)


def _needs(work: _Columns, placement: Placement, depth: tuple[int, int]) -> IntArray:
    """Rows of other stages that each row waits for: of its forward and of its backward, NONE where it has none. What
    it needs of its own stage has to come earlier there: -2 where it does not, or where nothing makes it."""
    chunk, micro = work.beside
    forwards = np.flatnonzero((work.kind == FORWARD) | (work.kind == PAIR))
    backwards = np.flatnonzero((work.kind != FORWARD) & (work.kind != WEIGHT))
    pp, chunks, rows = depth[0], placement.chunks(depth[1]), np.arange(len(work.kind))
    made = np.full((2, pp, chunks, int(max(work.micro.max(), micro.max())) + 1), -2, dtype=np.int64)
    made[0, work.stage[forwards], work.chunk[forwards], work.micro[forwards]] = forwards
    made[1, work.stage[backwards], chunk[backwards], micro[backwards]] = backwards
    # On a micro-batch's way the (stage, chunk) before and after each, itself at the ends.
    source = np.stack([np.indices((pp, chunks))] * 2)
    for chain in placement.chains(pp, depth[1]):
        for one, later in pairwise(chain):
            source[0, :, later[0], later[1]], source[1, :, one[0], one[1]] = one, later
    needs = np.full((2, len(rows)), NONE, dtype=np.int64)
    for way, of_way, its_chunk, its_micro in (
        (0, forwards, work.chunk, work.micro),
        (1, backwards, chunk, micro),
    ):
        stage, c, m = work.stage[of_way], its_chunk[of_way], its_micro[of_way]
        from_stage, from_chunk = source[way, :, stage, c].T
        end = (from_stage == stage) & (from_chunk == c)
        result = made[way, from_stage, from_chunk, m]
        # A backward begins where the last forward ended.
        result = np.where(end, NONE if way == 0 else made[0, stage, c, m], result)
        needs[way, of_way] = _earlier(result, of_way, from_stage == stage)
    apart = np.flatnonzero(work.kind == WEIGHT)
    own = made[1, work.stage[apart], work.chunk[apart], work.micro[apart]]
    needs[1, apart] = _earlier(own, apart, np.ones(len(apart), dtype=np.bool_))
    return needs


def _earlier(found: IntArray, rows: IntArray, own: BoolArray) -> IntArray:
    """Task of a row's own stage is done before it, or never: nothing to wait for, or -2."""
    return np.where(own & (found != -2), np.where(found < rows, NONE, -2), found).astype(np.int64)


def _levels(work: _Columns, needs: IntArray) -> IntArray | None:
    """The length of the longest chain before each row, None where rows wait for each other."""
    first, second = needs.tolist()
    nexts = np.flatnonzero(work.first).tolist()
    ends = [*nexts[1:], len(first)]
    reached_of = [-1] * len(ends)
    level = [-1] * len(first) + [-2, -1]  # the last two are what -2 and NONE stand for
    left = len(first)
    while left:
        before = left
        for stage, end in enumerate(ends):
            row, reached = nexts[stage], reached_of[stage]
            while row < end:
                one, other = first[row], second[row]
                one_level, other_level = level[one], level[other]
                if (one != NONE and one_level < 0) or (other != NONE and other_level < 0):
                    break
                reached = max(reached, one_level, other_level) + 1
                level[row] = reached
                row += 1
            left -= row - nexts[stage]
            nexts[stage], reached_of[stage] = row, reached
        if left == before:
            return None
    return ints(level[:-2])


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkTimes:
    """Seconds of one micro-batch through one chunk, arrays of shape (pp, chunks, N); ``p2p_s`` of shape (N,).

    ``weight_s`` is 0 where the schedule does not split the backward, ``pair_s`` what a forward of the chunk takes
    beside a backward of the stage's other one. ``blocking``: a stage computes nothing while it exchanges messages;
    ``post_validation``: it begins its next step as soon as it is done, and not when all are.
    """

    forward_s: FloatArray
    backward_s: FloatArray
    weight_s: FloatArray
    p2p_s: FloatArray
    blocking: bool = False
    post_validation: bool = False
    pair_s: FloatArray | None = None

    def by_kind(self) -> FloatArray:
        """Shape (kinds of solver.pipeline.simulation.KINDS, pp, chunks, N)."""
        pair_s = self.forward_s if self.pair_s is None else self.pair_s
        whole_s = self.backward_s + self.weight_s
        return np.stack([self.forward_s, self.backward_s, self.weight_s, whole_s, pair_s])

    def take(self, columns: slice | IntArray) -> "ChunkTimes":
        """Some of the plans."""
        return ChunkTimes(
            forward_s=self.forward_s[:, :, columns],
            backward_s=self.backward_s[:, :, columns],
            weight_s=self.weight_s[:, :, columns],
            p2p_s=self.p2p_s[columns],
            blocking=self.blocking,
            post_validation=self.post_validation,
            pair_s=None if self.pair_s is None else self.pair_s[:, :, columns],
        )


Run = tuple[TaskGraph, ChunkTimes]


def starts_and_ends(one: TaskGraph, times: ChunkTimes) -> tuple[FloatArray, FloatArray]:
    """When each piece of work begins and ends, arrays of shape (len(graph), N)."""
    ends_s = np.concatenate([ends for _, _, ends in ends_side_by_side([(one, times)])], axis=1)
    return ends_s - times.by_kind()[one.kind, one.stage, one.chunk], ends_s


def first_and_last(one: TaskGraph) -> tuple[list[int], list[int]]:
    """The rows of each stage's first and last work."""
    firsts = np.flatnonzero(one.before == NONE)
    lasts = np.setdiff1d(np.arange(len(one)), one.before)
    by_stage = (rows[np.argsort(one.stage[rows])].tolist() for rows in (firsts, lasts))
    first, last = by_stage
    return first, last


def ends_side_by_side(runs: Sequence[Run]) -> Iterator[tuple[int, slice, FloatArray]]:
    """For every run and some of its plans at a time (their index and columns), when each piece of work ends, shape
    (len(graph), plans)."""
    most = max((times.p2p_s.shape[0] for _, times in runs), default=0)
    width = int(min(COLUMNS, 2 ** int(np.ceil(np.log2(max(most, 1))))))
    waiting: list[tuple[int, slice]] = []
    cells = 0
    for index, (one, times) in enumerate(runs):
        for low in range(0, times.p2p_s.shape[0], width):
            if waiting and cells + len(one) * width > MOST_CELLS:
                yield from _simulate(runs, waiting, width)
                waiting, cells = [], 0
            waiting.append((index, slice(low, min(low + width, times.p2p_s.shape[0]))))
            cells += len(one) * width
    if waiting:
        yield from _simulate(runs, waiting, width)


def _simulate(
    runs: Sequence[Run], parts: Sequence[tuple[int, slice]], width: int
) -> Iterator[tuple[int, slice, FloatArray]]:
    """Simulate parts of runs, each a program with up to ``width`` columns."""
    programs = [runs[index][0] for index, _ in parts]
    times = [runs[index][1].take(columns) for index, columns in parts]
    sizes = np.array([len(one) for one in programs])
    starts = np.cumsum(sizes) - sizes
    total = int(sizes.sum())
    level = np.concatenate([one.level for one in programs])
    order = np.argsort(level, kind="stable")
    # Task that nothing precedes follows a row of zeros, the last; a row's end with its hop stands total + 1 further on.
    place = np.append(np.argsort(order), total)

    def rows_of(columns: Sequence[IntArray]) -> IntArray:
        moved = [np.where(c == NONE, total, c + start) for c, start in zip(columns, starts, strict=True)]
        return ints(place[np.concatenate(moved)[order]])

    hops = np.concatenate(
        [
            (one.before != NONE) & one.exchanges[one.before] & of.blocking
            for one, of in zip(programs, times, strict=True)
        ]
    )
    before = rows_of([one.before for one in programs]) + (total + 1) * hops[order]
    either = [np.where(one.needs[0] == NONE, one.needs[1], one.needs[0]) for one in programs]
    # Of a pair, what its backward waits for beside what its forward does.
    other = [np.where(one.needs[0] == NONE, NONE, one.needs[1]) for one in programs]
    first, second = rows_of(either) + total + 1, rows_of(other) + total + 1
    tables = [_padded(of.by_kind().reshape(-1, of.p2p_s.shape[0]), width) for of in times]
    heights = np.array([len(table) for table in tables])
    seconds = np.concatenate(tables)
    which = np.concatenate(
        [
            start + (one.kind * one.shape[0] + one.stage) * one.shape[1] + one.chunk
            for one, start in zip(programs, np.cumsum(heights) - heights, strict=True)
        ]
    )[order]
    p2p_s = np.concatenate([_padded(of.p2p_s[None, :], width) for of in times])
    part = np.repeat(np.arange(len(parts)), sizes)[order]
    ends = np.zeros((2 * (total + 1), width))
    bounds = np.searchsorted(level[order], np.arange(int(level.max()) + 2)).tolist()
    paired = any((rows != NONE).any() for rows in other)
    for low, high in pairwise(bounds):
        free = np.maximum(ends.take(before[low:high], axis=0), ends.take(first[low:high], axis=0))
        if paired:
            np.maximum(free, ends.take(second[low:high], axis=0), out=free)
        free += seconds.take(which[low:high], axis=0)
        ends[low:high] = free
        np.add(free, p2p_s.take(part[low:high], axis=0), out=ends[total + 1 + low : total + 1 + high])
    for (index, columns), start, size in zip(parts, starts, sizes, strict=True):
        result = ends[place[start : start + size], : columns.stop - columns.start]
        yield index, columns, result


def _padded(values: FloatArray, width: int) -> FloatArray:
    """``values`` with columns of zeros up to ``width``."""
    whole = np.zeros((values.shape[0], width))
    whole[:, : values.shape[1]] = values
    return whole


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineRun:
    """N plans under one schedule, pipelines of one ``shape`` (pp, vpp, num_micro)."""

    schedule: Schedule
    shape: tuple[int, int, int]
    times: ChunkTimes

    def rounds_left(self, simulated: int) -> int:
        """Rounds of the step that are not simulated when so many are; none where nothing comes again."""
        pp, _, num_micro = self.shape
        if not self.schedule.traits.rounds:
            return 0
        return max((num_micro - simulated * pp) // pp, 0)

    def task_graph(self, simulated: int) -> TaskGraph:
        """The program of that many rounds and of what is less than a round."""
        pp, vpp, num_micro = self.shape
        count = num_micro - self.rounds_left(simulated) * pp
        return task_graph(self.schedule, (pp, vpp, count), blocking=self.times.blocking)


def graph_spans_s(runs: Sequence[PipelineRun]) -> list[FloatArray]:
    """Seconds until each stage's last work, from the step's beginning or, where stages begin their next step as they are done,
    from the stage's own first work; arrays of shape (pp, N)."""
    result: list[FloatArray] = [np.zeros((one.shape[0], one.times.p2p_s.shape[0])) for one in runs]
    waiting = [(index, np.arange(one.times.p2p_s.shape[0])) for index, one in enumerate(runs)]
    simulated = FIRST_ROUNDS
    while waiting:
        unsettled: list[tuple[int, IntArray]] = []
        parts = [(runs[index].task_graph(simulated), runs[index].times.take(plans)) for index, plans in waiting]
        for place, columns, ends in ends_side_by_side(parts):
            (index, plans), (of_part, times) = waiting[place], parts[place]
            one = runs[index]
            first, last = first_and_last(of_part)
            spans = ends[last]
            if one.times.post_validation:
                seconds = times.take(columns).by_kind()
                first_s = seconds[of_part.kind[first], of_part.stage[first], of_part.chunk[first]]
                spans = spans - (ends[first] - first_s)
            rounds = one.rounds_left(simulated)
            if rounds:
                round_s = added_by_a_round_s(of_part, ends, one.schedule.placement.directions)
                spans = spans + rounds * round_s
                if np.isnan(round_s).any():
                    unsettled.append((index, plans[columns][np.isnan(round_s)]))
            result[index][:, plans[columns]] = spans
        waiting, simulated = unsettled, 2 * simulated
    return result


def added_by_a_round_s(one: TaskGraph, ends_s: FloatArray, ways: int) -> FloatArray:
    """By how much later a step with a round more ends, NaN for the plans (columns of ``ends_s``) that have not
    settled. ``ways``: copies of the model that share a round's micro-batches."""
    rows, earlier = _settling(one, one.shape[0] // ways)
    if not len(rows):
        return np.full(ends_s.shape[1], np.nan)
    later_s = ends_s[rows] - ends_s[earlier]
    least, most = later_s.min(axis=0), later_s.max(axis=0)
    return np.where(most - least <= ALIKE * most, most, np.nan)


@lru_cache(maxsize=512)
def _settling(one: TaskGraph, shift: int) -> tuple[IntArray, IntArray]:
    """The rows that decide what follows the last levels before a stage runs out of forwards, and their like ``shift``
    micro-batches earlier; none where that was in another order."""
    none = np.zeros(0, dtype=np.int64)
    like = np.full((int(one.kind.max()) + 1, *one.shape[:2], int(one.micro.max()) + 1), NONE, dtype=np.int64)
    like[one.kind, one.stage, one.chunk, one.micro] = np.arange(len(one))
    result = like[one.kind, one.stage, one.chunk, np.maximum(one.micro - shift, 0)]
    earlier = np.where(one.micro >= shift, result, NONE)
    moved = np.append(earlier, NONE)
    regular = earlier != NONE
    back = 0
    for needed in (one.before, *one.needs):
        regular &= needed[earlier] == moved[needed]
        regular &= (needed == NONE) == (moved[needed] == NONE)
        back = max(back, int(np.where(regular & (needed != NONE), one.level - one.level[needed], 0).max()))
    regular &= one.exchanges[one.before] == one.exchanges[one.before[earlier]]
    ahead = (one.kind == FORWARD) | (one.kind == PAIR)
    last = min(int(one.level[ahead & (one.stage == stage)].max()) for stage in range(one.shape[0]))
    odd = np.unique(np.append(one.level[~regular & (one.level <= last)], NONE))
    # The last run of levels without an odd one that is long enough.
    ends = np.append(odd[1:], last + 1) - 1
    long = np.flatnonzero(ends - odd >= back)
    if not len(long):
        return none, none
    rows = np.flatnonzero((one.level > ends[long[-1]] - back) & (one.level <= ends[long[-1]]))
    return rows, earlier[rows]
