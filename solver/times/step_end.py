"""What happens once a step: gradients reduced, parameters updated and returned, and how much of it
the pipeline hides."""

from dataclasses import dataclass, replace

import numpy as np

from ops.context import LayerContext, reduces_once
from ops.data_parallel.step import RankParameters, step_ops
from ops.embedding_and_head import embedding_elements
from ops.layout import Layout
from ops.op import Axis, Comm, CpuOverhead, HostTransfer, HostUpdate, Op, Ops, Update
from ops.roles import Role
from profdb.lookup.overlap_losses import Losses
from solver.pipeline.stages import PassTimes, StageTable
from solver.times.contention import Contention, averaged, lost_by_collective
from solver.times.op_times import Pricer
from solver.times.overlap import bucketed
from solver.times.step_parts import Share, SumByPart, sum_by_part
from spec.arrays import BoolArray, FloatArray, floats
from spec.job import JobSpec

# What of a step is not the update: it may run beside a pass.
APART = (Role.GRADIENT_REDUCTION, Role.PARAMETER_GATHER, Role.GRADIENTS_TO_HOST)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """Waiting times per stage row: ``reduction`` after the last backward, ``update``, and ``gather`` of
    the parameters before the next step."""

    reduction: SumByPart
    update: SumByPart
    gather: SumByPart


def operations(
    context: LayerContext,
    on_rank: RankParameters,
    tied_here: BoolArray,
    *,
    mirrored: bool = False,
) -> Ops:
    """The step's operations for every stage row; ``tied_here`` marks rows whose embedding or head is
    tied to another stage's, ``mirrored`` says that another stage holds all its parameters too."""
    tied = tied_here & (context.job.adapter_rank == 0)
    shared = np.where(tied, embedding_elements(context), 0)
    return step_ops(context, on_rank, shared, mirrored=mirrored)


def units_of_stages(job: JobSpec, layout: Layout, stages: StageTable) -> FloatArray:
    """Layers and ends of every stage row, where each is reduced, or gathered too, by itself once a step (reduces_once),
    else 1."""
    once = reduces_once(job, layout)
    held = (
        stages.embedding.astype(np.int64)
        + stages.head
        + sum(stages.layers, np.zeros(len(layout), dtype=np.int64))
    )
    return floats(np.where(once, np.maximum(held, 1), 1))


def step_times(
    pricer: Pricer, job: JobSpec, layout: Layout, ops: Ops, on_rank: RankParameters, passes: PassTimes
) -> StepTimes:
    """Price the step's operations and hide what the framework overlaps.

    The reduction runs beside the last micro-batch's backward, the gather beside the first one's
    forward, bucket by bucket; ``passes.units`` buckets where layers are gathered and reduced one by one.
    """
    rows = len(layout)
    preset = job.preset
    choices = preset.data_parallel
    bucket = np.maximum(choices.bucket_elements, choices.bucket_elements_per_rank * layout.dp * layout.cp)
    units = np.ones(rows) if passes.units is None else passes.units
    buckets = np.where(bucket > 0, np.maximum(np.ceil(on_rank.total / np.maximum(bucket, 1)), 1.0), units)

    def in_buckets(op: Op, overlaps: bool) -> Share:
        """Each kind of parameters fills buckets of its own; what two stages share travels in one piece."""
        if not overlaps or not isinstance(op, Comm) or op.axis is Axis.EMBEDDING:
            return _share(pricer, op, layout)
        own = np.ceil(on_rank.of(op.owner) / np.maximum(bucket, 1))
        return _in_buckets(pricer, op, layout, np.where(bucket > 0, np.maximum(own, 1.0), units))

    reduction = [
        in_buckets(op, choices.overlap_grad_reduce) for op in ops if op.role is Role.GRADIENT_REDUCTION
    ]
    gather = [in_buckets(op, choices.overlap_param_gather) for op in ops if op.role is Role.PARAMETER_GATHER]
    leaving = [(op, _share(pricer, op, layout)) for op in ops if op.role is Role.GRADIENTS_TO_HOST]
    rest = [op for op in ops if op.role not in APART]
    update = [_share(pricer, op, layout) for op in rest]
    products = np.zeros(rows) if passes.products is None else passes.products
    if choices.overlap_grad_reduce:
        lost = _losses(pricer, layout, ops, Role.GRADIENT_REDUCTION, reduction)
        contended = _contended(pricer.contention, products, lost)
        reduction = _hidden(reduction, passes.backward_s, buckets, contended)
    if choices.overlap_param_gather:
        lost = _losses(pricer, layout, ops, Role.PARAMETER_GATHER, gather)
        gather = _hidden(gather, passes.forward_s, buckets, _contended(pricer.contention, products, lost))
    if preset.offload.optimizer == "backward":
        reduction += [_beside_backward(op, share, passes.backward_s, buckets) for op, share in leaving]
    else:
        reduction += [share for _, share in leaving]
        update = _beside_host(rest, update)
    return StepTimes(
        reduction=sum_by_part(reduction, rows),
        update=sum_by_part(update, rows),
        gather=sum_by_part(gather, rows),
    )


def _losses(pricer: Pricer, layout: Layout, ops: Ops, role: Role, shares: list[Share]) -> Losses | None:
    """What the collectives of ``role`` and products lose to each other, where all were measured, by their seconds."""
    named = [op for op in ops if op.role is role]
    return averaged(
        [(share.seconds, pricer.losses(op, layout)) for op, share in zip(named, shares, strict=True)]
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Contended:
    """Shares that computation and the collectives beside it lose while both run."""

    compute: FloatArray
    comm: FloatArray | float


def _contended(contention: Contention, products: FloatArray, lost: Losses | None) -> _Contended:
    """Of a pass of which a share ``products`` are matrix products."""
    whole = np.ones_like(products)
    return _Contended(
        compute=contention.loss(whole, products, measured=lost),
        comm=lost_by_collective(whole, products, lost),
    )


def _in_buckets(pricer: Pricer, op: Comm, layout: Layout, buckets: FloatArray) -> Share:
    """A collective that travels as ``buckets`` of equal size, each as late as a message of its own."""
    part = _share(pricer, replace(op, size_bytes=np.ceil(op.size_bytes / buckets).astype(np.int64)), layout)
    return replace(part, seconds=part.seconds * buckets)


def _beside_backward(op: Op, share: Share, backward_s: FloatArray, buckets: FloatArray) -> Share:
    """Gradients leave for the host as each backward makes them (arXiv 2101.06840 sec. 4.1), by copy engines."""
    one = share.seconds / op.repeat
    return replace(share, seconds=bucketed(one, backward_s, buckets, 0.0) * op.repeat)


def _beside_host(ops: list[Op], shares: list[Share]) -> list[Share]:
    """The device updates its part while the processors update theirs, and waits for the longer."""
    host_s = [share.seconds for op, share in zip(ops, shares, strict=True) if isinstance(op, HostUpdate)]
    if not host_s:
        return shares
    return [
        replace(share, seconds=np.maximum(share.seconds - host_s[0], 0.0))
        if isinstance(op, Update)
        else share
        for op, share in zip(ops, shares, strict=True)
    ]


def _share(pricer: Pricer, op: Op, layout: Layout) -> Share:
    timed = pricer.time(op, layout)
    own = isinstance(op, Comm | Update | HostTransfer | HostUpdate | CpuOverhead)
    part = timed.part if own else "optimizer"
    return Share(
        part=part,
        family=timed.family,
        seconds=timed.seconds,
        relative_std=timed.relative_std,
        origin=timed.origin,
        carried_std=timed.carried_std,
    )


def _hidden(
    shares: list[Share], pass_s: FloatArray, buckets: FloatArray, contended: _Contended
) -> list[Share]:
    """All collectives of a kind share the pass; what is left is spread over them in proportion."""
    if not shares:
        return shares
    total = np.sum([share.seconds for share in shares], axis=0)
    left = bucketed(total, pass_s, buckets, contended.compute, contended.comm)
    fraction = np.divide(left, total, out=np.zeros_like(total), where=total > 0)
    return [
        Share(
            part=share.part,
            family=share.family,
            seconds=share.seconds * fraction,
            relative_std=share.relative_std,
            origin=share.origin,
            carried_std=share.carried_std,
        )
        for share in shares
    ]
