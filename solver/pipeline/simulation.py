"""Simulates pipelines under any schedule.

A schedule becomes a task graph: every task of a pipeline (a pass of one chunk for one micro-batch) and what it waits
for, as arrays (``task_graph``). The graphs of many plans run side by side, all tasks of one level of the graphs in one
array operation (``ends_side_by_side``).

Long steps are not simulated to the end (``graph_spans_s``). A task ends at the latest end of what it waits for plus its
own seconds, which is a max-plus equation: adding a constant to all its inputs adds it to the output. So where all tasks
of the last levels end by the same time later than their counterparts of the round before (a round is pp micro-batches),
every further round adds exactly that time, until the order of tasks changes at the end of the step. Pipelines that have
not settled are simulated for twice as many rounds, at last for all."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np

from solver.plans.schedules import Placement, Schedule, Task, TaskKind
from spec.arrays import BoolArray, FloatArray, IntArray, bools, ints
from spec.errors import ConfigError

KINDS: tuple[TaskKind, ...] = (
    TaskKind.FORWARD,
    TaskKind.BACKWARD,
    TaskKind.WEIGHT,
    TaskKind.WHOLE_BACKWARD,
    TaskKind.PAIR,
)
# A task's kind in the arrays is its place in KINDS.
FORWARD, BACKWARD, WEIGHT, WHOLE_BACKWARD, PAIR = range(len(KINDS))
NONE = -1
"""In a column of rows: waits for nothing."""
NEVER = -2
"""In a column of rows: waits for a task that does not exist or comes later on the same stage."""

COLUMNS = 32
"""Plans of one shape that are simulated as columns of one array; fewer where there are fewer."""

MOST_CELLS = 3_000_000
"""Tasks times columns of one batch: each takes two ends and the seconds between them, of 8 bytes."""

FIRST_ROUNDS = 4
"""Rounds of pp micro-batches that are simulated first; they double whenever that was too few. It moves no answer."""

ALIKE = 1e-11
"""Relative to a round, by how much ends may differ from being a round apart: rounding, not cycles of other lengths."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TaskGraph:
    """All tasks of a pipeline of ``shape`` (pp, chunks, num_micro), one row a task, ordered by ``level``.

    ``kind`` is a place in KINDS; ``before`` the row of the stage's previous task, NONE for none; ``needs`` (2, rows)
    the rows of other stages whose messages it waits for; ``exchanges`` whether the stage sends and receives when the
    task is done: after the forwards of the warm-up and after every backward (Megatron-LM,
    forward_backward_pipelining_with_interleaving). ``level`` is the length of the longest chain of tasks before it:
    tasks of one level wait for none of each other.
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


def task_graph(schedule: Schedule, shape: tuple[int, int, int], *, blocking: bool = False) -> TaskGraph:
    """Returns the task graph of a pipeline of ``shape`` (pp, vpp, num_micro). ``blocking``, of interleaved stages
    alone: a message leaves when its stage exchanges, which for a forward directly before a backward is after that
    backward.

    Raises ConfigError when the schedule waits for itself.
    """
    # Schedules that differ only in their memory limit (zb-h1 and zb-1p) share one cached graph.
    like = next(one for one in Schedule if (one.orders, one.placement) == (schedule.orders, schedule.placement))
    return _task_graph(like, shape, blocking=blocking)


@lru_cache(maxsize=512)
def _task_graph(schedule: Schedule, shape: tuple[int, int, int], *, blocking: bool) -> TaskGraph:
    pp, vpp, num_micro = shape
    orders = schedule.orders(shape)
    forwards_first = blocking and num_micro == pp
    if forwards_first:
        orders = [_forwards_first(order) for order in orders]
    tasks = _Columns.of(orders)
    needs = _needs(tasks, schedule.placement, (pp, vpp))
    if blocking and not forwards_first:
        # The result of such a forward leaves with that of the next task of its stage, the backward behind it.
        needs = np.where((needs >= 0) & tasks.leaves_late[needs], needs + 1, needs)
    level = _levels(tasks, needs)
    if level is None:
        allowed = f"{schedule.value} of {pp} stages and {vpp} chunks waits for itself; a multiple of {pp} does not"
        raise ConfigError(where="plan", key="num_micro", value=num_micro, allowed=allowed)
    # Sort rows by level and translate every column of rows; NONE, the last entry of ``place``, stays NONE.
    order = np.argsort(level, kind="stable")
    place = np.append(np.argsort(order), NONE)
    return TaskGraph(
        shape=(pp, schedule.placement.directions * vpp, num_micro),
        kind=tasks.kind[order],
        stage=tasks.stage[order],
        chunk=tasks.chunk[order],
        micro=tasks.micro[order],
        before=place[tasks.before[order]],
        needs=place[needs[:, order]],
        exchanges=tasks.exchanges[order] | forwards_first,
        level=level[order],
    )


def _forwards_first(order: list[Task]) -> list[Task]:
    """Returns all forwards, then all backwards: what interleaved stages with blocking messages run when there are as
    many micro-batches as stages (Megatron-LM v2.5, schedules.py, all_warmup_microbatches)."""
    return sorted(order, key=lambda task: task.kind is not TaskKind.FORWARD)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Columns:
    """Tasks stage by stage, in the order of each stage. ``beside`` are chunk and micro-batch of a pair's backward, of
    other tasks their own; ``first`` marks the first task of a stage."""

    kind: IntArray
    stage: IntArray
    chunk: IntArray
    micro: IntArray
    beside: tuple[IntArray, IntArray]
    first: BoolArray

    @staticmethod
    def of(orders: Sequence[list[Task]]) -> "_Columns":
        """Returns the orders of all stages as columns."""
        code = {kind: index for index, kind in enumerate(KINDS)}
        flat = [task for order in orders for task in order]
        sizes = np.array([len(order) for order in orders])
        besides = [task.beside or task for task in flat]
        first = np.zeros(len(flat), dtype=np.bool_)
        first[np.cumsum(sizes) - sizes] = True
        return _Columns(
            kind=ints([code[task.kind] for task in flat]),
            stage=np.repeat(np.arange(len(orders)), sizes).astype(np.int64),
            chunk=ints([task.chunk for task in flat]),
            micro=ints([task.micro for task in flat]),
            beside=(ints([task.chunk for task in besides]), ints([task.micro for task in besides])),
            first=first,
        )

    @property
    def before(self) -> IntArray:
        """Returns the row of the stage's previous task."""
        return np.where(self.first, NONE, np.arange(len(self.kind)) - 1).astype(np.int64)

    @property
    def leaves_late(self) -> BoolArray:
        """Returns which tasks are forwards directly before a backward."""
        return np.asarray((self.kind == FORWARD) & self._before_backward, dtype=np.bool_)

    @property
    def exchanges(self) -> BoolArray:
        """Returns whether messages travel after the task; those of a forward directly before a backward wait for it."""
        last = np.append(self.first[1:], True)
        return bools(~last & ((self.kind == BACKWARD) | ~self._before_backward))

    @property
    def _before_backward(self) -> BoolArray:
        return np.append((self.kind[1:] == BACKWARD) & ~self.first[1:], False)


def _needs(tasks: _Columns, placement: Placement, depth: tuple[int, int]) -> IntArray:
    """Returns (2, rows) the rows of other stages that each row waits for: for its forward and for its backward, NONE
    where it waits for none. A need on its own stage has to come earlier there; NEVER where it does not."""
    chunk, micro = tasks.beside
    forwards = np.flatnonzero((tasks.kind == FORWARD) | (tasks.kind == PAIR))
    backwards = np.flatnonzero((tasks.kind != FORWARD) & (tasks.kind != WEIGHT))
    pp, chunks, rows = depth[0], placement.directions * depth[1], np.arange(len(tasks.kind))
    # producer[direction, stage, chunk, micro]: the row whose result that is; direction 0 is forward, 1 backward.
    producer = np.full((2, pp, chunks, int(max(tasks.micro.max(), micro.max())) + 1), NEVER, dtype=np.int64)
    producer[0, tasks.stage[forwards], tasks.chunk[forwards], tasks.micro[forwards]] = forwards
    producer[1, tasks.stage[backwards], chunk[backwards], micro[backwards]] = backwards
    # source[direction, :, stage, chunk]: the (stage, chunk) that a micro-batch comes from, itself at the ends of the
    # chain.
    source = np.stack([np.indices((pp, chunks))] * 2)
    for chain in placement.chains(pp, depth[1]):
        for here, later in pairwise(chain):
            source[0, :, later[0], later[1]], source[1, :, here[0], here[1]] = here, later
    needs = np.full((2, len(rows)), NONE, dtype=np.int64)
    for direction, of_direction, its_chunk, its_micro in (
        (0, forwards, tasks.chunk, tasks.micro),
        (1, backwards, chunk, micro),
    ):
        stage, c, m = tasks.stage[of_direction], its_chunk[of_direction], its_micro[of_direction]
        from_stage, from_chunk = source[direction, :, stage, c].T
        end = (from_stage == stage) & (from_chunk == c)
        result = producer[direction, from_stage, from_chunk, m]
        # The first forward of a micro-batch needs nothing; its first backward the last forward, of the same chunk.
        result = np.where(end, NONE if direction == 0 else producer[0, stage, c, m], result)
        needs[direction, of_direction] = _on_other_stages(result, of_direction, from_stage == stage)
    # A weight gradient needs its own backward, on the same stage.
    weights = np.flatnonzero(tasks.kind == WEIGHT)
    backward = producer[1, tasks.stage[weights], tasks.chunk[weights], tasks.micro[weights]]
    needs[1, weights] = _on_other_stages(backward, weights, np.ones(len(weights), dtype=np.bool_))
    return needs


def _on_other_stages(needs: IntArray, rows: IntArray, same_stage: BoolArray) -> IntArray:
    """Returns ``needs`` of the ``rows`` with NONE for those that the order of their own stage meets, NEVER for those
    that come later on it."""
    met = np.where(needs < rows, NONE, NEVER)
    return np.where(same_stage & (needs != NEVER), met, needs).astype(np.int64)


def _levels(tasks: _Columns, needs: IntArray) -> IntArray | None:
    """Returns the length of the longest chain before each row, None where rows wait for each other.

    Every stage goes on along its order until a task waits for one without a level; then the next stage does. A turn of
    all stages that places no task is a deadlock.
    """
    first, second = needs.tolist()
    nexts = np.flatnonzero(tasks.first).tolist()
    ends = [*nexts[1:], len(first)]
    stage_level = [-1] * len(ends)
    # Indexed by NEVER (-2) and NONE (-1) a list gives its last two entries: without a level, and below all levels.
    level = [-1] * len(first) + [-2, -1]
    left = len(first)
    while left:
        before = left
        for stage, end in enumerate(ends):
            row, reached = nexts[stage], stage_level[stage]
            while row < end:
                one, other = first[row], second[row]
                one_level, other_level = level[one], level[other]
                if (one != NONE and one_level < 0) or (other != NONE and other_level < 0):
                    break
                reached = max(reached, one_level, other_level) + 1
                level[row] = reached
                row += 1
            left -= row - nexts[stage]
            nexts[stage], stage_level[stage] = row, reached
        if left == before:
            return None
    return ints(level[:-2])


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkTimes:
    """Seconds of one micro-batch through one chunk, arrays of shape (pp, chunks, N) for N plans; ``p2p_s`` has shape
    (N,).

    ``weight_s`` is 0 where the schedule does not split the backward; ``pair_s`` is what a forward of the chunk takes
    together with a backward of the stage's other chunk. ``blocking``: a stage computes nothing while it exchanges
    messages; ``post_validation``: it begins its next step as soon as it is done, not when all stages are.
    """

    forward_s: FloatArray
    backward_s: FloatArray
    weight_s: FloatArray
    p2p_s: FloatArray
    blocking: bool = False
    post_validation: bool = False
    pair_s: FloatArray | None = None

    def by_kind(self) -> FloatArray:
        """Returns the seconds of a task of each kind, of shape (len(KINDS), pp, chunks, N)."""
        pair_s = self.forward_s if self.pair_s is None else self.pair_s
        whole_s = self.backward_s + self.weight_s
        return np.stack([self.forward_s, self.backward_s, self.weight_s, whole_s, pair_s])

    def take(self, columns: slice | IntArray) -> "ChunkTimes":
        """Returns the times of some of the plans."""
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


def starts_and_ends(graph: TaskGraph, times: ChunkTimes) -> tuple[FloatArray, FloatArray]:
    """Returns when each task begins and ends, arrays of shape (len(graph), N)."""
    ends_s = np.concatenate([ends for _, _, ends in ends_side_by_side([(graph, times)])], axis=1)
    return ends_s - times.by_kind()[graph.kind, graph.stage, graph.chunk], ends_s


def first_and_last(graph: TaskGraph) -> tuple[list[int], list[int]]:
    """Returns the rows of each stage's first and last task, by stage."""
    firsts = np.flatnonzero(graph.before == NONE)
    lasts = np.setdiff1d(np.arange(len(graph)), graph.before)
    first, last = (rows[np.argsort(graph.stage[rows])].tolist() for rows in (firsts, lasts))
    return first, last


def ends_side_by_side(runs: Sequence[Run]) -> Iterator[tuple[int, slice, FloatArray]]:
    """Yields when each task ends, shape (len(graph), plans): for every run (its index), some of its plans at a time (a
    slice of its columns). At most MOST_CELLS are simulated at once."""
    most = max((times.p2p_s.shape[0] for _, times in runs), default=0)
    width = int(min(COLUMNS, 2 ** int(np.ceil(np.log2(max(most, 1))))))
    batch: list[tuple[int, slice]] = []
    cells = 0
    for index, (graph, times) in enumerate(runs):
        for low in range(0, times.p2p_s.shape[0], width):
            if batch and cells + len(graph) * width > MOST_CELLS:
                yield from _simulate(runs, batch, width)
                batch, cells = [], 0
            batch.append((index, slice(low, min(low + width, times.p2p_s.shape[0]))))
            cells += len(graph) * width
    if batch:
        yield from _simulate(runs, batch, width)


def _simulate(
    runs: Sequence[Run], parts: Sequence[tuple[int, slice]], width: int
) -> Iterator[tuple[int, slice, FloatArray]]:
    """Yields the ends of parts of runs, each a task graph with up to ``width`` columns, all levels in order.

    ``ends`` has the tasks of all graphs as rows, ordered by level. Row ``total`` is zero: the start of the step, which
    a task without a predecessor follows. Rows from ``total + 1`` on are the same ends with the message to the next
    stage behind them, so that a task on another stage looks ``total + 1`` rows further."""
    graphs = [runs[index][0] for index, _ in parts]
    times = [runs[index][1].take(columns) for index, columns in parts]
    sizes = np.array([len(one) for one in graphs])
    starts = np.cumsum(sizes) - sizes
    total = int(sizes.sum())
    level = np.concatenate([one.level for one in graphs])
    order = np.argsort(level, kind="stable")
    # place[row of all graphs one after another]: its row in ``ends``.
    place = np.append(np.argsort(order), total)

    def rows_of(columns: Sequence[IntArray]) -> IntArray:
        offset = [np.where(c == NONE, total, c + start) for c, start in zip(columns, starts, strict=True)]
        return ints(place[np.concatenate(offset)[order]])

    # A stage whose messages block waits for those of its previous task too.
    waits = np.concatenate(
        [(one.before != NONE) & one.exchanges[one.before] & of.blocking for one, of in zip(graphs, times, strict=True)]
    )
    before = rows_of([one.before for one in graphs]) + (total + 1) * waits[order]
    either = [np.where(one.needs[0] == NONE, one.needs[1], one.needs[0]) for one in graphs]
    # Only a pair waits for two messages: that of its forward and that of its backward.
    other = [np.where(one.needs[0] == NONE, NONE, one.needs[1]) for one in graphs]
    first, second = rows_of(either) + total + 1, rows_of(other) + total + 1
    # Seconds of every (kind, stage, chunk) of every graph, one below the other, and which of them each task takes.
    tables = [_pad_columns(of.by_kind().reshape(-1, of.p2p_s.shape[0]), width) for of in times]
    heights = np.array([len(table) for table in tables])
    seconds = np.concatenate(tables)
    which = np.concatenate(
        [
            start + (one.kind * one.shape[0] + one.stage) * one.shape[1] + one.chunk
            for one, start in zip(graphs, np.cumsum(heights) - heights, strict=True)
        ]
    )[order]
    p2p_s = np.concatenate([_pad_columns(of.p2p_s[None, :], width) for of in times])
    part = np.repeat(np.arange(len(parts)), sizes)[order]
    ends = np.zeros((2 * (total + 1), width))
    bounds = np.searchsorted(level[order], np.arange(int(level.max()) + 2)).tolist()
    has_pairs = any((rows != NONE).any() for rows in other)
    # The whole simulation: for every level the maximum of what its tasks wait for, plus their seconds.
    for low, high in pairwise(bounds):
        end = np.maximum(ends.take(before[low:high], axis=0), ends.take(first[low:high], axis=0))
        if has_pairs:
            np.maximum(end, ends.take(second[low:high], axis=0), out=end)
        end += seconds.take(which[low:high], axis=0)
        ends[low:high] = end
        np.add(end, p2p_s.take(part[low:high], axis=0), out=ends[total + 1 + low : total + 1 + high])
    for (index, columns), start, size in zip(parts, starts, sizes, strict=True):
        result = ends[place[start : start + size], : columns.stop - columns.start]
        yield index, columns, result


def _pad_columns(values: FloatArray, width: int) -> FloatArray:
    """Returns ``values`` with columns of zeros up to ``width``."""
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
        """Returns the rounds of the step that are not simulated when so many are; 0 for schedules without rounds."""
        pp, _, num_micro = self.shape
        if not self.schedule.traits.rounds:
            return 0
        return max((num_micro - simulated * pp) // pp, 0)

    def graph(self, simulated: int) -> TaskGraph:
        """Returns the task graph of that many rounds and of the micro-batches beyond the last whole round."""
        pp, vpp, num_micro = self.shape
        count = num_micro - self.rounds_left(simulated) * pp
        return task_graph(self.schedule, (pp, vpp, count), blocking=self.times.blocking)


def graph_spans_s(runs: Sequence[PipelineRun]) -> list[FloatArray]:
    """Returns for every run the seconds until each stage's last task ends, of shape (pp, N): from the start of the step
    or, with post-validation, from the stage's own first task."""
    result: list[FloatArray] = [np.zeros((one.shape[0], one.times.p2p_s.shape[0])) for one in runs]
    # Runs with their plans that are still to be simulated: all of them, then those that had not settled.
    waiting = [(index, np.arange(one.times.p2p_s.shape[0])) for index, one in enumerate(runs)]
    simulated = FIRST_ROUNDS
    while waiting:
        unsettled: list[tuple[int, IntArray]] = []
        parts = [(runs[index].graph(simulated), runs[index].times.take(plans)) for index, plans in waiting]
        for place, columns, ends in ends_side_by_side(parts):
            (index, plans), (graph, times) = waiting[place], parts[place]
            run = runs[index]
            first, last = first_and_last(graph)
            spans = ends[last]
            if run.times.post_validation:
                seconds = times.take(columns).by_kind()
                first_s = seconds[graph.kind[first], graph.stage[first], graph.chunk[first]]
                spans = spans - (ends[first] - first_s)
            rounds = run.rounds_left(simulated)
            if rounds:
                round_s = seconds_of_a_round(graph, ends, run.schedule.placement.directions)
                spans = spans + rounds * round_s
                if np.isnan(round_s).any():
                    unsettled.append((index, plans[columns][np.isnan(round_s)]))
            # Spans of plans that have not settled are NaN here, and are written again later.
            result[index][:, plans[columns]] = spans
        waiting, simulated = unsettled, 2 * simulated
    return result


def seconds_of_a_round(graph: TaskGraph, ends_s: FloatArray, directions: int) -> FloatArray:
    """Returns by how much later a step with one more round ends, NaN for the plans (columns of ``ends_s``) that have
    not settled. ``directions``: copies of the model that share a round's micro-batches."""
    rows, earlier = _settled_rows(graph, graph.shape[0] // directions)
    if not len(rows):
        return np.full(ends_s.shape[1], np.nan)
    later_s = ends_s[rows] - ends_s[earlier]
    least, most = later_s.min(axis=0), later_s.max(axis=0)
    return np.where(most - least <= ALIKE * most, most, np.nan)


@lru_cache(maxsize=512)
def _settled_rows(graph: TaskGraph, shift: int) -> tuple[IntArray, IntArray]:
    """Returns rows whose ends decide all that follows until a stage runs out of forwards, and for each the same task of
    ``shift`` micro-batches earlier; none where no levels repeat the order of earlier ones."""
    none = np.zeros(0, dtype=np.int64)
    # row_of[kind, stage, chunk, micro], and of each task the row of its counterpart a round earlier.
    row_of = np.full((int(graph.kind.max()) + 1, *graph.shape[:2], int(graph.micro.max()) + 1), NONE, dtype=np.int64)
    row_of[graph.kind, graph.stage, graph.chunk, graph.micro] = np.arange(len(graph))
    result = row_of[graph.kind, graph.stage, graph.chunk, np.maximum(graph.micro - shift, 0)]
    earlier = np.where(graph.micro >= shift, result, NONE)
    shifted = np.append(earlier, NONE)
    # A task is regular where its counterpart waits for the counterparts of what it waits for itself. ``back`` is how
    # many levels such a task looks back at most.
    regular = earlier != NONE
    back = 0
    for needed in (graph.before, *graph.needs):
        regular &= needed[earlier] == shifted[needed]
        regular &= (needed == NONE) == (shifted[needed] == NONE)
        back = max(back, int(np.where(regular & (needed != NONE), graph.level - graph.level[needed], 0).max()))
    regular &= graph.exchanges[graph.before] == graph.exchanges[graph.before[earlier]]
    # Beyond the level at which the first stage runs out of forwards a longer step would go on in another order.
    forwards = (graph.kind == FORWARD) | (graph.kind == PAIR)
    last = min(int(graph.level[forwards & (graph.stage == stage)].max()) for stage in range(graph.shape[0]))
    odd = np.unique(np.append(graph.level[~regular & (graph.level <= last)], NONE))
    # The last run of levels without an irregular task that is at least ``back`` long: its last ``back`` levels are all
    # that later tasks look back at.
    ends = np.append(odd[1:], last + 1) - 1
    long = np.flatnonzero(ends - odd >= back)
    if not len(long):
        return none, none
    rows = np.flatnonzero((graph.level > ends[long[-1]] - back) & (graph.level <= ends[long[-1]]))
    return rows, earlier[rows]
