"""What happens once a step: gradients are reduced, parameters updated and gathered; and how much of that the passes
hide.

The reduction overlaps the last backward, the gather the first forward, as far as the framework overlaps them; the
update runs alone."""

from dataclasses import dataclass, replace

import numpy as np

from ops.context import reduces_once
from ops.data_parallel.step import RankParameters
from ops.layout import Layout
from ops.op import Axis, Comm, CpuOverhead, HostTransfer, HostUpdate, Ops, Update
from ops.roles import Role
from profdb.overlap_losses import Losses
from solver.pipeline.stages import PassTimes, StageTable
from solver.times.contention import Contention, mean_losses
from solver.times.op_times import OpTimer, TimedOp
from solver.times.overlap import buckets_exposed_s
from solver.times.step_parts import SumByPart, sum_by_part
from spec.arrays import FloatArray, floats
from spec.job import JobSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """Exposed seconds of every stage row: ``reduction`` after the last backward, ``update``, and ``gather`` of the
    parameters before the next step."""

    reduction: SumByPart
    update: SumByPart
    gather: SumByPart


def units_of_stages(job: JobSpec, layout: Layout, stages: StageTable) -> FloatArray:
    """Returns the number of units of every stage row that are reduced one by one once a step (reduces_once): its
    layers, embedding and head; elsewhere 1."""
    if not (layout.zero_stage >= 2).any():
        return np.ones(len(layout))
    once = reduces_once(job, layout)
    layers = sum(stages.layers, np.zeros(len(layout), dtype=np.int64))
    units = stages.embedding.astype(np.int64) + stages.head + layers
    return floats(np.where(once, np.maximum(units, 1), 1))


def step_times(
    op_timer: OpTimer, job: JobSpec, layout: Layout, ops: Ops, on_rank: RankParameters, passes: PassTimes
) -> StepTimes:
    """Returns the times of the step's operations, less what the framework overlaps.

    The reduction runs beside the last micro-batch's backward, the gather beside the first one's forward, bucket by
    bucket; ``passes.units`` are the buckets where layers are gathered and reduced one by one.
    """
    rows = len(layout)
    choices = job.preset.data_parallel
    # Elements of a bucket: Megatron-Core's grow with the ranks that reduce; 0 where there are no buckets by size.
    bucket = np.maximum(choices.bucket_elements, choices.bucket_elements_per_rank * layout.dp * layout.cp)
    units = np.ones(rows) if passes.units is None else passes.units
    buckets = np.where(bucket > 0, np.maximum(np.ceil(on_rank.total / np.maximum(bucket, 1)), 1.0), units)
    overlaps = {
        Role.GRADIENT_REDUCTION: choices.overlap_grad_reduce,
        Role.PARAMETER_GATHER: choices.overlap_param_gather,
    }
    reduction: list[TimedOp] = []
    gather: list[TimedOp] = []
    update: list[TimedOp] = []
    to_host: list[TimedOp] = []
    for op in ops:
        # Each kind of parameters fills buckets of its own, each as late as a message of its own; what two stages share
        # travels in one piece.
        if overlaps.get(op.role) and isinstance(op, Comm) and op.axis is not Axis.EMBEDDING:
            own = np.ceil(on_rank.of(op.owner) / np.maximum(bucket, 1))
            count = np.where(bucket > 0, np.maximum(own, 1.0), units)
            # ``count`` messages of a bucket each; losses to overlap are those of the whole.
            one = replace(op, size_bytes=np.ceil(op.size_bytes / count).astype(np.int64))
            timed = op_timer.time(one, layout)
            timed = replace(
                timed, seconds=timed.seconds * count, losses=op_timer.losses(op, layout) if op_timer.overlap else None
            )
        else:
            timed = op_timer.time(op, layout)
        # Kernels of the step's end (casts, copies, norms) are part of the optimizer, whatever kind they are.
        if not isinstance(op, Comm | Update | HostTransfer | HostUpdate | CpuOverhead):
            timed = replace(timed, part="optimizer")
        match op.role:
            case Role.GRADIENT_REDUCTION:
                reduction.append(timed)
            case Role.PARAMETER_GATHER:
                gather.append(timed)
            case Role.GRADIENTS_TO_HOST:
                to_host.append(timed)
            case _:
                update.append(timed)
    if choices.overlap_grad_reduce:
        reduction = _overlap_pass(reduction, passes, passes.backward_s, buckets, op_timer.contention)
    if choices.overlap_param_gather:
        gather = _overlap_pass(gather, passes, passes.forward_s, buckets, op_timer.contention)
    if job.preset.offload.optimizer == "backward":
        to_host = [_overlap_backward(timed, passes.backward_s, buckets) for timed in to_host]
    elif to_host:
        update = _overlap_host_update(update)
    return StepTimes(
        reduction=sum_by_part([*reduction, *to_host], rows),
        update=sum_by_part(update, rows),
        gather=sum_by_part(gather, rows),
    )


def _overlap_pass(
    timed: list[TimedOp], passes: PassTimes, pass_s: FloatArray, buckets: FloatArray, contention: Contention
) -> list[TimedOp]:
    """Returns collectives that together overlap a pass of ``pass_s``; what stays exposed is spread over them in
    proportion."""
    if not timed:
        return timed
    total = np.zeros(1)
    for one in timed:
        total = total + one.seconds
    products = np.zeros_like(total) if passes.products is None else passes.products
    measured: Losses | None = None
    if any(one.losses for one in timed):
        measured = mean_losses([(one.seconds, one.losses) for one in timed])
    left = buckets_exposed_s(
        total, pass_s, buckets, *contention.shares_lost(np.ones_like(products), products, measured=measured)
    )
    fraction = np.divide(left, total, out=np.zeros_like(total), where=total > 0)
    return [replace(one, seconds=one.seconds * fraction) for one in timed]


def _overlap_backward(timed: TimedOp, backward_s: FloatArray, buckets: FloatArray) -> TimedOp:
    """Returns copies of gradients to the host that overlap the backward that makes them (arXiv 2101.06840 sec. 4.1), by
    copy engines; ``repeat`` is the number of backwards."""
    repeat = timed.op.repeat
    return replace(timed, seconds=buckets_exposed_s(timed.seconds / repeat, backward_s, buckets, 0.0) * repeat)


def _overlap_host_update(timed: list[TimedOp]) -> list[TimedOp]:
    """Returns the update where the device updates its part while the CPU updates the other: the device's seconds count
    as far as they exceed the CPU's."""
    host_s = [one.seconds for one in timed if isinstance(one.op, HostUpdate)]
    if not host_s:
        return timed
    return [
        replace(one, seconds=np.maximum(one.seconds - host_s[0], 0.0)) if isinstance(one.op, Update) else one
        for one in timed
    ]
