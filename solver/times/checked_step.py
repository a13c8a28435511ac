"""What comparing the ranks of the step's own collectives takes (ops.host_work.checked_collectives)."""

import numpy as np

from ops.host_work.checked_collectives import check_calls
from ops.layout import Layout
from ops.op import Axis, Comm, Ops
from ops.roles import Role
from solver.times.host_floor import host_share
from solver.times.op_times import Pricer
from solver.times.step_parts import SumByPart, sum_by_part
from spec.arrays import FloatArray, IntArray, floats
from spec.job import JobSpec


def checked_step(
    pricer: Pricer, job: JobSpec, layout: Layout, ops: Ops, elements: IntArray, matrices: IntArray
) -> SumByPart:
    """Host seconds of the step's collectives for stage rows of ``elements`` trained parameters in ``matrices``.

    Gradients that leave bucket by bucket are compared bucket by bucket; a bucket holds whole matrices (PyTorch
    ``reducer.cpp``, compute_bucket_assignment_by_size). Assumption: a backward is too short to hide any of it.
    """
    if not job.checked_collectives:
        return SumByPart(length=len(layout))
    call_s = float(pricer.book.host_s("call").seconds[0])
    buckets = _buckets(job, layout, elements, matrices)
    seconds = np.zeros(len(layout))
    for op in ops:
        if isinstance(op, Comm):
            apart = op.role is Role.GRADIENT_REDUCTION and op.axis is not Axis.EMBEDDING
            times = buckets if apart else floats(op.repeat)
            seconds = seconds + np.where(op.size_bytes > 0, check_calls(op, layout) * times * call_s, 0.0)
    return sum_by_part([host_share(pricer, seconds)], len(layout))


def _buckets(job: JobSpec, layout: Layout, elements: IntArray, matrices: IntArray) -> FloatArray:
    choices = job.preset.data_parallel
    bucket = np.maximum(choices.bucket_elements, choices.bucket_elements_per_rank * layout.dp * layout.cp)
    if not choices.overlap_grad_reduce:
        return np.ones(len(layout))
    filled = np.ceil(elements / np.maximum(bucket, 1))
    return np.where(bucket > 0, np.maximum(np.minimum(filled, matrices), 1.0), 1.0)
