"""Price a table of plans: the step time of each, in named parts that add up to it.

The same lines price one plan and a million: distinct layers are priced once, stages are rows, and
the pipeline is replayed for every plan.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from ops.data_parallel.owners import num_owned, sent_by_owners
from ops.data_parallel.sliced_collectives import num_tensors, sliced_return
from ops.op import Ops, Owner, Piece
from ops.strategies.sharding import layer_context
from solver.hop_times import hop_seconds
from solver.layers.distinct_layers import DistinctLayers, distinct_layers
from solver.layers.stage_passes import TimedLayers
from solver.memory.memory_cost import MemoryCost
from solver.memory.stage_memory import StageBytes, Tables, stage_memory, worst_stage
from solver.optimizer_step import StepTimes, operations, step_times, units_of_stages
from solver.pipeline.least_spans import least_spans_s
from solver.pipeline.pass_times import PassTimes
from solver.pipeline.spans import LOOKS_PER_MESSAGE, Hops, Piped, spans_of
from solver.pipeline.stages import StageTable, stage_table
from solver.plans.plan_table import PlanTable
from solver.times.checked_step import Held, checked_step
from solver.times.layer_times import LayerTimes
from solver.times.op_times import Pricer
from solver.times.step_parts import PARTS, SumByPart, added
from spec.arrays import BoolArray, FloatArray, IntArray, of_rows
from spec.cluster.cluster import ClusterSpec
from spec.job import JobSpec
from spec.model import ModelSpec
from spec.origin import Origin

STEP_PARTS: tuple[str, ...] = (*PARTS, "pp_comm", "bubble")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCost:
    """Seconds per plan. ``parts`` (STEP_PARTS) sum to ``step_s``, and so do ``origins``;
    ``std_s[family]`` are the standard errors each curve family brings in.

    The parts are those of the slowest stage, which works longest on a micro-batch: the row ``stage`` of the
    plans' StageTable. Its waiting is ``bubble``, of which what hops cost is ``pp_comm``.
    """

    step_s: FloatArray
    parts: dict[str, FloatArray]
    origins: dict[Origin, FloatArray]
    std_s: dict[str, FloatArray]
    stage: IntArray

    @property
    def standard_error_s(self) -> FloatArray:
        """Families are independent: in quadrature."""
        squares = [value**2 for value in self.std_s.values()]
        return np.sqrt(np.sum(squares, axis=0, dtype=np.float64))

    def take(self, rows: IntArray) -> "StepCost":
        """The rows asked for."""
        return StepCost(
            step_s=self.step_s[rows],
            parts={key: value[rows] for key, value in self.parts.items()},
            origins={key: value[rows] for key, value in self.origins.items()},
            std_s={key: value[rows] for key, value in self.std_s.items()},
            stage=self.stage[rows],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Sized:
    """A table of plans with its layers, stages and memory: everything but time."""

    plans: PlanTable
    layers: DistinctLayers
    stages: StageTable
    bytes: StageBytes

    @property
    def memory(self) -> MemoryCost:
        """Memory of every plan's worst stage."""
        return self.bytes.cost.take(worst_stage(self.stages, self.bytes.cost))

    @property
    def needed_bytes(self) -> FloatArray:
        """The least a device must have for every plan: of its worst stage."""
        return np.maximum.reduceat(self.bytes.cost.needed_bytes, self.stages.starts)

    def take(self, rows: IntArray) -> "Sized":
        """The plans asked for, in that order; layouts may be left that none of them has."""
        return Sized(
            plans=self.plans.take(rows),
            layers=self.layers.of_plans(rows),
            stages=self.stages.take(rows),
            bytes=self.bytes.take(self.stages.rows(rows)),
        )


def sized(
    model: ModelSpec,
    job: JobSpec,
    plans: PlanTable,
    cluster: ClusterSpec | None = None,
    *,
    like: Sized | None = None,
    layers: DistinctLayers | None = None,
) -> Sized:
    """Lay out the plans and count their bytes; device totals need the ``cluster`` (solver.memory.device_memory). What
    the same plans share with ``like`` them, of the same model and job, is taken from there; ``layers`` are theirs where
    they are known."""
    layers = layers or distinct_layers(model, job, plans, like.layers if like else None)
    if like is not None and plans.dealt_as(like.plans):
        stages = like.stages
    else:
        stages = stage_table(model, plans, deals=job.preset.pipeline.deals)
    tables = Tables(plans=plans, kinds=layers.bytes, row=layers.row, stages=stages, cluster=cluster)
    return Sized(plans=plans, layers=layers, stages=stages, bytes=stage_memory(model, job, tables))


def dealt_otherwise(
    model: ModelSpec, job: JobSpec, table: Sized, stage_layout: str, cluster: ClusterSpec | None = None
) -> Sized:
    """The plans of a table with their layers dealt as ``stage_layout`` says; the layers are the same."""
    plans = replace(table.plans, stage_layout=stage_layout)
    stages = stage_table(model, plans)
    tables = Tables(
        plans=plans, kinds=table.layers.bytes, row=table.layers.row, stages=stages, cluster=cluster
    )
    return replace(table, plans=plans, stages=stages, bytes=stage_memory(model, job, tables))


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSeconds:
    """What each stage row takes: one micro-batch through it (``per_micro`` with its parts) and each of its
    chunks (``chunk_passes``), the messages between stages, and the work after the last micro-batch; all made of
    what the ``pieces`` of distinct layers take (``timed_pieces``)."""

    pieces: list[LayerTimes]
    per_micro: SumByPart
    chunk_passes: PassTimes
    hops: Hops
    step: StepTimes


def stage_seconds(
    model: ModelSpec, job: JobSpec, table: Sized, pricer: Pricer, pieces: list[LayerTimes] | None = None
) -> StageSeconds:
    """Time every stage row of the table; ``pieces`` are its ``timed_pieces`` where they are known."""
    plans, stages = table.plans, table.stages
    times = timed_pieces(table, pricer) if pieces is None else pieces
    of_stages = TimedLayers(plans=plans, layers=table.layers, stages=stages, times=times)
    chunk_passes = of_stages.chunk_passes(pricer.contention)
    row_layout, on_rank = plans.layout.take(stages.plan), table.bytes.on_rank
    ops = step_operations(model, job, table)
    # Nobody asks twice about the operations of a step.
    passes = replace(of_stages.beside_reductions(), units=units_of_stages(job, row_layout, stages))
    step = step_times(replace(pricer, known=None), job, row_layout, ops, on_rank, passes)
    checks = checked_step(
        pricer, job, row_layout, ops, Held(pieces=_held(table), row=table.layers.row[stages.plan])
    )
    return StageSeconds(
        pieces=times,
        per_micro=of_stages.per_micro(chunk_passes),
        chunk_passes=chunk_passes,
        hops=Hops(
            seconds=hop_seconds(model, job, plans, pricer),
            waited=not job.preset.pipeline.overlap_hops,
            updates_apart=job.preset.pipeline.post_validation,
            looks_s=LOOKS_PER_MESSAGE * job.preset.pipeline.looks_every_s,
        ),
        step=replace(step, reduction=added([step.reduction, checks], len(row_layout))),
    )


def step_operations(model: ModelSpec, job: JobSpec, table: Sized, rows: IntArray | None = None) -> Ops:
    """What every stage row, or the ``rows`` asked for, run once a step."""
    plans, stages = table.plans, table.stages
    rows = np.arange(len(stages.plan)) if rows is None else rows
    tied = stages.tied(model, plans.layout.pp[stages.plan])[rows]
    on_rank = table.bytes.on_rank.take(rows)
    context = layer_context(plans.sharding, model, job, plans.layout.take(stages.plan[rows]))
    mirrored = plans.schedule.route.ways > 1
    whole = operations(context, plans.sharding, on_rank, tied, mirrored=mirrored)
    if job.preset.data_parallel.parameter_sync == "broadcast":
        tensors = {
            one: _counted(table, partial(num_owned, owner=one))[rows] for one in (Owner.DENSE, Owner.WEIGHT)
        }
        whole = sent_by_owners(whole, tensors)
    if not job.preset.data_parallel.lists_of_slices:
        return whole
    return (*whole, *sliced_return(context, on_rank.total, _counted(table, num_tensors)[rows]))


def _counted(table: Sized, count_of: Callable[[Piece], IntArray]) -> IntArray:
    """What ``count_of`` counts in a piece of every layer row, of all pieces of every stage row."""
    row, layouts = table.layers.row[table.stages.plan], len(table.layers.layout)
    counted = [of_rows(count_of(piece), layouts)[row] * count for piece, count in _held(table)]
    return np.asarray(np.sum(counted, axis=0), dtype=np.int64)


def _held(table: Sized) -> list[tuple[Piece, IntArray]]:
    """Kinds of layers, embedding and head, and how many of each a stage row holds."""
    stages = table.stages
    held = (*stages.layers, stages.embedding.astype(np.int64), stages.head.astype(np.int64))
    return list(zip(table.layers.pieces, held, strict=True))


def timed_pieces(table: Sized, pricer: Pricer) -> list[LayerTimes]:
    """The times of WrittenLayers.placed, of all layers that plans of the table have."""
    layers = table.layers
    split = table.plans.schedule.splits_backward
    return layers.written.times(pricer, layers.again, split=split, rows=layers.row)


def price(
    model: ModelSpec, job: JobSpec, table: Sized, pricer: Pricer, pieces: list[LayerTimes] | None = None
) -> StepCost:
    """The step of every plan of the table; ``pieces`` as in ``stage_seconds``."""
    timed = stage_seconds(model, job, table, pricer, pieces)
    end_s, free_end_s = spans_of([pipelines(table, timed), pipelines(table, timed, free=True)])
    return cost_of(table, timed, (end_s, free_end_s))


def pipelines(
    table: Sized, timed: StageSeconds, *, free: bool = False, which: BoolArray | None = None
) -> Piped:
    """The pipelines of the plans in ``which``, None for all, with hops that take no time where they are ``free``."""
    hops = Hops(seconds=np.zeros_like(timed.hops.seconds)) if free else timed.hops
    return Piped(plans=table.plans, stages=table.stages, passes=timed.chunk_passes, hops=hops, which=which)


def least_ends_s(table: Sized, timed: StageSeconds) -> FloatArray:
    """What no replay of ``pipelines`` is below."""
    plans, stages = table.plans, table.stages
    busy_s = timed.per_micro.seconds * plans.num_micro[stages.plan]
    return least_spans_s(plans, stages, timed.chunk_passes, timed.hops, busy_s)


def steps_s(table: Sized, timed: StageSeconds, end_s: FloatArray) -> FloatArray:
    """The step of every plan whose stages end then: of the least ends the least step, as a later end never makes it
    shorter."""
    stages = table.stages
    busy_s = timed.per_micro.seconds * table.plans.num_micro[stages.plan]
    ready_s = np.maximum(end_s, busy_s) + timed.step.reduction.seconds
    after_s = timed.step.update.seconds + timed.step.gather.seconds
    return np.asarray(
        np.maximum.reduceat(ready_s, stages.starts) + np.maximum.reduceat(after_s, stages.starts),
        dtype=np.float64,
    )


def cost_of(table: Sized, timed: StageSeconds, ends_s: tuple[FloatArray, FloatArray]) -> StepCost:
    """The step of stages that end then (``ends_s``: with hops, and with free ones). It ends with the stage that is
    ready for the update last, then the slowest update and gather; its parts are of the slowest stage."""
    stages, plans = table.stages, table.plans
    per_micro, step = timed.per_micro, timed.step
    end_s, free_end_s = ends_s
    ready = end_s + step.reduction.seconds
    last = _argmax(ready, stages)
    after = _argmax(step.update.seconds + step.gather.seconds, stages)
    after_passes = (step.reduction.take(last), step.update.take(after), step.gather.take(after))
    whole = added([per_micro.take(last).scaled(plans.num_micro), *after_passes], len(plans))
    step_s = steps_s(table, timed, end_s)
    waiting = np.maximum(step_s - whole.seconds, 0.0)
    stage = _slowest(per_micro, stages, plans.num_micro, end_s, last)
    slowest = per_micro.take(stage).scaled(plans.num_micro)
    shown = added([slowest, *after_passes], len(plans))
    idle = np.maximum(step_s - shown.seconds, 0.0)
    hops = np.clip(end_s[last] - free_end_s[last], 0.0, idle)
    zero = np.zeros(len(plans))
    parts = {part: shown.parts.get(part, zero) for part in PARTS}
    parts |= {"pp_comm": hops, "bubble": idle - hops}
    origins = dict(whole.origins)
    origins[Origin.DERIVED] = origins.get(Origin.DERIVED, zero) + waiting
    # The slowest stage sets the pace of the others, and what it waits for is made of the same times: it errs
    # as they do.
    longer = 1.0 + np.divide(idle, shown.seconds, out=np.zeros_like(idle), where=shown.seconds > 0)
    std_s: dict[str, FloatArray] = {family: value * longer for family, value in shown.std_s.items()}
    return StepCost(step_s=step_s, parts=parts, origins=origins, std_s=std_s, stage=stage)


def _slowest(
    per_micro: SumByPart, stages: StageTable, num_micro: IntArray, end_s: FloatArray, last: IntArray
) -> IntArray:
    """For every plan the stage row that works longest on a micro-batch; the ``last`` one to end where that one
    ends later still (its reduction is shorter)."""
    busy_s = per_micro.seconds
    busiest = _argmax(busy_s, stages)
    return np.where(busy_s[busiest] * num_micro <= end_s[last], busiest, last).astype(np.int64)


def _argmax(values: FloatArray, stages: StageTable) -> IntArray:
    """For every plan its first stage row with the largest value."""
    largest = np.maximum.reduceat(values, stages.starts)
    rows = np.flatnonzero(values >= largest[stages.plan])
    _, first = np.unique(stages.plan[rows], return_index=True)
    chosen: IntArray = rows[first].astype(np.int64)
    return chosen
