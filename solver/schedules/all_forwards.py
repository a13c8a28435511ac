"""Schedules that run all forwards before the first backward.

Source: GPipe (arXiv 1811.06965 sec. 2.3) and breadth-first pipeline parallelism (arXiv 2211.05953 sec. 4.1), in the
orders of torch.distributed.pipelining (PyTorch 2.11, schedules.py: ScheduleGPipe, ``_step_microbatches``;
ScheduleLoopedBFS, ``_calculate_single_rank_operations``). The bubble is that of 1F1B and its interleaved form.
"""

import numpy as np

from solver.schedules.work import Kind, Work
from spec.arrays import FloatArray, IntArray


def gpipe(shape: tuple[int, int, int]) -> list[list[Work]]:
    """The same order on every stage."""
    pp, _, num_micro = shape
    passes = [[Work(kind, 0, micro) for micro in range(num_micro)] for kind in (Kind.FORWARD, Kind.BACKWARD)]
    return [passes[0] + passes[1]] * pp


def breadth_first(shape: tuple[int, int, int]) -> list[list[Work]]:
    """Chunk by chunk, every micro-batch; backwards from the last of both."""
    pp, vpp, num_micro = shape
    forwards = [Work(Kind.FORWARD, chunk, micro) for chunk in range(vpp) for micro in range(num_micro)]
    return [forwards + [work._replace(kind=Kind.BACKWARD) for work in reversed(forwards)]] * pp


def in_flight_all(position: IntArray, pp: IntArray, vpp: IntArray, num_micro: IntArray) -> FloatArray:
    """Every micro-batch, on every stage."""
    return np.asarray(num_micro + 0.0 * position, dtype=np.float64)
