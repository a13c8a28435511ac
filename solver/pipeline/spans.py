"""How long every stage of every plan takes in one step, working or waiting, under any schedule.

Three ways lead there, from the cheapest:

    one stage     micro-batches x seconds of both passes; nothing waits
    plain 1F1B    ``replay_1f1b_s``: all plans of one depth at once, one array operation a round
    the others    a task graph (solver.pipeline.simulation)

Plans that differ in sharding, buckets or memory alone have the same pipeline, which is simulated once
(``first_alike``). ``least_spans_s`` is the bound in closed form that keeps most plans of a search from being simulated.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from solver.pipeline.simulation import ChunkTimes, PipelineRun, graph_spans_s
from solver.pipeline.stages import PassTimes, StageTable
from solver.plans.plan_table import PlanTable
from solver.plans.schedules import Schedule
from spec.arrays import BoolArray, FloatArray, IntArray, bools

SETTLED_ROUNDS = 6
"""Micro-batches for each stage that 1F1B is replayed for at least, where there are as many."""
LONGEST_REPLAY = 512
"""Micro-batches that 1F1B is replayed for at most, but for deep pipelines; the rest is added at the settled period."""
ALIKE = 1e-13
"""Relative difference up to which ends count as a period apart: rounding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class P2PTimes:
    """What a stage waits for besides its passes: ``seconds`` of one message to the next stage, for every plan.

    ``blocking``: interleaved stages compute nothing while their messages travel. ``post_validation``: a stage whose
    backwards are split begins its next step as soon as it is done, not when all stages are.
    """

    seconds: FloatArray
    blocking: bool = False
    post_validation: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineBatch:
    """Pipelines of the ``selected`` plans of a table, None for all; ``passes`` has a row for every row of
    ``stages.chunks``."""

    plans: PlanTable
    stages: StageTable
    passes: PassTimes
    p2p: P2PTimes
    selected: BoolArray | None = None


def stage_spans_s(
    plans: PlanTable, stages: StageTable, passes: PassTimes, p2p: P2PTimes, *, selected: BoolArray | None = None
) -> FloatArray:
    """Returns ``spans_of`` one table."""
    return spans_of([PipelineBatch(plans=plans, stages=stages, passes=passes, p2p=p2p, selected=selected)])[0]


def spans_of(tables: Sequence[PipelineBatch]) -> list[FloatArray]:
    """Returns for every table the seconds from the start of the step to the end of each stage row's last work; 0 for
    plans that are not ``selected``.

    With post-validation (arXiv 2401.10241 sec. 4) a stage's step starts with its own first work.
    """
    spans: list[FloatArray] = []
    simulated: list[tuple[PipelineBatch, IntArray, FloatArray]] = []
    for one in tables:
        plans, plan = one.plans, one.stages.plan
        selected = np.ones(len(plans), dtype=np.bool_) if one.selected is None else one.selected
        single = (plans.layout.pp * plans.vpp == 1) & plans.schedule.placement.looped
        # A stage row of one chunk: its chunk row is where its chunks start.
        pass_s = (one.passes.forward_s + one.passes.backward_s)[one.stages.chunk_starts]
        spans.append(np.where((selected & single)[plan], plans.num_micro[plan] * pass_s, 0.0))
        if (selected & ~single).any():
            simulated.append((one, np.flatnonzero(selected & ~single).astype(np.int64), spans[-1]))
    if simulated:
        _simulate(simulated)
    return spans


@dataclass(frozen=True, slots=True, kw_only=True)
class _Group:
    """Pipelines of one ``shape`` (pp, vpp, num_micro; num_micro is 0 for plain 1F1B, where plans of any number are
    together). The columns of ``times`` are the ``plan_rows`` of the table, ``spans`` the array that results go to."""

    table: PipelineBatch
    shape: tuple[int, int, int]
    plan_rows: IntArray
    times: ChunkTimes
    spans: FloatArray

    def store(self, by_stage: FloatArray) -> None:
        """Writes the spans of every stage, shape (pp, N), into their stage rows."""
        stages = self.table.stages
        rows = stages.rows(self.plan_rows)
        # A row stands for a run of equal stages; the first of them ends last.
        self.spans[rows] = by_stage[stages.position[rows], np.searchsorted(self.plan_rows, stages.plan[rows])]


def _simulate(tables: Sequence[tuple[PipelineBatch, IntArray, FloatArray]]) -> None:
    """Writes the spans of these plans of each table into its array."""
    # Of plans with equal pipelines the first alone is simulated; the last loop below copies its spans to the others.
    first = [first_alike(one.plans, one.stages, one.passes, one.p2p.seconds, plans) for one, plans, _ in tables]
    groups = [
        group
        for (one, _, spans), alike in zip(tables, first, strict=True)
        for group in _groups(one, np.unique(alike), spans)
    ]
    with_graph = [one for one in groups if one.shape[2]]
    runs = [PipelineRun(schedule=one.table.plans.schedule, shape=one.shape, times=one.times) for one in with_graph]
    for group, by_stage in zip(with_graph, graph_spans_s(runs), strict=True):
        group.store(by_stage)
    # Plain 1F1B: all plans of a depth, of all tables, are columns of one replay.
    for depth in {one.shape[0] for one in groups if not one.shape[2]}:
        members = [one for one in groups if (one.shape[0], one.shape[2]) == (depth, 0)]
        ends_s = replay_1f1b_s(
            np.concatenate([one.times.forward_s[:, 0] for one in members], axis=1),
            np.concatenate([one.times.backward_s[:, 0] for one in members], axis=1),
            np.concatenate([one.times.p2p_s for one in members]),
            np.concatenate([one.table.plans.num_micro[one.plan_rows] for one in members]),
        )
        bounds = np.cumsum([len(one.plan_rows) for one in members])[:-1]
        for group, by_stage in zip(members, np.split(ends_s, bounds, axis=1), strict=True):
            group.store(by_stage)
    for (one, plans, spans), alike in zip(tables, first, strict=True):
        spans[one.stages.rows(plans)] = spans[one.stages.rows(alike)]


def _groups(table: PipelineBatch, plans: IntArray, spans: FloatArray) -> Iterator[_Group]:
    """Plans by the shape of their pipeline, plain 1F1B by its depth alone."""
    of, stages, schedule = table.plans, table.stages, table.plans.schedule
    plain = (schedule is Schedule.ONE_F_ONE_B) & (of.vpp == 1)
    shapes = np.stack([of.layout.pp, of.vpp, np.where(plain, 0, of.num_micro)])
    distinct, shape_of = np.unique(shapes[:, plans], axis=1, return_inverse=True)
    for index, (depth, vpp, num_micro) in enumerate(distinct.T.tolist()):
        of_shape = plans[shape_of.reshape(-1) == index].astype(np.int64)
        rows = stages.rows(of_shape)
        # One column per plan: its classes repeated by how many stages each stands for.
        per_stage = np.repeat(rows, stages.count[rows]).reshape(len(of_shape), depth).T
        chunks = np.arange(schedule.placement.directions * vpp)
        passes = table.passes.take(stages.chunk_starts[per_stage][:, None, :] + chunks[None, :, None])
        yield _Group(
            table=table,
            shape=(depth, vpp, num_micro),
            plan_rows=of_shape,
            times=chunk_times(schedule, passes, replace(table.p2p, seconds=table.p2p.seconds[of_shape])),
            spans=spans,
        )


def chunk_times(schedule: Schedule, passes: PassTimes, p2p: P2PTimes) -> ChunkTimes:
    """Returns the passes of every chunk, arrays of shape (pp, vpp, N), as a task graph takes them: weight gradients
    apart where the schedule splits backwards."""
    split = schedule.traits.splits_backward
    # Only Megatron-LM's interleaved 1F1B waits for messages between chunks.
    interleaved = passes.forward_s.shape[1] > 1 and schedule.traits.rounds and schedule.placement.looped
    return ChunkTimes(
        forward_s=passes.forward_s,
        backward_s=passes.backward_s - (passes.weight_s if split else 0.0),
        weight_s=passes.weight_s if split else np.zeros_like(passes.weight_s),
        p2p_s=p2p.seconds,
        blocking=p2p.blocking and interleaved,
        post_validation=p2p.post_validation and split,
        pair_s=passes.pair_s,
    )


def first_alike(
    plans: PlanTable, stages: StageTable, passes: PassTimes, p2p_s: FloatArray, plan_rows: IntArray
) -> IntArray:
    """Returns for each of the ``plan_rows`` the first of them with the same shape, passes and messages.

    Pipelines are compared by a 64-bit hash that is then checked against their numbers; on a collision every plan is
    its own.
    """
    rows, of = stages.chunk_rows(plan_rows)
    begins = np.searchsorted(of, np.arange(len(plan_rows)))
    numbers = [passes.forward_s, passes.backward_s, passes.weight_s]
    numbers += [] if passes.pair_s is None else [passes.pair_s]
    # The chunk's place goes into its hash, so that a sum over the chunks of a plan depends on their order.
    place = (np.arange(len(rows)) - begins[of]).astype(np.uint64)
    chunks = row_hashes([place, *(_bits(one[rows]) for one in numbers)])
    shape = (plans.layout.pp, plans.vpp, plans.num_micro)
    whole = [np.add.reduceat(chunks, begins), _bits(p2p_s[plan_rows])]
    keys = row_hashes([*whole, *(one[plan_rows].astype(np.uint64) for one in shape)])
    _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    alike: IntArray = plan_rows[first[inverse.reshape(-1)]]
    # The check: what hashes say is equal is equal, number by number.
    others, of_others = stages.chunk_rows(alike)
    same = np.array_equal(of, of_others)
    same = same and all(np.array_equal(one[plan_rows], one[alike]) for one in (p2p_s, *shape))
    return alike if same and all(np.array_equal(one[rows], one[others]) for one in numbers) else plan_rows


def _bits(values: FloatArray) -> NDArray[np.uint64]:
    return np.ascontiguousarray(values, dtype=np.float64).view(np.uint64)


def period_1f1b(forward_s: FloatArray, backward_s: FloatArray, p2p_s: FloatArray) -> tuple[FloatArray, IntArray]:
    """Returns the seconds that a further micro-batch adds to 1F1B pipelines that have settled, and the number of
    micro-batches after which each pipeline repeats itself.

    A cycle of dependencies runs forward through stages i..j and back: j - i + 1 micro-batches advance
    while their forwards, backwards and 2 (j - i) messages pass, so the slowest contiguous run of stages
    decides: max over i <= j of (sum(f + b) + 2 (j - i) p2p) / (j - i + 1).
    """
    work = forward_s + backward_s
    # Prefix sums over stages: the work of stages i..j is total[j + 1] - total[i].
    total = np.concatenate([np.zeros((1, work.shape[1])), np.cumsum(work, axis=0)])
    longest: FloatArray = work.max(axis=0)
    widths = np.ones(work.shape[1], dtype=np.int64)
    for width in range(2, len(work) + 1):
        window = (total[width:] - total[:-width]).max(axis=0)
        mean = (window + 2.0 * (width - 1) * p2p_s) / width
        widths[mean > longest] = width
        longest = np.maximum(longest, mean)
    return longest, widths


def replay_1f1b_s(forward_s: FloatArray, backward_s: FloatArray, p2p_s: FloatArray, num_micro: IntArray) -> FloatArray:
    """Returns the seconds from the start of the step to each stage's last backward, shape (pp, N), of N pipelines of
    one depth. Passes of one micro-batch have shape (pp, N), ``p2p_s`` of a message and ``num_micro``, at least 1, (N,).

    Stage s of p warms up with w = p - s forwards, then runs one backward and one forward in turn: in round k every
    stage runs forward k and then backward k - w + 1. When each stage ended its last work decides all that follows. So
    a pipeline whose ends are exactly a period later than a period ago repeats that until its forwards run out: whole
    periods are skipped and added at the end. Beyond ``LONGEST_REPLAY`` micro-batches the rest is added at the settled
    period.
    """
    depth, plans = forward_s.shape
    simulated = np.minimum(num_micro, np.maximum(LONGEST_REPLAY, SETTLED_ROUNDS * depth))
    period_s, period = period_1f1b(forward_s, backward_s, p2p_s)
    stages = np.arange(depth)[:, None]
    warmup = depth - stages
    # The forward of stage s ends no earlier than free[r] + the work and messages from r to s, for all r <= s. With
    # prefix sums ``chain`` that is one running maximum over stages.
    chain = np.cumsum(forward_s + np.where(stages > 0, p2p_s, 0.0), axis=0)
    before = chain - forward_s
    free = np.zeros((depth, plans))
    backward_end = np.full((depth, plans), -np.inf)
    history: list[FloatArray] = []
    turn = 0
    while turn < int(simulated.max(initial=0)) + depth:
        forward_end = chain + np.maximum.accumulate(free - before, axis=0)
        free = np.where(turn < simulated, forward_end, free)
        # Gradients come from the stage behind; the last stage makes its own from the loss.
        arrival = np.vstack([backward_end[1:] + p2p_s, np.full((1, plans), -np.inf)])
        end = np.maximum(free, arrival) + backward_s
        micro = turn - warmup + 1
        runs = (micro >= 0) & (micro < simulated)
        backward_end = np.where(runs, end, backward_end)
        free = np.where(runs, end, free)
        # From turn depth - 1 on all stages run both passes. A period is at most ``depth`` turns, so as many are cached.
        if turn >= depth - 1:
            history = [*history[-depth:], backward_end]
            if len(history) > depth and turn % depth == 0:
                settled = _repeats(np.stack(history), period_s, period)
                # ``simulated`` shrinks by the periods that are skipped, and the return adds their seconds.
                periods = np.where(settled, (simulated - 1 - turn) // period, 0)
                simulated = simulated - np.maximum(periods, 0) * period
        turn += 1
    return np.asarray(backward_end + (num_micro - simulated) * period_s, dtype=np.float64)


def _repeats(ends: FloatArray, period_s: FloatArray, period: IntArray) -> BoolArray:
    """Returns which pipelines end their work of this turn, the last of ``ends`` (turns, pp, N), exactly a period later
    than that of a period ago."""
    ago = ends[len(ends) - 1 - period, :, np.arange(ends.shape[2])].T
    off = np.abs(ends[-1] - ago - period_s * period)
    return bools((off <= ALIKE * ends[-1]).all(axis=0))


def least_spans_s(
    plans: PlanTable, stages: StageTable, passes: PassTimes, p2p: P2PTimes, busy_s: FloatArray
) -> FloatArray:
    """Returns a lower bound of the span of each stage row (stage_spans_s), in seconds. ``busy_s`` is the row's own work
    of a step, ``passes`` has a row for every chunk.

    Where virtual stages go round and round and backwards are whole: a stage begins when the first chunks of those
    before it have passed a micro-batch on, its last work is a backward, and the first chunks of those before it still
    have to run theirs. With equal stages and free messages that is (m + (p - 1) / v) (f + b) of the first stage
    (arXiv 2104.04473 sec. 2.2). Other schedules: the stage's own work.
    """
    if not plans.schedule.placement.looped or plans.schedule.traits.splits_backward:
        return busy_s
    first = passes.take(stages.chunk_starts)
    p2p_s = p2p.seconds[stages.plan]
    # To the last stage of a row's class: that one waits longest and leaves most to be done.
    fill_s = _before(first.forward_s, stages) + (stages.count - 1) * first.forward_s
    drain_s = _before(first.backward_s, stages) + (stages.count - 1) * first.backward_s
    messages_s = (stages.position + stages.count - 1) * p2p_s
    # The first stage ends last: of every stage, the way there, its work, and the way back.
    round_trip_s = np.maximum.reduceat(fill_s + drain_s + 2.0 * messages_s + busy_s, stages.starts)
    one_way_s = _before(first.forward_s, stages) + stages.position * p2p_s + busy_s
    return np.where(stages.position == 0, round_trip_s[stages.plan], one_way_s)


def _before(seconds: FloatArray, stages: StageTable) -> FloatArray:
    """Returns the sum over all stages of the plan before those of each row."""
    of_row = seconds * stages.count
    total = np.cumsum(of_row) - of_row
    first: IntArray = stages.starts[stages.plan]
    return np.asarray(total - total[first], dtype=np.float64)


MIX = np.uint64(0x9E3779B97F4A7C15)
"""2**64 / golden ratio, made odd: the multiplier of Fibonacci hashing (Knuth, TAOCP vol. 3, 6.4)."""


def row_hashes(columns: Sequence[NDArray[np.uint64]]) -> NDArray[np.uint64]:
    """Returns a 64-bit hash of every row of ``columns``, all of one length."""
    mixed = np.zeros(columns[0].shape[0], dtype=np.uint64)
    for column in columns:
        # Multiply and shift, so that high bits reach the low ones, as in SplitMix64.
        mixed = (mixed ^ column) * MIX
        mixed ^= mixed >> np.uint64(29)
    return mixed
