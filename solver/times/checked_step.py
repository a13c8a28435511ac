"""What comparing the ranks of the step's own collectives takes (ops.host_work.checked_collectives)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ops.data_parallel.sliced_collectives import matrices_of
from ops.host_work.checked_collectives import check_calls
from ops.layout import Layout
from ops.op import Axis, Comm, Op, Ops, Piece
from ops.roles import Role
from solver.times.host_floor import host_share
from solver.times.op_times import Pricer
from solver.times.step_parts import SumByPart, sum_by_part
from spec.arrays import FloatArray, IntArray, floats
from spec.job import JobSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What stage rows hold: kinds of layers, embedding and head, how many of each, and the ``row`` of their
    operations' arrays.
    """

    pieces: Sequence[tuple[Piece, IntArray]]
    row: IntArray


def checked_step(pricer: Pricer, job: JobSpec, layout: Layout, ops: Ops, held: Held) -> SumByPart:
    """Host seconds of the step's collectives for stage rows.

    Gradients that leave bucket by bucket are compared bucket by bucket. Assumption: a backward is too short
    to hide any of it.
    """
    if not job.checked_collectives:
        return SumByPart(length=len(layout))
    call_s = float(pricer.book.host_s("call").seconds[0])
    buckets = _buckets(job, layout, held)
    seconds = np.zeros(len(layout))
    for op in ops:
        if isinstance(op, Comm):
            apart = op.role is Role.GRADIENT_REDUCTION and op.axis is not Axis.EMBEDDING
            times = buckets if apart else floats(op.repeat)
            seconds = seconds + np.where(op.size_bytes > 0, check_calls(op, layout) * times * call_s, 0.0)
    return sum_by_part([host_share(pricer, seconds)], len(layout))


def _buckets(job: JobSpec, layout: Layout, held: Held) -> FloatArray:
    """Buckets that a stage row's gradients leave in. Whole matrices fill one, those of the head first and of
    the embedding last, until it holds what a bucket is to hold (PyTorch ``reducer.cpp``,
    compute_bucket_assignment_by_size): none is cut."""
    choices = job.preset.data_parallel
    bucket = np.maximum(choices.bucket_elements, choices.bucket_elements_per_rank * layout.dp * layout.cp)
    if not choices.overlap_grad_reduce:
        return np.ones(len(layout))
    *layers, embedding, head = held.pieces
    closed, inside = np.zeros(len(layout)), np.zeros(len(layout))
    for piece, times in (head, *reversed(layers), embedding):
        matrices = [_elements(op, held.row) for op in reversed(matrices_of(piece))]
        for nth in range(int(np.max(times)) if matrices else 0):
            for elements in matrices:
                inside = inside + np.where(nth < times, elements, 0)
                full = (inside >= bucket) & (inside > 0)
                closed, inside = closed + full, np.where(full, 0.0, inside)
    return np.where(bucket > 0, np.maximum(closed + (inside > 0), 1.0), 1.0)


def _elements(op: Op, row: IntArray) -> IntArray:
    """Parameters by which an operation fills buckets, one number for all rows or one each."""
    return op.parameters if op.parameters.size == 1 else op.parameters[row]
