"""How long every stage of every plan is busy or waiting in one step, whatever its schedule.

Plain 1F1B has a replay of its own that takes all plans of a depth at once (solver.pipeline.replay_1f1b); every
other schedule runs as a program (solver.pipeline.program, solver.pipeline.settled).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from solver.pipeline import settled
from solver.pipeline.pass_times import PassTimes
from solver.pipeline.replay_1f1b import StageTimes, replay_1f1b_s
from solver.pipeline.shared_pipelines import first_alike, rows_between
from solver.pipeline.side_by_side import ChunkTimes
from solver.pipeline.stages import StageTable
from solver.plans.plan_table import PlanTable
from solver.schedules.registry import Schedule
from spec.arrays import BoolArray, FloatArray, IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Hops:
    """What a stage waits for beside its passes: the seconds of one message to the next stage for every plan,
    whether interleaved stages wait for their messages (``waited``) or compute beside them, and whether a stage
    whose backwards are split begins its next step as soon as it is done (``updates_apart``) or when all are."""

    seconds: FloatArray
    waited: bool = False
    updates_apart: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Piped:
    """Pipelines asked for: those of the plans ``which`` of a table, None for all; ``passes`` has a row for every row of
    ``stages.chunks``."""

    plans: PlanTable
    stages: StageTable
    passes: PassTimes
    hops: Hops
    which: BoolArray | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Alike:
    """Pipelines of one shape in a table: the columns of ``passes`` (pp, chunks, N) are the plans ``chosen``."""

    table: int
    shape: tuple[int, int, int]
    chosen: IntArray
    passes: PassTimes
    hops: Hops


def stage_spans_s(
    plans: PlanTable, stages: StageTable, passes: PassTimes, hops: Hops, *, which: BoolArray | None = None
) -> FloatArray:
    """``spans_of`` of one table."""
    return spans_of([Piped(plans=plans, stages=stages, passes=passes, hops=hops, which=which)])[0]


def spans_of(asked: Sequence[Piped]) -> list[FloatArray]:
    """For every table, seconds from the start of the step to the end of each stage row's last work; 0 for plans not
    asked for.

    Where a stage begins its next step as soon as it is done, from the row's own first work (post-validation, arXiv
    2401.10241 sec. 4).
    """
    plans_played = [_played(one) for one in asked]
    first = [
        first_alike(one.plans, one.stages, one.passes, one.hops.seconds, played) if len(played) else played
        for one, played in zip(asked, plans_played, strict=True)
    ]
    alike = [
        one
        for place, (of, alike_to) in enumerate(zip(asked, first, strict=True))
        for one in _by_shape(place, of, np.unique(alike_to))
    ]
    spans: list[FloatArray] = [np.zeros(len(one.stages.plan)) for one in asked]
    for one, by_stage in zip(alike, _by_stage(asked, alike), strict=True):
        stages = asked[one.table].stages
        rows = _rows_of(one.chosen, stages)
        # Within a class the first stage ends last.
        column = np.searchsorted(one.chosen, stages.plan[rows])
        spans[one.table][rows] = by_stage[stages.position[rows], column]
    for span_s, played, alike_to, table in zip(spans, plans_played, first, asked, strict=True):
        span_s[_rows_of(played, table.stages)] = span_s[_rows_of(alike_to, table.stages)]
    return spans


def _played(asked: Piped) -> IntArray:
    """The plans asked for."""
    which = np.ones(len(asked.plans), dtype=np.bool_) if asked.which is None else asked.which
    return np.flatnonzero(which).astype(np.int64)


def _by_shape(table: int, asked: Piped, played: IntArray) -> Iterator[_Alike]:
    """Plans by the shape of their pipeline, plain 1F1B by its depth alone."""
    plans, stages = asked.plans, asked.stages
    plain = plans.schedule is Schedule.ONE_F_ONE_B
    shapes = np.stack([plans.layout.pp, plans.vpp, np.where(plain & (plans.vpp == 1), 0, plans.num_micro)])
    alike, shape_of = np.unique(shapes[:, played], axis=1, return_inverse=True)
    for index, (depth, vpp, num_micro) in enumerate(alike.T.tolist()):
        chosen = played[shape_of.reshape(-1) == index].astype(np.int64)
        rows = _rows_of(chosen, stages)
        # One column per plan: its classes repeated by how many stages each stands for.
        per_stage = np.repeat(rows, stages.count[rows]).reshape(len(chosen), depth).T
        chunks = np.arange(plans.schedule.route.chunks(vpp))
        per_chunk = stages.chunk_starts[per_stage][:, None, :] + chunks[None, :, None]
        hops = replace(asked.hops, seconds=asked.hops.seconds[chosen])
        passes = asked.passes.take(per_chunk)
        yield _Alike(
            table=table,
            shape=(depth, vpp, num_micro),
            chosen=chosen,
            passes=passes,
            hops=hops,
        )


def _by_stage(asked: Sequence[Piped], alike: Sequence[_Alike]) -> list[FloatArray]:
    """Spans of shape (pp, N): of plain 1F1B all pipelines of a depth at once, of programs all at once."""
    found: dict[int, FloatArray] = {}
    programs = [index for index, one in enumerate(alike) if one.shape[2] > 0]
    runs = [
        settled.Timeline(
            schedule=asked[one.table].plans.schedule,
            shape=one.shape,
            times=chunk_times(asked[one.table].plans.schedule, one.passes, one.hops),
        )
        for one in (alike[index] for index in programs)
    ]
    found |= dict(zip(programs, settled.spans_s(runs), strict=True))
    for depth in {one.shape[0] for one in alike if one.shape[2] == 0}:
        members = [index for index, one in enumerate(alike) if (one.shape[0], one.shape[2]) == (depth, 0)]
        ones = [alike[index] for index in members]
        times = StageTimes(
            forward_s=np.concatenate([one.passes.forward_s[:, 0] for one in ones], axis=1),
            backward_s=np.concatenate([one.passes.backward_s[:, 0] for one in ones], axis=1),
            hop_s=np.concatenate([one.hops.seconds for one in ones]),
        )
        num_micro = np.concatenate([asked[one.table].plans.num_micro[one.chosen] for one in ones])
        ends = np.cumsum([len(one.chosen) for one in ones])[:-1]
        found |= dict(zip(members, np.split(replay_1f1b_s(times, num_micro), ends, axis=1), strict=True))
    return [found[index] for index in range(len(alike))]


def _rows_of(chosen: IntArray, stages: StageTable) -> IntArray:
    """The stage rows of plans, in their order."""
    counts = np.diff(np.append(stages.starts, len(stages.plan)))[chosen]
    return rows_between(stages.starts[chosen], counts)


def chunk_times(schedule: Schedule, passes: PassTimes, hops: Hops) -> ChunkTimes:
    """Passes of every chunk (arrays of shape (pp, vpp, N)) as a program takes them; weight gradients apart
    where the schedule has them so. Megatron-LM alone waits for messages between chunks, and runs no other
    schedule of them."""
    split = schedule.splits_backward
    takes_turns = passes.forward_s.shape[1] > 1 and schedule.habits.rounds and not schedule.route.turns
    return ChunkTimes(
        forward_s=passes.forward_s,
        backward_s=passes.backward_s - (passes.weight_s if split else 0.0),
        weight_s=passes.weight_s if split else np.zeros_like(passes.weight_s),
        hop_s=hops.seconds,
        waited=hops.waited and takes_turns,
        updates_apart=hops.updates_apart and split,
        pair_s=passes.pair_s,
    )
