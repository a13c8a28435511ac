"""1F1B and its interleaved form.

Source: Narayanan et al. 2021 (arXiv 2104.04473 sec. 2.2), in the order in which Megatron-LM writes it
(core/pipeline_parallel/schedules.py, get_schedule_table).
"""

import numpy as np

from solver.schedules.work import Kind, Work
from spec.arrays import FloatArray, IntArray


def one_f_one_b(shape: tuple[int, int, int]) -> list[list[Work]]:
    """Warm-up forwards, one forward and one backward in turn, remaining backwards, on every stage."""
    return [_stage_order(shape, stage) for stage in range(shape[0])]


def _stage_order(shape: tuple[int, int, int], stage: int) -> list[Work]:
    """Chunks take turns every pp micro-batches; with one chunk this is plain 1F1B."""
    pp, vpp, num_micro = shape
    table = [
        (chunk, micro)
        for first in range(0, num_micro, pp)
        for chunk in range(vpp)
        for micro in range(first, min(first + pp, num_micro))
    ]
    total = len(table)
    ahead = (pp - stage - 1) * 2 + (vpp - 1) * pp if vpp > 1 else pp - stage - 1
    ahead = min(ahead, total)
    forwards = [Work(Kind.FORWARD, chunk, micro) for chunk, micro in table]
    backwards = [Work(Kind.BACKWARD, vpp - 1 - chunk, micro) for chunk, micro in table]
    order = forwards[:ahead]
    for index in range(total):
        if ahead + index < total:
            order.append(forwards[ahead + index])
        order.append(backwards[index])
    return order


def in_flight(position: IntArray, pp: IntArray, vpp: IntArray, num_micro: IntArray) -> FloatArray:
    """1F1B: pp - position micro-batches. Interleaved: 2 (pp - position - 1) + (vpp - 1) pp + 1 chunks,
    which for the first stage is pp vpp (1 + (pp - 1) / (pp vpp)) (arXiv 2205.05198 sec. 4.2.3).
    """
    interleaved = 2 * (pp - position - 1) + (vpp - 1) * pp + 1
    chunks = np.minimum(np.where(vpp > 1, interleaved, pp - position), num_micro * vpp)
    return np.asarray(chunks / vpp, dtype=np.float64)
