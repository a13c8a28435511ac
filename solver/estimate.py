"""The estimate of a table of plans: seconds of a training step, and bytes of a device's memory.

Read from top to bottom it is the algorithm:

    plans -> layers    what one rank runs in a layer, once for all plans whose layers are the same (solver.plans.layers)
          -> stages    which layers, embedding and head every pipeline stage holds
          -> memory    bytes of every stage, in named terms; the worst stage decides
          -> times     a micro-batch through every stage, messages between stages, what follows the last micro-batch
          -> pipeline  when every stage has ended its last micro-batch
          -> step      reductions, update and gathers behind it; the parts of the slowest stage add up to the step

One plan is a table with one row: the same lines estimate a million.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from ops.context import LayerContext
from ops.data_parallel.sliced_collectives import return_slices
from ops.data_parallel.step import broadcast_by_owners, step_ops
from ops.memory_bound import num_tensors
from ops.op import Ops, Owner, Pass
from solver.memory.stage import stage_memory
from solver.memory.terms import MemoryEstimate, StageBytes, Tables
from solver.pipeline.spans import P2PTimes, PipelineBatch, least_spans_s, spans_of
from solver.pipeline.stages import PassTimes, StageTable, stage_table
from solver.plans.layers import LayerTable, layer_table
from solver.plans.plan_table import PlanTable
from solver.times.layer_times import LayerTimes, layer_times
from solver.times.op_times import OpTimer
from solver.times.stage_times import TimedLayers, p2p_seconds
from solver.times.step_end import StepTimes, step_times, units_of_stages
from solver.times.step_parts import PARTS, SumByPart, total_by_part
from spec.arrays import BoolArray, FloatArray, IntArray, bools, of_rows
from spec.cluster.cluster import ClusterSpec
from spec.job import JobSpec
from spec.model import ModelSpec
from spec.origin import Origin

STEP_PARTS: tuple[str, ...] = (*PARTS, "pp_comm", "bubble")


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A table of plans with its layers, its pipeline stages and their memory; seconds are in StageTimes and
    StepTime."""

    plans: PlanTable
    layers: LayerTable
    stages: StageTable
    bytes: StageBytes

    @property
    def memory(self) -> MemoryEstimate:
        """Memory of every plan's worst stage."""
        return self.bytes.cost.take(self.stages.argmax(self.bytes.cost.needed_bytes))

    @property
    def needed_bytes(self) -> FloatArray:
        """Bytes that a device needs for every plan: those of the plan's worst stage."""
        return np.maximum.reduceat(self.bytes.cost.needed_bytes, self.stages.starts)

    def take(self, rows: IntArray) -> "Estimate":
        """Returns the plans of these rows, in that order; ``layers`` may keep layouts that none of them has."""
        return Estimate(
            plans=self.plans.take(rows),
            layers=self.layers.take(rows),
            stages=self.stages.take(rows),
            bytes=self.bytes.take(self.stages.rows(rows)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTimes:
    """Seconds of every stage row.

    ``pieces`` are the times of layers, embedding and head that the others are sums of; ``per_micro`` one micro-batch
    through the stage, by part; ``chunk_passes`` the same by pass for each chunk of a stage; ``p2p`` messages between
    stages; ``step`` the work after the last micro-batch.
    """

    pieces: list[LayerTimes]
    per_micro: SumByPart
    chunk_passes: PassTimes
    p2p: P2PTimes
    step: StepTimes


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """Seconds of a step per plan. ``parts`` (STEP_PARTS) sum to ``step_s``, and so do ``origins``;
    ``std_s[family]`` are the standard errors that each curve family brings in.

    The parts are those of the slowest stage, which works longest on a micro-batch: the row ``stage`` of the
    plans' StageTable. Its waiting is ``bubble``, of which messages cost ``pp_comm``. ``mean_parts`` are of all GPUs on
    average: those of plans with different slowest stages compare, and they sum to ``step_s`` as well.
    """

    step_s: FloatArray
    parts: dict[str, FloatArray]
    origins: dict[Origin, FloatArray]
    std_s: dict[str, FloatArray]
    stage: IntArray
    mean_parts: dict[str, FloatArray]

    @property
    def standard_error_s(self) -> FloatArray:
        """Seconds; families are independent, so their errors add in quadrature."""
        return np.sqrt(np.sum(np.square(list(self.std_s.values())), axis=0, dtype=np.float64))

    def take(self, rows: IntArray) -> "StepTime":
        """Returns the plans of these rows."""
        return StepTime(
            step_s=self.step_s[rows],
            parts={key: value[rows] for key, value in self.parts.items()},
            origins={key: value[rows] for key, value in self.origins.items()},
            std_s={key: value[rows] for key, value in self.std_s.items()},
            stage=self.stage[rows],
            mean_parts={key: value[rows] for key, value in self.mean_parts.items()},
        )


def estimate_memory(
    model: ModelSpec,
    job: JobSpec,
    plans: PlanTable,
    cluster: ClusterSpec | None = None,
    *,
    like: Estimate | None = None,
) -> Estimate:
    """Returns layers, stages and bytes of every plan; device totals need the ``cluster`` (solver.memory.device).

    ``like`` is an estimate for the same model and job whose layers and stages are reused where they are the same.
    """
    layers = layer_table(model, job, plans, like.layers if like else None)
    # Plans that differ in recompute mode, ZeRO or micro-batch keep their stages.
    if like is not None and plans.same_stages(like.plans):
        stages = like.stages
    else:
        stages = stage_table(model, plans, rule=job.preset.pipeline.partition)
    tables = Tables(plans=plans, kinds=layers.bytes, row=layers.row, stages=stages, cluster=cluster)
    return Estimate(plans=plans, layers=layers, stages=stages, bytes=stage_memory(model, job, tables))


def with_stage_layout(
    model: ModelSpec, job: JobSpec, table: Estimate, stage_layout: str, cluster: ClusterSpec | None = None
) -> Estimate:
    """Returns the plans of a table with an explicit partition of layers over stages; what a layer runs is the same."""
    plans = replace(table.plans, stage_layout=stage_layout)
    stages = stage_table(model, plans)
    tables = Tables(plans=plans, kinds=table.layers.bytes, row=table.layers.row, stages=stages, cluster=cluster)
    return replace(table, plans=plans, stages=stages, bytes=stage_memory(model, job, tables))


def step_time(model: ModelSpec, job: JobSpec, table: Estimate, op_timer: OpTimer) -> StepTime:
    """Returns the step time of every plan of the table, with its parts."""
    times = stage_times(model, job, table, op_timer)
    if (table.plans.layout.pp > 1).any():
        # The second run has messages of no duration: the difference of both is the part ``pp_comm`` of the step.
        end_s, free_end_s = spans_of([pipelines(table, times), pipelines(table, times, free=True)])
    else:
        # A single stage never waits: it ends when it has worked through its micro-batches.
        end_s = free_end_s = times.per_micro.seconds * table.plans.num_micro[table.stages.plan]
    return assemble_step(table, times, (end_s, free_end_s))


def stage_times(
    model: ModelSpec, job: JobSpec, table: Estimate, op_timer: OpTimer, pieces: list[LayerTimes] | None = None
) -> StageTimes:
    """Returns the times of every stage row of the table; ``pieces`` are its ``piece_times`` if they are known
    already."""
    plans, stages = table.plans, table.stages
    times = piece_times(table, op_timer) if pieces is None else pieces
    of_stages = TimedLayers(plans=plans, layers=table.layers, stages=stages, times=times)
    traits, has_stages = plans.schedule.traits, bool((plans.layout.pp > 1).any())
    chunk_passes = of_stages.passes(stages.chunks)
    if traits.pairs:
        # DualPipe runs a chunk's forward beside the other chunk's backward.
        chunk_passes = of_stages.with_pairs(chunk_passes, op_timer.contention)
    # From here on one row a stage: what happens once a step depends on what the stage holds.
    row_layout = plans.layout.take(stages.plan)
    passes = replace(of_stages.passes(stages), units=units_of_stages(job, row_layout, stages))
    if traits.splits_backward and not traits.pairs:
        # Weight gradients come last, so no backward is left to run beside reductions
        # (torch/distributed/pipelining/schedules.py, _add_reduce_grad: behind a chunk's last weight gradient).
        passes = replace(passes, backward_s=np.zeros_like(passes.backward_s))
    once = step_operations(model, job, table)
    return StageTimes(
        pieces=times,
        per_micro=of_stages.per_micro(chunk_passes),
        chunk_passes=chunk_passes,
        p2p=P2PTimes(
            seconds=p2p_seconds(model, job, plans, op_timer) if has_stages else np.zeros(len(plans)),
            blocking=not job.preset.pipeline.overlap_p2p,
            post_validation=job.preset.pipeline.post_validation,
        ),
        step=step_times(op_timer, job, row_layout, once, table.bytes.on_rank, passes),
    )


def timer_of(layers: LayerTable, op_timer: OpTimer) -> OpTimer:
    """Returns the timer with the times it has returned for these layers under any recompute policy."""
    _, known = layers.memo.times.setdefault(id(op_timer), (op_timer, {}))
    return replace(op_timer, known=known)


def piece_times(table: Estimate, op_timer: OpTimer) -> list[LayerTimes]:
    """Returns the times of LayerTable.stage_pieces, for every layer row."""
    layers, split = table.layers, table.plans.schedule.traits.splits_backward
    job = layers.bare.context.job
    # Runs of equal blocks share one piece, which is timed once.
    cache: dict[int, LayerTimes] = {}
    op_timer = timer_of(layers, op_timer)
    times: list[LayerTimes] = []
    for piece in layers.stage_pieces:
        if id(piece) not in cache:
            cache[id(piece)] = layer_times(op_timer, job, piece, layers.layout, split=split)
        times.append(cache[id(piece)])
    return times


def step_operations(model: ModelSpec, job: JobSpec, table: Estimate, rows: IntArray | None = None) -> Ops:
    """Returns what every stage row, or each of ``rows``, runs once a step."""
    plans, stages = table.plans, table.stages
    rows = np.arange(len(stages.plan)) if rows is None else rows
    # Rows that hold one of embedding and head, tied to the other on another stage: their gradients are all-reduced.
    tied = bools((stages.embedding ^ stages.head) & model.tied_embeddings)[rows]
    on_rank = table.bytes.on_rank.take(rows)
    context = LayerContext(sharding=plans.sharding, model=model, job=job, layout=plans.layout.take(stages.plan[rows]))
    # With two copies of the model (DualPipe) another stage holds the same parameters, and both sum their gradients.
    mirrored = plans.schedule.placement.directions > 1
    ops = step_ops(context, on_rank, tied, mirrored=mirrored)
    if job.preset.data_parallel.parameter_sync == "broadcast":
        # A rank owns whole tensors, so no more ranks broadcast than there are tensors.
        tensors = dict.fromkeys((Owner.DENSE, Owner.WEIGHT), rows)
        for owner in tensors:
            tensors[owner] = _sum_over_pieces(table, partial(num_tensors, owner=owner))[rows]
        ops = broadcast_by_owners(ops, tensors)
    if not job.preset.data_parallel.lists_of_slices:
        return ops
    return (*ops, *return_slices(context, on_rank.total, _sum_over_pieces(table, num_tensors)[rows]))


def _sum_over_pieces(table: Estimate, count_of: Callable[[Pass], IntArray]) -> IntArray:
    """Returns for every stage row the sum of ``count_of`` over the layers, embedding and head that it holds."""
    stages, layouts = table.stages, len(table.layers.layout)
    row = table.layers.row[stages.plan]
    numbers = (*stages.layers, stages.embedding.astype(np.int64), stages.head.astype(np.int64))
    total = np.zeros(len(row), dtype=np.int64)
    for piece, number in zip(table.layers.pieces, numbers, strict=True):
        total = total + of_rows(count_of(piece), layouts)[row] * number
    return total


def pipelines(
    table: Estimate, times: StageTimes, *, free: bool = False, selected: BoolArray | None = None
) -> PipelineBatch:
    """Returns the pipelines of the ``selected`` plans, None for all; messages take no time where they are ``free``."""
    p2p = P2PTimes(seconds=np.zeros_like(times.p2p.seconds)) if free else times.p2p
    return PipelineBatch(plans=table.plans, stages=table.stages, passes=times.chunk_passes, p2p=p2p, selected=selected)


def least_ends_s(table: Estimate, times: StageTimes) -> FloatArray:
    """Returns a lower bound in closed form of when each stage row ends its last work, in seconds of the step."""
    plans, stages = table.plans, table.stages
    busy_s = times.per_micro.seconds * plans.num_micro[stages.plan]
    return least_spans_s(plans, stages, times.chunk_passes, times.p2p, busy_s)


def steps_s(table: Estimate, times: StageTimes, end_s: FloatArray) -> FloatArray:
    """Returns the step of every plan whose stages end at ``end_s``. Given lower bounds of the ends it is a lower bound
    of the step, as a later end never makes the step shorter."""
    stages = table.stages
    # A stage cannot end before it has done its own work.
    busy_s = times.per_micro.seconds * table.plans.num_micro[stages.plan]
    ready_s = np.maximum(end_s, busy_s) + times.step.reduction.seconds
    after_s = times.step.update.seconds + times.step.gather.seconds
    # The optimizer waits for the global gradient norm, so for the last stage of all, and the step for the slowest
    # update.
    return np.asarray(
        np.maximum.reduceat(ready_s, stages.starts) + np.maximum.reduceat(after_s, stages.starts), dtype=np.float64
    )


def assemble_step(table: Estimate, times: StageTimes, ends_s: tuple[FloatArray, FloatArray]) -> StepTime:
    """Returns the step of stages that end at ``ends_s``: simulated with messages, and with free ones.

    The stage that is ready for the update last and the slowest update and gather make the total; the parts that are
    displayed are of the slowest stage, whose waiting is bubble and messages.
    """
    stages, plans = table.stages, table.plans
    per_micro, step = times.per_micro, times.step
    end_s, free_end_s = ends_s
    ready = end_s + step.reduction.seconds
    last = stages.argmax(ready)
    after = stages.argmax(step.update.seconds + step.gather.seconds)
    after_passes = (step.reduction.take(last), step.update.take(after), step.gather.take(after))
    whole = total_by_part([per_micro.take(last, plans.num_micro), *after_passes], len(plans))
    step_s = steps_s(table, times, end_s)
    # What the stage that ends last does not compute it waits for: derived, as the simulation tells it.
    waiting = np.maximum(step_s - whole.seconds, 0.0)
    # The slowest stage works longest on a micro-batch; or the last one to end, where it ends later still (its
    # reduction is shorter).
    busiest = stages.argmax(per_micro.seconds)
    busy_s = per_micro.seconds[busiest] * plans.num_micro
    stage = np.where(busy_s <= end_s[last], busiest, last).astype(np.int64)
    slowest = per_micro.take(stage, plans.num_micro)
    busy = total_by_part([slowest, *after_passes], len(plans))
    idle = np.maximum(step_s - busy.seconds, 0.0)
    p2p = np.clip(end_s[last] - free_end_s[last], 0.0, idle)
    zero = np.zeros(len(plans))
    parts = dict.fromkeys(PARTS, zero) | busy.parts | {"pp_comm": p2p, "bubble": idle - p2p}
    # Origins are those of the stage that ends last, whose work and waiting add up to the step.
    origins = dict(whole.origins)
    origins[Origin.DERIVED] = origins.get(Origin.DERIVED, zero) + waiting
    # The slowest stage sets the pace of the others, and what it waits for is made of the same times: it errs
    # as they do.
    longer = 1.0 + np.divide(idle, busy.seconds, out=np.zeros_like(idle), where=busy.seconds > 0)
    std_s = busy.take(np.arange(len(plans)), longer).std_s
    rows = np.arange(len(stages.plan))
    on_stages = [per_micro.take(rows, plans.num_micro[stages.plan]), step.reduction, step.update, step.gather]
    mean_parts: dict[str, FloatArray] = dict.fromkeys(PARTS, zero)
    idle = step_s
    for part, seconds in total_by_part(on_stages, len(rows)).parts.items():
        mean_parts[part] = np.add.reduceat(seconds * stages.count, stages.starts) / plans.layout.pp
        idle = idle - mean_parts[part]
    mean_parts["pp_comm"] = np.clip(p2p, 0.0, np.maximum(idle, 0.0))
    mean_parts["bubble"] = np.maximum(idle, 0.0) - mean_parts["pp_comm"]
    return StepTime(step_s=step_s, parts=parts, origins=origins, std_s=std_s, stage=stage, mean_parts=mean_parts)
