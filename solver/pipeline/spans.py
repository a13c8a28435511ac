"""How long every stage of every plan is busy or waiting in one step, whatever its schedule.

A plan of one stage is busy with its micro-batches and waits for nobody. Plain 1F1B has a simulation of its own that takes
all plans of a depth at once (``replay_1f1b_s``); every other schedule runs as a program (solver.pipeline.simulation).
Plans that differ in sharding, buckets or memory alone have one and the same pipeline, which is simulated once.
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
LONGEST_REPLAY = 512
ALIKE = 1e-13
"""Relative, by how much ends may differ from being a period apart: rounding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class P2PTimes:
    """What a stage waits for beside its passes: the seconds of one message to the next stage for every plan,
    whether interleaved stages wait for their messages (``blocking``) or compute beside them, and whether a stage
    whose backwards are split begins its next step as soon as it is done (``post_validation``) or when all are."""

    seconds: FloatArray
    blocking: bool = False
    post_validation: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Piped:
    """Pipelines of the plans ``which`` of a table, None for all; ``passes`` has a row for every row of
    ``stages.chunks``."""

    plans: PlanTable
    stages: StageTable
    passes: PassTimes
    p2p: P2PTimes
    which: BoolArray | None = None


def stage_spans_s(
    plans: PlanTable, stages: StageTable, passes: PassTimes, p2p: P2PTimes, *, which: BoolArray | None = None
) -> FloatArray:
    """``spans_of`` of one table."""
    return spans_of([Piped(plans=plans, stages=stages, passes=passes, p2p=p2p, which=which)])[0]


def spans_of(tables: Sequence[Piped]) -> list[FloatArray]:
    """For every table, seconds from the start of the step to the end of each stage row's last work; 0 for plans that are
    not among ``which``.

    Where a stage begins its next step as soon as it is done, from the row's own first work (post-validation, arXiv
    2401.10241 sec. 4).
    """
    spans: list[FloatArray] = []
    simulated: list[tuple[Piped, IntArray, FloatArray]] = []
    for one in tables:
        plans, plan = one.plans, one.stages.plan
        which = np.ones(len(plans), dtype=np.bool_) if one.which is None else one.which
        single = (plans.layout.pp * plans.vpp == 1) & plans.schedule.placement.looped
        pass_s = (one.passes.forward_s + one.passes.backward_s)[one.stages.chunk_starts]
        spans.append(np.where((which & single)[plan], plans.num_micro[plan] * pass_s, 0.0))
        if (which & ~single).any():
            simulated.append((one, np.flatnonzero(which & ~single).astype(np.int64), spans[-1]))
    if simulated:
        _simulate(simulated)
    return spans


@dataclass(frozen=True, slots=True, kw_only=True)
class _Group:
    """Pipelines of one ``shape`` (pp, vpp, num_micro; 0 micro-batches for plain 1F1B, of any number): the columns of
    ``times`` are the plans ``chosen``, whose stages' spans go into ``spans``."""

    table: Piped
    shape: tuple[int, int, int]
    chosen: IntArray
    times: ChunkTimes
    spans: FloatArray

    def store(self, by_stage: FloatArray) -> None:
        """Write the spans of every stage, shape (pp, N), into the rows of their classes, of which the first stage ends
        last."""
        stages = self.table.stages
        rows = stages.rows(self.chosen)
        self.spans[rows] = by_stage[stages.position[rows], np.searchsorted(self.chosen, stages.plan[rows])]


def _simulate(tables: Sequence[tuple[Piped, IntArray, FloatArray]]) -> None:
    """Write the spans of these plans of each table into its array: of plain 1F1B all pipelines of a depth at once, of
    programs all at once."""
    first = [first_alike(one.plans, one.stages, one.passes, one.p2p.seconds, plans) for one, plans, _ in tables]
    groups = [
        group
        for (one, _, spans), alike in zip(tables, first, strict=True)
        for group in _groups(one, np.unique(alike), spans)
    ]
    programs = [one for one in groups if one.shape[2]]
    runs = [PipelineRun(schedule=one.table.plans.schedule, shape=one.shape, times=one.times) for one in programs]
    for group, by_stage in zip(programs, graph_spans_s(runs), strict=True):
        group.store(by_stage)
    for depth in {one.shape[0] for one in groups if not one.shape[2]}:
        members = [one for one in groups if (one.shape[0], one.shape[2]) == (depth, 0)]
        ends_s = replay_1f1b_s(
            np.concatenate([one.times.forward_s[:, 0] for one in members], axis=1),
            np.concatenate([one.times.backward_s[:, 0] for one in members], axis=1),
            np.concatenate([one.times.p2p_s for one in members]),
            np.concatenate([one.table.plans.num_micro[one.chosen] for one in members]),
        )
        bounds = np.cumsum([len(one.chosen) for one in members])[:-1]
        for group, by_stage in zip(members, np.split(ends_s, bounds, axis=1), strict=True):
            group.store(by_stage)
    for (one, plans, spans), alike in zip(tables, first, strict=True):
        spans[one.stages.rows(plans)] = spans[one.stages.rows(alike)]


def _groups(table: Piped, plans: IntArray, spans: FloatArray) -> Iterator[_Group]:
    """Plans by the shape of their pipeline, plain 1F1B by its depth alone."""
    of, stages, schedule = table.plans, table.stages, table.plans.schedule
    plain = (schedule is Schedule.ONE_F_ONE_B) & (of.vpp == 1)
    shapes = np.stack([of.layout.pp, of.vpp, np.where(plain, 0, of.num_micro)])
    alike, shape_of = np.unique(shapes[:, plans], axis=1, return_inverse=True)
    for index, (depth, vpp, num_micro) in enumerate(alike.T.tolist()):
        chosen = plans[shape_of.reshape(-1) == index].astype(np.int64)
        rows = stages.rows(chosen)
        # One column per plan: its classes repeated by how many stages each stands for.
        per_stage = np.repeat(rows, stages.count[rows]).reshape(len(chosen), depth).T
        chunks = np.arange(schedule.placement.chunks(vpp))
        passes = table.passes.take(stages.chunk_starts[per_stage][:, None, :] + chunks[None, :, None])
        yield _Group(
            table=table,
            shape=(depth, vpp, num_micro),
            chosen=chosen,
            times=chunk_times(schedule, passes, replace(table.p2p, seconds=table.p2p.seconds[chosen])),
            spans=spans,
        )


def chunk_times(schedule: Schedule, passes: PassTimes, p2p: P2PTimes) -> ChunkTimes:
    """Passes of every chunk (arrays of shape (pp, vpp, N)) as a program takes them; weight gradients apart
    where the schedule has them so. Megatron-LM alone waits for messages between chunks, and runs no other
    schedule of them."""
    split = schedule.splits_backward
    takes_turns = passes.forward_s.shape[1] > 1 and schedule.traits.rounds and schedule.placement.looped
    return ChunkTimes(
        forward_s=passes.forward_s,
        backward_s=passes.backward_s - (passes.weight_s if split else 0.0),
        weight_s=passes.weight_s if split else np.zeros_like(passes.weight_s),
        p2p_s=p2p.seconds,
        blocking=p2p.blocking and takes_turns,
        post_validation=p2p.post_validation and split,
        pair_s=passes.pair_s,
    )


def first_alike(
    plans: PlanTable, stages: StageTable, passes: PassTimes, p2p_s: FloatArray, chosen: IntArray
) -> IntArray:
    """For each of the plans ``chosen`` the first of them with the same shape, passes and messages.

    Pipelines are told apart by a 64-bit hash that is then checked against their numbers; on a collision every plan is
    its own.
    """
    rows, of = stages.chunk_rows(chosen)
    begins = np.searchsorted(of, np.arange(len(chosen)))
    numbers = [passes.forward_s, passes.backward_s, passes.weight_s]
    numbers += [] if passes.pair_s is None else [passes.pair_s]
    place = (np.arange(len(rows)) - begins[of]).astype(np.uint64)
    chunks = row_hashes([place, *(_bits(one[rows]) for one in numbers)])
    shape = (plans.layout.pp, plans.vpp, plans.num_micro)
    whole = [np.add.reduceat(chunks, begins), _bits(p2p_s[chosen])]
    keys = row_hashes([*whole, *(one[chosen].astype(np.uint64) for one in shape)])
    _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    alike: IntArray = chosen[first[inverse.reshape(-1)]]
    others, of_others = stages.chunk_rows(alike)
    same = np.array_equal(of, of_others)
    same = same and all(np.array_equal(one[chosen], one[alike]) for one in (p2p_s, *shape))
    return alike if same and all(np.array_equal(one[rows], one[others]) for one in numbers) else chosen


def _bits(values: FloatArray) -> NDArray[np.uint64]:
    return np.ascontiguousarray(values, dtype=np.float64).view(np.uint64)


def period_1f1b(forward_s: FloatArray, backward_s: FloatArray, p2p_s: FloatArray) -> tuple[FloatArray, IntArray]:
    """Seconds for a micro-batch of 1F1B pipelines that have settled, and after how many each is again where it was.

    A cycle of dependencies runs forward through stages i..j and back: j - i + 1 micro-batches advance
    while their forwards, backwards and 2 (j - i) messages pass, so the slowest contiguous run of stages
    decides: max over i <= j of (sum(f + b) + 2 (j - i) hop) / (j - i + 1).
    """
    work = forward_s + backward_s
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
    """Seconds after the step began at which each stage ends its last backward, shape (pp, N), of N pipelines of one
    depth: seconds of one micro-batch, shape (pp, N), and of a message from one stage to the next, shape (N,).

    ``num_micro`` has length N and each entry is at least 1. Stage s of p warms up with w = p - s forwards,
    then runs one backward and one forward in turn: in round k every stage runs forward k and then backward k
    - w + 1. What a stage does next depends on when all stages ended their last work alone, so a pipeline
    whose ends are whole periods later than those periods before repeats that until its forwards run out:
    whole periods are left out and added. Beyond ``LONGEST_REPLAY`` micro-batches the rest is added at the
    settled period.
    """
    depth, plans = forward_s.shape
    simulated = np.minimum(num_micro, np.maximum(LONGEST_REPLAY, SETTLED_ROUNDS * depth))
    period_s, period = period_1f1b(forward_s, backward_s, p2p_s)
    stages = np.arange(depth)[:, None]
    warmup = depth - stages
    # A forward chain: forward of stage s ends no earlier than free[r] + the work and messages from r to s.
    chain = np.cumsum(forward_s + np.where(stages > 0, p2p_s, 0.0), axis=0)
    before = chain - forward_s
    free = np.zeros((depth, plans))
    backward_end = np.full((depth, plans), -np.inf)
    history: list[FloatArray] = []
    turn = 0
    while turn < int(simulated.max(initial=0)) + depth:
        forward_end = chain + np.maximum.accumulate(free - before, axis=0)
        free = np.where(turn < simulated, forward_end, free)
        arrival = np.vstack([backward_end[1:] + p2p_s, np.full((1, plans), -np.inf)])
        end = np.maximum(free, arrival) + backward_s
        micro = turn - warmup + 1
        runs = (micro >= 0) & (micro < simulated)
        backward_end = np.where(runs, end, backward_end)
        free = np.where(runs, end, free)
        # From turn depth - 1 on all stages run both; of the last ``depth`` turns and this one the ends are kept.
        if turn >= depth - 1:
            history = [*history[-depth:], backward_end]
            if len(history) > depth and turn % depth == 0:
                again = _repeats(np.stack(history), period_s, period)
                periods = np.where(again, (simulated - 1 - turn) // period, 0)
                simulated = simulated - np.maximum(periods, 0) * period
        turn += 1
    return np.asarray(backward_end + (num_micro - simulated) * period_s, dtype=np.float64)


def _repeats(ends: FloatArray, period_s: FloatArray, period: IntArray) -> BoolArray:
    """Pipelines whose ``ends`` of this turn, the last of all (turns, pp, N), are a whole period later than a
    period ago.
    """
    ago = ends[len(ends) - 1 - period, :, np.arange(ends.shape[2])].T
    off = np.abs(ends[-1] - ago - period_s * period)
    return bools((off <= ALIKE * ends[-1]).all(axis=0))


def least_spans_s(
    plans: PlanTable, stages: StageTable, passes: PassTimes, p2p: P2PTimes, busy_s: FloatArray
) -> FloatArray:
    """Seconds that the span of each stage row (solver.pipeline.spans.stage_spans_s) takes at least; ``busy_s`` is the
    row's own work of a step, ``passes`` has a row for every chunk.

    Where stages follow each other round and round and backwards are whole: a stage begins when the first chunks of
    those before it have passed a micro-batch on, its last work is a backward, and the first chunks of those before
    it still have to run theirs. With equal stages and free messages that is (m + (p - 1) / v) (f + b) of the first stage
    (arXiv 2104.04473 sec. 2.2). Other schedules: the stage's own work.
    """
    if not plans.schedule.placement.looped or plans.schedule.splits_backward:
        return busy_s
    first = passes.take(stages.chunk_starts)
    p2p_s = p2p.seconds[stages.plan]
    # To the last stage of a row's class: that one waits longest and leaves most to be done.
    fill_s = _before(first.forward_s, stages) + (stages.count - 1) * first.forward_s
    drain_s = _before(first.backward_s, stages) + (stages.count - 1) * first.backward_s
    crossed_s = (stages.position + stages.count - 1) * p2p_s
    through_s = np.maximum.reduceat(fill_s + drain_s + 2.0 * crossed_s + busy_s, stages.starts)
    own_s = _before(first.forward_s, stages) + stages.position * p2p_s + busy_s
    return np.where(stages.position == 0, through_s[stages.plan], own_s)


def _before(seconds: FloatArray, stages: StageTable) -> FloatArray:
    """Sum over all stages of the plan before those of each row."""
    of_row = seconds * stages.count
    total = np.cumsum(of_row) - of_row
    first: IntArray = stages.starts[stages.plan]
    return np.asarray(total - total[first], dtype=np.float64)


MIX = np.uint64(0x9E3779B97F4A7C15)
"""2**64 / golden ratio, made odd: the multiplier of Fibonacci hashing (Knuth, TAOCP vol. 3, 6.4)."""


def row_hashes(columns: Sequence[NDArray[np.uint64]]) -> NDArray[np.uint64]:
    """A 64-bit hash of every row of ``columns``, all of one length."""
    mixed = np.zeros(columns[0].shape[0], dtype=np.uint64)
    for column in columns:
        mixed = (mixed ^ column) * MIX
        mixed ^= mixed >> np.uint64(29)
    return mixed
